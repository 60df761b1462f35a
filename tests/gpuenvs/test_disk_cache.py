"""Compiled kernels on disk: found when nothing changed, never when something did, and harmless when broken."""

import os
import subprocess
import sys
import types

import numba
import pytest

from gpuenvs.runtime import disk_cache
from gpuenvs.runtime.disk_cache import cached, fingerprint
from gpuenvs.runtime.generated import define

PROGRAM = """
import sys
sys.path.insert(0, {path!r})
import numba
from gpuenvs.runtime.disk_cache import cached
import formula
kernel = cached(numba.njit(formula.area))
value = kernel(2.0)
hits = kernel.stats.cache_hits
print(value, sum(hits.values()))
"""


def run_program(tmp_path, cache, **environment):
    code = PROGRAM.format(path=str(tmp_path))
    env = {**os.environ, "GPURL_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    value, hits = done.stdout.split()
    return float(value), int(hits)


def write_formula(tmp_path, factor):
    (tmp_path / "constants.py").write_text(f"FACTOR = {factor}\n")
    (tmp_path / "helper.py").write_text(
        "import numba\nimport constants\nfrom constants import FACTOR\n@numba.njit\ndef scaled(x):\n    return FACTOR * x\n"
    )
    (tmp_path / "formula.py").write_text("from helper import scaled\ndef area(x):\n    return scaled(x) * x\n")


def test_code_is_found_again_and_a_constant_in_another_file_counts(tmp_path):
    cache = tmp_path / "cache"
    write_formula(tmp_path, 3.0)
    assert run_program(tmp_path, cache) == (12.0, 0)
    assert run_program(tmp_path, cache, PYTHONHASHSEED="7") == (12.0, 1)
    write_formula(tmp_path, 5.0)
    assert run_program(tmp_path, cache) == (20.0, 0)
    write_formula(tmp_path, 3.0)
    assert run_program(tmp_path, cache) == (12.0, 1)


def test_a_broken_entry_is_compiled_anew_and_replaced(tmp_path):
    cache = tmp_path / "cache"
    write_formula(tmp_path, 3.0)
    run_program(tmp_path, cache)
    (entry,) = cache.glob("*.kernel")
    whole = entry.read_bytes()
    for broken in (b"", whole[:100], whole[:-1] + bytes([whole[-1] ^ 1])):
        entry.write_bytes(broken)
        assert run_program(tmp_path, cache) == (12.0, 0)
        assert run_program(tmp_path, cache) == (12.0, 1)


def test_it_can_be_turned_off_and_an_impossible_directory_does_no_harm(tmp_path):
    write_formula(tmp_path, 3.0)
    cache = tmp_path / "cache"
    assert run_program(tmp_path, cache, GPURL_CACHE="0") == (12.0, 0)
    assert not cache.exists()
    (tmp_path / "file").write_text("in the way")
    assert run_program(tmp_path, tmp_path / "file" / "cache") == (12.0, 0)


def make(source, **names):
    return define("f", source, names, "test")


def test_fingerprints_follow_code_constants_closures_and_helpers():
    base = make("def f(x):\n    return x + k\n", k=1)
    assert fingerprint(base) == fingerprint(make("def f(x):\n    return x + k\n", k=1))
    others = [
        make("def f(x):\n    return x + k\n", k=2),
        make("def f(x):\n    return x + k\n", k=1.0),
        make("def f(x):\n    return x - k\n", k=1),
        make("def f(x):\n    return x + 1\n"),
    ]
    assert len({fingerprint(f) for f in [base, *others]}) == 5

    def closure(factor):
        return make("def f(x):\n    return g(x)\n", g=numba.njit(lambda x: factor * x))

    assert fingerprint(closure(2)) == fingerprint(closure(2))
    assert fingerprint(closure(2)) != fingerprint(closure(3))


def test_what_cannot_be_hashed_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GPURL_CACHE_DIR", str(tmp_path))
    function = make("def f(x):\n    if x > 1e9:\n        g.note()\n    return x\n", g=object())
    with pytest.raises(Exception, match="object"):
        fingerprint(function)
    assert cached(numba.njit(make("def f(x):\n    return x\n")))(3) == 3
    assert len(list(tmp_path.glob("*.kernel"))) == 1


# `inner` is too long to be inlined, so that `outer` calls it by its symbol.
TWINS = """
import sys
import numba
from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
for factor in sys.argv[1:]:
    lines = [f"    y = y * y - x / (y + {k}.5)\\n    if y > 1e3:\\n        y = y - 1e3\\n" for k in range(60)]
    text = "def inner(x):\\n    y = x\\n" + "".join(lines) + f"    return {factor} + (1.0 if y == 12345.678 else 0.0)\\n"
    inner = numba.njit(define("inner", text, {}, "twin"))
    text = "def outer(x):\\n    return inner(x) + inner(x + 1)\\n"
    outer = cached(numba.njit(define("outer", text, {"inner": inner}, "twin")))
    print(outer(1.0), sum(outer.stats.cache_hits.values()))
"""


def test_functions_of_one_name_from_two_processes_keep_apart_in_a_third(tmp_path):
    """Machine code from disk brings its symbols along; those of another process must not stand in for them."""
    env = {**os.environ, "GPURL_CACHE_DIR": str(tmp_path)}

    def run(*factors):
        command = [sys.executable, "-c", TWINS, *factors]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()

    assert run("2.0") == ["4.0", "0"]
    assert run("5.0") == ["10.0", "0"]
    assert run("2.0", "5.0") == ["4.0", "1", "10.0", "1"]


def test_nothing_is_kept_when_the_sources_changed_after_the_start(tmp_path, monkeypatch):
    monkeypatch.setenv("GPURL_CACHE_DIR", str(tmp_path))
    assert not disk_cache.edited_since_start()
    monkeypatch.setattr(disk_cache, "_STARTED", 0.0)
    assert cached(numba.njit(make("def f(x):\n    return x + 2\n")))(3) == 5
    assert list(tmp_path.glob("*.kernel")) == []


def test_of_a_users_module_what_a_function_uses_counts():
    """Not the text of its file, which may be another by now than what was imported."""

    def using(text="def f(x):\n    return m.scale(x) * m.GAIN + m.inner.SHIFT\n", inner=1.0, **names):
        module, below = types.ModuleType("own"), types.ModuleType("own.inner")
        module.__file__ = below.__file__ = "/home/someone/own.py"
        module.__dict__.update({"GAIN": 2.0, "scale": lambda x: 3.0 * x, "unused": 1.0, "inner": below, **names})
        below.__dict__.update(SHIFT=inner, above=module)
        return make(text, m=module)

    base = fingerprint(using())
    assert fingerprint(using()) == base
    assert fingerprint(using(unused=5.0)) == base
    changed = [using(GAIN=2.5), using(inner=4.0), using(scale=lambda x: 4.0 * x)]
    assert len({base, *map(fingerprint, changed)}) == 4
    with pytest.raises(Exception, match="object"):
        fingerprint(using(GAIN=object()))
