"""The house rules that no single module can check: import arrows, light start-up, declared dependencies, pinned versions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("gpuenvs", "learners", "cli", "benchmarks")
# Package -> what it must never import, not even inside of a function.
FORBIDDEN = {
    "gpuenvs": {"torch", "learners", "cli", "benchmarks"},
    "learners": {"cli", "benchmarks"},
    "cli": set(),
    "benchmarks": set(),
}
# Import name -> distribution, where they differ.
DISTRIBUTIONS = {
    "ale_py": "ale-py",
    "cv2": "opencv-python-headless",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "pygame": "pygame-ce",
    "stable_baselines3": "stable-baselines3",
}
# Modules that a worker finds beside itself (benchmarks/workers/__main__.py).
WORKER_MODULES = {"actions", "cuda_floor", "machine_floor", "timing"}


def _sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level name) of every absolute import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]


def _name(requirement: str) -> str:
    """The distribution that a requirement line asks for."""
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()


def _declared(*extras: str) -> set[str]:
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]
    return {_name(line) for line in lines}


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_down(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _sources(package)
        for line, name in _imports(path)
        if name in FORBIDDEN[package]
    ]
    assert _sources(package)
    assert not wrong


def test_only_bench_reaches_into_benchmarks() -> None:
    users = {path.name for path in _sources("cli") for _, name in _imports(path) if name == "benchmarks"}
    assert users <= {"bench.py"}


def test_workers_import_nothing_of_the_project_but_their_own_contender() -> None:
    """Peers' workers run under an interpreter that has neither gpurl nor its dependencies."""
    for path in _sources("benchmarks/workers"):
        if not path.name.startswith("gpurl_"):
            assert not {name for _, name in _imports(path)} & set(PACKAGES), path.name


def test_gpuenvs_works_without_cuda_packages_and_torch() -> None:
    """Blocks the optional packages, then makes and steps an environment."""
    code = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
absent = ("torch", "cupy", "numba_cuda", "numba.cuda", "cuda", "learners", "cli")
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if any(name == top or name.startswith(top + ".") for top in absent):
            return None
        return super().find_spec(name, path, target)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Finder]
import numpy as np
import gpuenvs
env = gpuenvs.make("CartPole-v1", 3, device="auto", seed=0)
env.reset(seed=0)
obs, reward, *_ = env.step(np.array([0, 1, 0], np.int32))
assert env.device == "cpu" and obs.shape == (3, 4) and reward.tolist() == [1.0, 1.0, 1.0]
print("ok")
"""
    assert _python(code).strip() == "ok"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["envs"]])
def test_the_command_line_starts_light(arguments: list[str]) -> None:
    code = f"""
import sys
from cli.app import run
code = run({arguments!r})
heavy = [name for name in ("torch", "cupy", "numba.cuda", "matplotlib", "tensorboard") if name in sys.modules]
assert code == 0, code
assert not heavy, heavy
"""
    assert _python(code)


def test_every_import_is_declared() -> None:
    declared = _declared("cuda12", "render", "watch", "dev", "peers") | {"cupy"}
    known = {*sys.stdlib_module_names, *PACKAGES, *WORKER_MODULES}
    unknown = {
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for package in PACKAGES
        for path in _sources(package)
        for line, name in _imports(path)
        if name not in known and DISTRIBUTIONS.get(name, name).lower() not in declared
    }
    assert not unknown


def test_every_dependency_is_used() -> None:
    used = {
        DISTRIBUTIONS.get(name, name)
        for package in PACKAGES
        for path in _sources(package)
        for _, name in _imports(path)
    }
    assert not _declared() - used


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    left_open = {"nvidia-cuda-nvrtc"}  # CUDA builds of torch pin their own
    assert _declared("render", "dev", "docs", "peers") - set(pins) == left_open
    assert pins["torch"] == "2.13.0"


def test_one_version() -> None:
    import gpuenvs

    assert gpuenvs.__version__ == PROJECT["version"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


def _commands(document: str) -> list[str]:
    """Lines of the ```sh blocks of a document, without comments and prompts."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documented_commands_exist(document: str) -> None:
    from cli.app import COMMANDS

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = _commands(document)
    assert found
    for line in found:
        words = line.split()
        if words[0] == "make":
            assert words[1] in targets, line
        if words[0].endswith("gpurl") and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in COMMANDS, line


def test_ci_runs_what_the_readme_says() -> None:
    ci = {line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.strip().startswith("make")}
    readme = set(_commands("README.md")) | set(_commands("CONTRIBUTING.md"))
    assert ci
    assert ci <= readme


def test_no_registry_is_named() -> None:
    """Packages come from whatever index the user's pip is set up with."""
    named = re.compile(r"pypi\.org|pythonhosted|download\.pytorch|--(extra-)?index-url|conda\.anaconda")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    files = [ROOT / name for name in tracked if name != "tests/test_repo.py"]
    if not files:
        pytest.skip("not a git checkout")
    texts = [path for path in files if path.is_file() and path.suffix not in {".png", ".gif", ".mp4"}]
    assert not [str(path.relative_to(ROOT)) for path in texts if named.search(path.read_text(errors="replace"))]
