"""Environments from files, modules and interpreters: found, told apart, compiled anew when they change, or refused."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuenvs
from gpuenvs import loading
from gpuenvs.errors import DuplicateEnvError, GpurlError, LoadError, SpecError, UnknownEnvError
from tests.gpuenvs.user_files import ENV, TRACED, write

ROOT = Path(__file__).parents[2]


def first_step(spec):
    """What x is after one step with action 1."""
    with gpuenvs.make(spec, 3, device="cpu") as env:
        env.reset(seed=0)
        env.step(np.ones((3, 1), np.float32))
        return env.obs[:, 0].tolist()[0]


RUN = """
import sys
import numpy as np
import gpuenvs
for reference in sys.argv[1:]:
    env = gpuenvs.make(reference, 3, device="cpu")
    env.reset(seed=0)
    env.step(np.ones((3, 1), np.float32))
    kernel = env.backend.kernel("step_kernel")
    hits = sum(kernel.stats.cache_hits.values()) if hasattr(kernel, "stats") else -1
    print(float(env.obs[0, 0]), hits)
"""


def run(cache, *references, cwd=ROOT):
    """(x after a step, whether the kernel came from disk) of each, in a process of its own."""
    env = {**os.environ, "GPURL_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, *map(str, references)]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(float(line.split()[0]), int(line.split()[1])) for line in done.stdout.splitlines()]


# --- found -----------------------------------------------------------------------------------------------------------


def test_a_file_is_loaded_once_by_any_of_its_names(tmp_path, monkeypatch):
    file = write(tmp_path)
    spec = gpuenvs.get(f"{file}:SPEC")
    assert spec.id == "Drift-v0"
    assert gpuenvs.get(str(file)) is spec
    assert gpuenvs.get(f"{file}:build") is spec
    monkeypatch.chdir(tmp_path)
    assert gpuenvs.get("drift.py:SPEC") is spec
    assert loading.canonical("drift.py:SPEC") == f"{file}:SPEC"
    assert loading.canonical("CartPole-v1") == "CartPole-v1"
    assert not list(tmp_path.rglob("*.pyc"))
    assert first_step(spec) == 2.0


def test_a_module_is_found_by_its_name(tmp_path, monkeypatch):
    write(tmp_path / "drifting")
    (tmp_path / "drifting" / "__init__.py").write_text("")
    text = ENV.replace("import constants", "from drifting import constants").replace("helper", "drifting.helper")
    (tmp_path / "drifting" / "drift.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert first_step("drifting.drift:SPEC") == 2.0
    with pytest.raises(UnknownEnvError, match=r"no module 'drifting\.drit'"):
        gpuenvs.get("drifting.drit:SPEC")


def test_a_function_makes_one_spec(tmp_path):
    file = write(tmp_path)
    file.write_text(ENV + "\n\ndef fresh():\n    import dataclasses\n    return dataclasses.replace(SPEC)\n")
    assert gpuenvs.get(f"{file}:fresh") is gpuenvs.get(f"{file}:fresh")
    assert gpuenvs.get(f"{file}:fresh") is not gpuenvs.get(f"{file}:SPEC")


def test_files_of_one_name_in_two_folders_keep_apart(tmp_path):
    """The files beside them too, which both import under the same names."""
    one, other = write(tmp_path / "one", gain=2.0), write(tmp_path / "other", gain=5.0, factor=3.0)
    assert first_step(f"{one}:SPEC") == 2.0
    assert first_step(f"{other}:SPEC") == 15.0
    assert first_step(f"{one}:SPEC") == 2.0


def forget(monkeypatch):
    """No module of these names now, and none that the test imports afterwards."""
    for name in ("constants", "helper"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


def values(file):
    """What a file's functions see of the files beside it: (GAIN of constants.py, factor of helper.py)."""
    scope = gpuenvs.get(f"{file}:SPEC").step.py_func.__globals__
    return scope["constants"].GAIN, float(scope["push"].py_func(1.0))


def test_modules_of_the_program_and_of_other_folders_are_not_taken_for_those_beside_the_file(tmp_path, monkeypatch):
    """And the program keeps its own: the order of imports and what is in the import path make no difference."""
    write(tmp_path / "program", gain=1.5)
    monkeypatch.syspath_prepend(str(tmp_path / "program"))
    forget(monkeypatch)
    import constants

    path = list(sys.path)
    assert values(write(tmp_path / "one", gain=4.0, factor=5.0)) == (4.0, 5.0)
    assert values(write(tmp_path / "other", gain=6.0, factor=7.0)) == (6.0, 7.0)
    import helper

    assert (constants.GAIN, float(helper.push.py_func(1.0))) == (1.5, 1.0)
    assert sys.path == path
    shared = tmp_path / "program" / "drift.py"  # the program's own environment uses what the program has
    assert gpuenvs.get(f"{shared}:SPEC").step.py_func.__globals__["constants"] is constants


