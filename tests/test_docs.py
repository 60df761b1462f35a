"""Code in the documentation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import gpuenvs

ROOT = Path(__file__).resolve().parent.parent


def _python_blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.mark.parametrize("code", _python_blocks("README.md"))
def test_readme_code_runs(code: str) -> None:
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert np.isfinite(names["obs"]).all()
    names["env"].close()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_linked_files_are_there(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text())
    assert not [link for link in links if "://" not in link and not (ROOT / link).is_file()]


def test_the_environment_in_contributing_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved as a module, as the text says, it steps, ends and is reset."""
    (code,) = _python_blocks("CONTRIBUTING.md")
    (tmp_path / "hover.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    spec = importlib.import_module("hover").SPEC
    with gpuenvs.make(spec, 64, device="cpu", seed=0) as env:
        obs, _ = env.reset()
        assert 0.5 <= obs[:, 0].min() < obs[:, 0].max() <= 1.5
        up = np.full((64, 1), 3.0, np.float32)  # clipped to 1 N by the environment
        before = obs.copy()
        obs, reward, *_ = env.step(up)
        assert obs[:, 1] == pytest.approx(np.full(64, 0.04), rel=1e-6)
        assert reward == pytest.approx(1 - abs(before[:, 0] + 0.0008 - 1), abs=1e-6)
        ended = np.zeros(64, bool)
        for _ in range(100):
            _, _, terminated, _, _ = env.step(up)
            ended |= terminated
        assert ended.all()
