"""What a CUDA device does at best: copies between places of its own memory, multiply-adds, divisions, sgemm.

Not yet run on hardware.
"""

from typing import Any

# Numbers of CUDA's device attributes (driver_types.h, enum cudaDeviceAttr).
_ATTRIBUTES = {"registers": 82, "shared_bytes": 81, "threads": 39, "blocks": 106, "processors": 16}
LARGE = 2**30  # bytes that no cache holds
CHAINS, ROUNDS = 8, 512

cuda: Any = None  # numba.cuda, when kernels are made


def limits(index):
    """What one multiprocessor holds, and how many there are."""
    import cupy

    return {name: cupy.cuda.runtime.deviceGetAttribute(number, index) for name, number in _ATTRIBUTES.items()}


def copy_rate(watch, working_set):
    """Bytes read and written per second by copies within `working_set` bytes of device memory."""
    import cupy

    half = max(256, int(working_set) // 2)
    source, target = cupy.zeros(half, cupy.uint8), cupy.zeros(half, cupy.uint8)
    device_to_device = 3  # enum cudaMemcpyKind

    def copy():
        cupy.cuda.runtime.memcpyAsync(target.data.ptr, source.data.ptr, half, device_to_device, watch.stream.ptr)

    seconds, _ = watch.seconds_per_call(copy)
    return 2 * half / seconds


def rates(watch, device):
    """Copies of memory larger than any cache, multiply-adds, divisions and flops of a sgemm, each per second."""
    import cupy
    import torch
    from numba import cuda as numba_cuda

    index = int(device.partition(":")[2] or 0)
    threads = 256
    blocks = 16 * limits(index)["processors"]
    x = cupy.full(blocks * threads, 1.7, cupy.float32)
    stream, view = numba_cuda.external_stream(watch.stream.ptr), numba_cuda.as_cuda_array(x, sync=False)
    found = {"copy_bytes_per_second": copy_rate(watch, LARGE)}
    for name, kernel, rounds in zip(("fma", "div"), kernels(), (ROUNDS, ROUNDS // 8)):
        launch = kernel[blocks, threads, stream]
        seconds, _ = watch.seconds_per_call(
            lambda launch=launch, rounds=rounds: launch(view, _f32(0.7), _f32(0.3), rounds)
        )
        found[f"{name}_per_second"] = x.size * CHAINS * rounds / seconds
    size = 4096
    a, b, out = (torch.ones(size, size, device=device) for _ in range(3))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.cuda.stream(torch.cuda.ExternalStream(watch.stream.ptr, device=device)):
        seconds, _ = watch.seconds_per_call(lambda: torch.mm(a, b, out=out))
    torch.backends.cuda.matmul.allow_tf32 = before
    return {**found, "sgemm_flops_per_second": 2 * size**3 / seconds}


def _f32(value):
    import numpy as np

    return np.float32(value)


def kernels():
    """`multiply_add` and `divide` for launching."""
    global cuda  # the simulator replaces a global of this name
    from numba import cuda

    return cuda.jit(multiply_add), cuda.jit(divide)


def multiply_add(x, a, b, rounds):
    """CHAINS independent chains of multiply-adds a thread."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        c0 = x[i]
        c1, c2, c3 = c0 + a, c0 + b, c0 - b
        c4, c5, c6, c7 = c1 + a, c2 + b, c3 + a, c0 * b
        for _ in range(rounds):
            c0 = c0 * a + b
            c1 = c1 * a + b
            c2 = c2 * a + b
            c3 = c3 * a + b
            c4 = c4 * a + b
            c5 = c5 * a + b
            c6 = c6 * a + b
            c7 = c7 * a + b
        x[i] = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7


def divide(x, a, b, rounds):
    """The same for divisions."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        c0 = x[i]
        c1, c2, c3 = c0 + a, c0 + b, c0 - b
        c4, c5, c6, c7 = c1 + a, c2 + b, c3 + a, c0 * b
        for _ in range(rounds):
            c0 = a / c0
            c1 = b / c1
            c2 = a / c2
            c3 = b / c3
            c4 = a / c4
            c5 = b / c5
            c6 = a / c6
            c7 = b / c7
        x[i] = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7