def test_a_module_that_only_another_folder_has_is_not_found(tmp_path, monkeypatch):
    forget(monkeypatch)
    assert values(write(tmp_path / "one")) == (2.0, 1.0)
    lonely = write(tmp_path / "other")
    (lonely.parent / "constants.py").unlink()
    assert "No module named 'constants'" in refusal(LoadError, f"{lonely}:SPEC")


def test_an_import_inside_of_a_function_finds_the_file_beside_it_later(tmp_path):
    late = (
        "def late():\n    import constants\n    from package import inner\n\n    return constants.GAIN, inner.VALUE\n"
    )
    for folder, gain in (("one", 2.0), ("other", 3.0)):
        file = write(tmp_path / folder, gain=gain)
        file.write_text(f"{late}\n\nSPEC = 1\n")
        (tmp_path / folder / "package").mkdir()
        (tmp_path / folder / "package" / "__init__.py").write_text("from .inner import VALUE\n")
        (tmp_path / folder / "package" / "inner.py").write_text("import constants\n\nVALUE = 10 * constants.GAIN\n")
    functions = [loading.load_object(f"{tmp_path / folder / 'drift.py'}:late") for folder in ("one", "other")]
    assert [function() for function in functions] == [(2.0, 20.0), (3.0, 30.0)]


