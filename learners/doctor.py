"""What `gpurl doctor` finds: one Finding per thing that matters, each with what to do if it is missing."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

from learners import nvidia
from learners.system import allowed_cores, version_of

OK, NOTE, MISSING = "ok", "note", "missing"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `status` is ok, note (worth knowing) or missing (something is not there)."""

    item: str
    status: str
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Every finding, in reading order. Never raises: a probe that breaks becomes a finding itself."""
    driver = nvidia.probe()
    probes: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("python", _python),
        ("cores", _cores),
        ("cpu", _cpu),
        ("numba", _numba),
        ("torch", lambda: _torch(driver)),
        ("gymnasium", lambda: [_package("gymnasium", "pip install gymnasium")]),
        ("gpu", lambda: _gpus(driver)),
        ("peer access", lambda: _peers(driver)),
        ("numba-cuda", lambda: [_numba_cuda(driver)]),
        ("cupy", lambda: [_cupy(driver)]),
        ("render", _render),
        ("tensorboard", lambda: [_package("tensorboard", "pip install tensorboard")]),
    ]
    findings = []
    for item, probe in probes:
        try:
            findings += probe()
        except Exception as error:  # a broken installation is just what a doctor is asked about
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            findings.append(Finding(item, MISSING, f"broken: {reason[:200]}", f"reinstall {item}"))
    return findings


def _python() -> list[Finding]:
    good = sys.version_info >= (3, 11)
    advice = "" if good else "gpurl needs Python 3.11 or newer"
    return [
        Finding("python", OK if good else MISSING, platform.python_version(), advice),
        Finding("system", OK, f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]


def _cores() -> list[Finding]:
    allowed, total = allowed_cores(), os.cpu_count() or 1
    advice = "" if allowed == total else "this process may not use the other cores (CPU mask or container quota)"
    return [Finding("cores", OK if allowed == total else NOTE, f"{allowed} of {total} allowed", advice)]


def _cpu() -> list[Finding]:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    widths = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("neon", "NEON"), ("sse2", "SSE2"))
    simd = next((label for key, label in widths if features.get(key)), "none known")
    return [Finding("cpu", OK, f"{binding.get_host_cpu_name()} (as LLVM names it), SIMD {simd}")]


def _numba() -> list[Finding]:
    finding = _package("numba", "pip install numba")
    threads = (
        f"up to {allowed_cores()}, gpurl's own (row ranges of kernels without the GIL); "
        "numba's threading layers are not used"
    )
    return [finding, Finding("env threads", OK, threads)]


def _torch(driver: nvidia.Driver) -> list[Finding]:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU-only"
    found = f"{torch.__version__}, {build} build, {torch.get_num_threads()} threads"
    if torch.version.cuda is None and driver.gpus:
        return [Finding("torch", NOTE, found, "there is a GPU: install a CUDA build of torch to learn on it")]
    if torch.version.cuda and driver.gpus and not torch.cuda.is_available():
        return [Finding("torch", NOTE, found, "torch cannot use the GPU: its CUDA is newer than the driver's")]
    return [Finding("torch", OK, found)]


def _gpus(driver: nvidia.Driver) -> list[Finding]:
    if not driver.gpus:
        advice = "only --device cuda needs one; install the NVIDIA driver if this machine has a GPU"
        return [Finding("gpu", MISSING, driver.problem or "none", advice)]
    findings = [Finding("driver", OK, driver.version or "unknown")]
    for gpu in driver.gpus:
        major, minor = gpu.compute_capability
        text = f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, sm_{major}{minor}"
        findings.append(Finding(f"gpu cuda:{gpu.index}", OK, text))
    return findings


def _peers(driver: nvidia.Driver) -> list[Finding]:
    if len(driver.gpus) < 2:
        count = "one GPU" if driver.gpus else "no GPU"
        return [Finding("peer access", NOTE, f"{count}; peer access needs two")]
    count = len(driver.gpus)
    everyone = len(driver.peers) == count * (count - 1)
    pairs = ", ".join(f"{a}->{b}" for a, b in sorted(driver.peers)) or "none"
    advice = "" if everyone else "transfers between the other pairs go through pinned host memory"
    return [Finding("peer access", OK if everyone else NOTE, "all pairs" if everyone else pairs, advice)]


def _numba_cuda(driver: nvidia.Driver) -> Finding:
    found = version_of("numba-cuda")
    if found:
        return Finding("numba-cuda", OK, found)
    return Finding("numba-cuda", MISSING, "not installed", f"for --device cuda: pip install 'gpurl[{_extra(driver)}]'")


def _cupy(driver: nvidia.Driver) -> Finding:
    names = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")
    installed = [(name, version) for name in names if (version := version_of(name))]
    if not installed:
        return Finding("cupy", MISSING, "not installed", f"for --device cuda: pip install 'gpurl[{_extra(driver)}]'")
    text = ", ".join(f"{name} {version}" for name, version in installed)
    if len(installed) > 1:
        return Finding("cupy", NOTE, text, "several cupy packages shadow one another: uninstall all but one")
    if driver.gpus:
        importlib.import_module("cupy")  # a wheel for another CUDA fails here; examine() reports it
    return Finding("cupy", OK, text)


def _extra(driver: nvidia.Driver) -> str:
    return "cuda12" if driver.version and driver.version.startswith("CUDA 12") else "cuda13"


def _render() -> list[Finding]:
    parts = {
        "pygame": ("pygame-ce", "pygame"),
        "imageio": ("imageio",),
        "imageio-ffmpeg": ("imageio-ffmpeg",),
    }
    found, missing = [], []
    for label, names in parts.items():
        version = next((version for name in names if (version := version_of(name))), None)
        (found if version else missing).append(f"{label} {version}" if version else label)
    if missing:
        advice = "for `gpurl play`: pip install 'gpurl[render]'"
        return [Finding("render", MISSING, f"without {', '.join(missing)}", advice)]
    return [Finding("render", OK, ", ".join(found))]


def _package(name: str, advice: str) -> Finding:
    found = version_of(name)
    return Finding(name, OK, found) if found else Finding(name, MISSING, "not installed", advice)
