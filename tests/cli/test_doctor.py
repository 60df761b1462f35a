import ctypes
import sys

import pytest

from learners import doctor, nvidia
from learners.nvidia import Driver, Gpu

CARD = Gpu(0, "H200", 141 * 2**30, (9, 0))


def test_the_table_and_exit_code(gpurl):
    result = gpurl("doctor")
    assert result.code == 0
    for item in ("python", "cores", "cpu", "env threads", "torch", "gymnasium", "peer access", "numba-cuda", "cupy"):
        assert item in result.out


def test_json_says_what_to_do_about_everything_missing(gpurl):
    findings = gpurl("doctor", "--json").json
    assert {"item", "status", "found", "advice"} == set(findings[0])
    assert all(finding["advice"] for finding in findings if finding["status"] == "missing")


def by_item(monkeypatch, driver):
    monkeypatch.setattr(nvidia, "probe", lambda: driver)
    return {finding.item: finding for finding in doctor.examine()}


def test_no_gpu(monkeypatch):
    found = by_item(monkeypatch, Driver(problem="no NVIDIA driver (libcuda is not installed)"))
    assert found["gpu"].status == doctor.MISSING and "--device cuda" in found["gpu"].advice
    assert found["peer access"].status == doctor.NOTE


def test_gpus_with_peer_access_one_way(monkeypatch):
    driver = Driver("CUDA 12.8", (CARD, Gpu(1, "H200", 141 * 2**30, (9, 0))), frozenset({(0, 1)}))
    found = by_item(monkeypatch, driver)
    assert found["gpu cuda:1"].found == "H200, 141 GiB, sm_90"
    assert found["peer access"].status == doctor.NOTE and "0->1" in found["peer access"].found
    assert "gpurl[cuda12]" in (found["cupy"].advice or "gpurl[cuda12]")


def test_all_pairs(monkeypatch):
    driver = Driver("CUDA 13.0", (CARD, Gpu(1, "H200", 1, (9, 0))), frozenset({(0, 1), (1, 0)}))
    assert by_item(monkeypatch, driver)["peer access"].status == doctor.OK


def test_a_gpu_with_a_cpu_build_of_torch_is_noted(monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    found = by_item(monkeypatch, Driver("CUDA 13.0", (CARD,)))
    assert found["torch"].status == doctor.NOTE and "CUDA build of torch" in found["torch"].advice


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(doctor, "version_of", lambda name: None)
    found = {finding.item: finding for finding in doctor.examine()}
    assert "gpurl[render]" in found["render"].advice and "pygame" in found["render"].found
    assert found["numba-cuda"].status == doctor.MISSING


def test_several_cupy_packages_are_noted(monkeypatch):
    monkeypatch.setattr(doctor, "version_of", lambda name: "1.0" if name.startswith("cupy") else None)
    found = {finding.item: finding for finding in doctor.examine()}
    assert found["cupy"].status == doctor.NOTE and "uninstall all but one" in found["cupy"].advice


def test_a_broken_package_is_a_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises ImportError
    found = {finding.item: finding for finding in doctor.examine()}
    assert found["torch"].status == doctor.MISSING and found["torch"].found.startswith("broken: ")
    assert "gymnasium" in found  # the rest is examined all the same


def test_without_a_driver_the_probe_says_so(monkeypatch):
    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert nvidia.probe() == Driver(problem="no NVIDIA driver (libcuda is not installed)")


class FakeLibrary:
    """libcuda with two devices, the second unable to reach the first."""

    def __init__(self, code=0):
        self.code = code

    def cuInit(self, flags):
        return self.code

    def cuGetErrorString(self, code, text):
        text._obj.value = b"no CUDA-capable device is detected"

    def cuDriverGetVersion(self, out):
        out._obj.value = 12080

    def cuDeviceGetCount(self, out):
        out._obj.value = 2

    def cuDeviceGet(self, out, index):
        out._obj.value = index

    def cuDeviceGetName(self, buffer, size, handle):
        buffer.value = f"card {handle.value}".encode()

    def cuDeviceTotalMem_v2(self, out, handle):
        out._obj.value = 2**30

    def cuDeviceGetAttribute(self, out, which, handle):
        out._obj.value = {75: 9, 76: 0}[which]

    def cuDeviceCanAccessPeer(self, out, a, b):
        out._obj.value = int(a.value == 0)


@pytest.mark.parametrize("code", [0, 100])
def test_the_probe_asks_the_driver(monkeypatch, code):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeLibrary(code))
    driver = nvidia.probe()
    if code:
        assert driver.problem == "the NVIDIA driver refuses to start (no CUDA-capable device is detected)"
    else:
        assert driver.version == "CUDA 12.8" and driver.peers == {(0, 1)}
        assert driver.gpus == (Gpu(0, "card 0", 2**30, (9, 0)), Gpu(1, "card 1", 2**30, (9, 0)))