def test_bytecode_of_the_same_second_and_size_is_not_used(tmp_path):
    """Python tells a source from the one its bytecode was made of by size and whole seconds alone."""
    file = write(tmp_path)
    py_compile.compile(str(tmp_path / "constants.py"), doraise=True)
    stamp = (tmp_path / "constants.py").stat()
    write(tmp_path, gain=9.0)
    os.utime(tmp_path / "constants.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert values(file) == (9.0, 1.0)


def test_after_an_error_the_files_beside_it_are_read_again(tmp_path):
    file = write(tmp_path)
    (tmp_path / "helper.py").write_text("def pull(x):\n    return x\n")
    assert "cannot import name 'push'" in refusal(LoadError, f"{file}:SPEC")
    assert values(write(tmp_path, factor=8.0)) == (2.0, 8.0)


# --- compiled anew ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [ENV, TRACED], ids=["compiled", "traced"])
def test_an_edit_takes_effect_in_the_next_run(tmp_path, env):
    """Of a constant and of a function in other files; what was there before is found again."""
    cache, hit = tmp_path / "cache", 1 if env is ENV else -1
    file = write(tmp_path, env=env)
    assert run(cache, f"{file}:SPEC") == [(2.0, min(hit, 0))]
    kept = set(cache.iterdir())
    assert kept
    assert run(cache, f"{file}:SPEC") == [(2.0, hit)]
    assert set(cache.iterdir()) == kept
    write(tmp_path, gain=3.0, env=env)
    assert run(cache, f"{file}:SPEC") == [(3.0, min(hit, 0))]
    write(tmp_path, gain=3.0, factor=4.0, env=env)
    assert run(cache, f"{file}:SPEC") == [(12.0, min(hit, 0))]
    write(tmp_path, env=env)
    assert run(cache, f"{file}:SPEC") == [(2.0, hit)]


def test_a_value_in_a_closure_and_a_constant_of_the_file_take_effect(tmp_path):
    cache, file = tmp_path / "cache", write(tmp_path)
    assert run(cache, file) == [(2.0, 0)]
    file.write_text(ENV.replace("make_bias(0.0)", "make_bias(0.5)"))
    assert run(cache, file) == [(2.5, 0)]


def test_two_environments_with_equal_names_keep_their_own_constants_through_the_disk(tmp_path):
    cache = tmp_path / "cache"
    files = [write(tmp_path / name, gain=gain) for name, gain in (("a", 2.0), ("b", 7.0))]
    assert run(cache, *files) == [(2.0, 0), (7.0, 0)]
    assert run(cache, *reversed(files)) == [(7.0, 1), (2.0, 1)]


def test_an_environment_typed_into_an_interpreter_works(tmp_path):
    """Its functions have no file that could be read."""
    write(tmp_path)
    code = ENV + "\nimport gpuenvs\nenv = gpuenvs.make(SPEC, 2, device='cpu')\nobs, info = env.reset(seed=0)\n"
    code += "obs, *rest = env.step(np.ones((2, 1), np.float32))\nprint(float(obs[0, 0]))\n"
    env = {**os.environ, "GPURL_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for text in (code, code.replace("make_bias(0.0)", "make_bias(1.0)"), code):
        done = subprocess.run(
            [sys.executable, "-"], input=text, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == ("3.0" if "make_bias(1.0)" in text else "2.0"), done.stderr[-2000:]


def test_a_notebook_cell_that_is_run_again_counts_anew(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget(monkeypatch)
    names = {"__name__": "__main__"}
    for bias, expected in ((0.0, 2.0), (1.5, 3.5)):
        exec(compile(ENV.replace("make_bias(0.0)", f"make_bias({bias})"), "<cell>", "exec"), names)
        assert first_step(names["SPEC"]) == expected


# --- refused ---------------------------------------------------------------------------------------------------------


def refusal(kind, reference):
    with pytest.raises(kind) as caught:
        gpuenvs.get(reference)
    assert isinstance(caught.value, GpurlError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_there_is_named_with_what_is_near(tmp_path):
    file = write(tmp_path)
    assert "did you mean drift.py" in refusal(UnknownEnvError, f"{tmp_path}/drif.py:SPEC")
    assert "no file" in refusal(UnknownEnvError, "/nowhere/at_all.py:SPEC")
    said = refusal(UnknownEnvError, f"{file}:SPECK")
    assert "has no 'SPECK'" in said
    assert "did you mean SPEC" in said
    assert "no module 'gpuenvss.classic'" in refusal(UnknownEnvError, "gpuenvss.classic:SPEC")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import not_there_at_all", "ModuleNotFoundError"),
        ("print('x'", "line 3"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_file_that_raises_is_refused_with_its_line(tmp_path, line, words):
    file = tmp_path / "broken.py"
    file.write_text(f"x = 1\n\n{line}\n")
    said = refusal(LoadError, f"{file}:SPEC")
    assert words in said
    assert f"{file}, line 3" in said
    file.write_text("SPEC = 3\n")  # repaired, as far as it goes: it is read again
    assert "must be an EnvSpec" in refusal(SpecError, f"{file}:SPEC")


def test_a_spec_that_does_not_fit_is_refused_with_its_line(tmp_path):
    file = write(tmp_path)
    file.write_text(ENV.replace("step=step", "step=observe"))
    said = refusal(SpecError, f"{file}:SPEC")
    line = ENV.splitlines().index("SPEC = EnvSpec(") + 1
    assert "Drift-v0: step must take 3 arguments" in said
    assert f"{file}, line {line}" in said


def test_other_things_than_specs_are_refused(tmp_path):
    file = write(tmp_path)
    extra = "\n\ndef takes(x):\n    return SPEC\n\n\nimport gymnasium\n\n\nclass Own(gymnasium.Env):\n    pass\n"
    file.write_text(ENV + extra)
    assert "--env-backend host" in refusal(SpecError, f"{file}:Own")
    assert "without arguments" in refusal(SpecError, f"{file}:takes")
    assert "must be an EnvSpec" in refusal(SpecError, f"{file}:State")
    assert "must be an EnvSpec" in refusal(SpecError, f"{file}:constants")


def test_a_file_with_several_environments_asks_which(tmp_path):
    file = write(tmp_path)
    file.write_text(ENV + "\nimport dataclasses\nSECOND = dataclasses.replace(SPEC, id='Drift-v1')\n")
    assert "SPEC, SECOND" in refusal(UnknownEnvError, str(file))
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert "the name of an EnvSpec" in refusal(UnknownEnvError, f"{tmp_path}/empty.py")


def test_the_id_of_a_built_in_environment_is_refused(tmp_path):
    file = write(tmp_path)
    file.write_text(ENV.replace("Drift-v0", "CartPole-v1"))
    assert "'CartPole-v1' is a built-in" in refusal(DuplicateEnvError, f"{file}:SPEC")


def test_everything_in_the_api_is_there():
    missing = [name for name in gpuenvs.__all__ if not hasattr(gpuenvs, name)]
    assert missing == []
    from gpuenvs import rng, scalar

    assert gpuenvs.njit is scalar.njit
    assert gpuenvs.uniform is rng.uniform
    assert callable(gpuenvs.check)
