"""What `CudaRuntime` asks of torch and cupy, on the recorded machine."""

import pytest
import torch

from gpuenvs.errors import DeviceError
from gpuenvs.runtime import cuda as env_cuda
from learners.devices import HOST, CudaRuntime, cuda, gibibytes
from tests.protocol.recorder import Recorder


@pytest.fixture
def machine():
    with Recorder(gpus=2) as machine:
        yield machine


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_cuda_has_no_devices():
    assert CudaRuntime().device_count() == 0


def test_streams_are_of_their_device_and_made_current_there_only(machine):
    runtime = CudaRuntime()
    before = [runtime.current_stream(cuda(k)) for k in (0, 1)]
    stream = runtime.stream(cuda(1))
    with runtime.use(stream):
        assert runtime.current_stream(cuda(1)) == stream != before[1]
        assert runtime.current_stream(cuda(0)) == before[0]
        assert machine.current_device == 1
    assert [runtime.current_stream(cuda(k)) for k in (0, 1)] == before
    assert machine.current_device == 0


def test_memory_of_the_host_is_pinned(machine):
    runtime = CudaRuntime()
    host, device = runtime.buffer(16, HOST), runtime.buffer(16, cuda(1))
    assert machine.look_up(host)[0].pinned
    assert host.device == HOST and device.device == cuda(1)
    assert not host.any() and not device.any()


def test_a_copy_between_devices_ties_up_the_two_streams_it_was_given_and_no_other(machine):
    runtime = CudaRuntime()
    source, target = runtime.buffer(16, cuda(0)), runtime.buffer(16, cuda(1))
    leaving, coming = runtime.stream(cuda(0)), runtime.stream(cuda(1))
    made = runtime.event(cuda(0))
    runtime.record(made, runtime.current_stream(cuda(0)))
    runtime.wait(leaving, made)
    runtime.record(made := runtime.event(cuda(1)), runtime.current_stream(cuda(1)))
    runtime.wait(leaving, made)
    runtime.copy(target, source, [leaving, coming])
    assert machine.copies == [(0, 1, 16)]
    assert machine.checker.violations == []
    assert machine.host_waits == []
    target += 1  # on the current stream of cuda:1, which knows nothing of the copy
    assert any("race" in line for line in machine.checker.violations)


def test_a_view_from_another_device_is_the_same_memory(machine):
    runtime = CudaRuntime()
    buffer = runtime.buffer(16, cuda(1))
    view = runtime.view_from(cuda(0), buffer)
    assert view.device == cuda(0) and view.data_ptr() == buffer.data_ptr()
    assert runtime.view_from(cuda(1), buffer) is buffer
    runtime.open_link(cuda(0), cuda(1))
    runtime.open_link(cuda(0), cuda(0))  # nothing to do
    assert machine.open_links == {(0, 1)}
    view += 3
    assert not any("wrong device" in line for line in machine.checker.violations)
    assert (torch.tensor([3] * 16, dtype=torch.uint8) == buffer.cpu()).all()


def test_a_link_that_cannot_be_opened_is_one_clear_line():
    with Recorder(gpus=2, linked=False):
        assert not CudaRuntime().reaches(cuda(0), cuda(1))
        with pytest.raises(DeviceError, match=r"cuda:0 cannot reach cuda:1 directly .*; use --transfer staged"):
            CudaRuntime().open_link(cuda(0), cuda(1))


def test_a_cupy_for_another_driver_is_one_clear_line(monkeypatch):
    import sys
    import types

    def refuse():
        raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")

    runtime = types.SimpleNamespace(getDeviceCount=refuse)
    fake = types.ModuleType("cupy")
    fake.cuda = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(env_cuda.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(env_cuda, "simulated", lambda: False)
    problem = env_cuda.cuda_problem(0)
    assert problem is not None and "\n" not in problem
    assert problem.startswith("cupy is built for a newer CUDA than the driver supports") and "gpurl[cuda12]" in problem


@pytest.mark.parametrize(
    "nbytes, text", [(0, "1 MiB"), (12 << 20, "12 MiB"), (1 << 30, "1.0 GiB"), (5 << 29, "2.5 GiB")]
)
def test_sizes_for_people(nbytes, text):
    assert gibibytes(nbytes) == text
