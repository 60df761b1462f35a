"""What this machine can do at best: copy bandwidth at a given working set, multiply-add and division rates.

Each kernel runs on `threads` Python threads at once, without the GIL, on data of its own.
"""

import threading
import time


def _run(threads, work):
    """Seconds from the first start to the last end of `work(k)` on `threads` threads."""
    pool = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    start = time.perf_counter()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return time.perf_counter() - start


def _rate(threads, seconds, work, units):
    """Best units per second over three windows of `seconds`; `work(k, repeats)` does `units * repeats` a thread."""

    def timed(repeats):
        return _run(threads, lambda k: work(k, repeats))

    repeats = 1
    while (elapsed := timed(repeats)) < seconds / 10:
        repeats *= 4
    repeats = max(1, int(repeats * seconds / elapsed))
    fastest = min(timed(repeats) for _ in range(3))
    return units * threads * repeats / fastest


def measure(request, clock):
    import numba
    import numpy as np

    threads, seconds = request["threads"], min(clock.seconds, 0.5)
    compiled = numba.njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz"})

    @compiled
    def multiply_add(x, a, b, repeats):
        for _ in range(repeats):
            for i in range(x.size):
                value = x[i]
                # Short chains: the processor overlaps enough of them to hide the latency of each.
                for _ in range(8):
                    value = value * a + b
                x[i] = value

    @compiled
    def divide(x, a, repeats):
        for _ in range(repeats):
            for i in range(x.size):
                value = x[i]
                for _ in range(2):
                    value = a / value
                x[i] = value

    small = [np.full(1024, 1.7, np.float32) for _ in range(threads)]
    a, b = np.float32(0.7), np.float32(0.3)
    multiply_add(small[0], a, b, 1)
    divide(small[0], np.float32(1.3), 1)
    return {
        "copy_bytes_per_second": copy_rate(threads, seconds, request["working_set"]),
        "fma_per_second": _rate(threads, seconds, lambda k, n: multiply_add(small[k], a, b, n), 1024 * 8),
        "div_per_second": _rate(threads, seconds, lambda k, n: divide(small[k], np.float32(1.3), n), 1024 * 2),
    }


def copy_rate(threads, seconds, working_set):
    """Bytes read and written per second by `threads` copies of arrays that take up `working_set` bytes together."""
    import numba
    import numpy as np

    @numba.njit(nogil=True)
    def copy(target, source, repeats):
        for _ in range(repeats):
            for i in range(source.size):
                target[i] = source[i]

    half = max(64, working_set // 2 // 4 // threads)
    sources = [np.ones(half, np.float32) for _ in range(threads)]
    targets = [np.ones(half, np.float32) for _ in range(threads)]
    copy(targets[0], sources[0], 1)
    return _rate(threads, seconds, lambda k, n: copy(targets[k], sources[k], n), 2 * 4 * half)


def sgemm_rate(threads, seconds, size=512):
    """Flops per second of PyTorch's float32 matrix products, each on one thread, `threads` of them at once."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    parts = [[torch.ones(size, size) for _ in range(3)] for _ in range(threads)]

    def work(k, repeats):
        a, b, out = parts[k]
        for _ in range(repeats):
            torch.mm(a, b, out=out)

    work(0, 1)
    found = _rate(threads, seconds, work, 2 * size**3)
    torch.set_num_threads(before)
    return found
