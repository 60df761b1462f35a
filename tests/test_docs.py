"""The documentation: its code runs as it stands, its commands and links exist, and the site builds without a warning."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuenvs
from gpuenvs import registry
from tests.pages import PROGRAMS, ROOT, Block, blocks, problems

DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *DOCS]
LANGUAGES = {"python", "sh", "text"}
TIME_LIMIT = 900  # seconds a page; a page that waits for something never comes to its end


def _blocks(document: str) -> list[Block]:
    return blocks((ROOT / document).read_text())


def _runs(document: str) -> bool:
    return any(block.language != "text" and not block.elsewhere for block in _blocks(document))


def _read_page(page: Path | str, *folder: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.pages", str(page), *folder]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)


@pytest.mark.parametrize("document", [page for page in PAGES if page != "docs/index.md" and _runs(page)])
def test_the_code_of_a_page_runs(document: str) -> None:
    done = _read_page(document)
    assert done.returncode == 0, done.stderr[-6000:]


def test_who_follows_the_first_page_has_learned_something(tmp_path: Path) -> None:
    """Its own example is trained to the end, as the page says; a policy that does nothing gets less than 0."""
    done = _read_page("docs/index.md", str(tmp_path / "user"))
    assert done.returncode == 0, done.stderr[-6000:]
    (result,) = (tmp_path / "user" / "runs" / "SwingUp-v0").rglob("evaluations/*.json")
    assert json.loads(result.read_text())["mean"] > 150
    assert "SwingUp-v0: passes" in done.stdout


@pytest.mark.parametrize("document", PAGES)
def test_a_page_has_only_code_that_is_run_or_says_why_not(document: str) -> None:
    found = _blocks(document)
    assert len(found) == len(re.findall(r"^ *```[^\n]", (ROOT / document).read_text(), re.MULTILINE))
    for block in found:
        where = f"{document}:{block.line}"
        assert block.language in LANGUAGES, where
        if block.language == "text":
            started = [line for line in block.code.splitlines() if line.split(" ")[0] in ("$", ">>>", *PROGRAMS)]
            assert not started, f"{where}: {started[0]} is no output; mark it sh or python"


@pytest.mark.parametrize("document", PAGES)
def test_commands_that_are_not_run_exist(document: str) -> None:
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    for block in _blocks(document):
        if block.elsewhere == ".ci/run":
            assert not [words for words in block.commands() if " ".join(words) not in ci], f"{document}:{block.line}"
        elif block.elsewhere and block.language == "sh":
            assert not list(problems(block)), f"{document}:{block.line}"
        elif block.elsewhere:
            compile(block.code, f"{document}:{block.line}", "exec")


@pytest.mark.parametrize("document", DOCS)
def test_files_shown_on_a_page_are_those_of_the_repository(document: str) -> None:
    """A block that is an example's file is that file: there is no second version of it."""
    examples = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    for block in _blocks(document):
        if Path(block.title).name in examples:
            assert block.code == examples[Path(block.title).name], f"{document}:{block.line}"


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("```python\nprint(1)\n```\n\n```python\nassert 1 == 2\n```\n", 6),
        ("```sh\ntrue\nfalse\n```\n", 2),
        ('text\n\n```python title="mine.py"\nX = 3\n```\n\n```python\nimport mine\n\nassert mine.X == 4\n```\n', 8),
        ("```sh\ngpurl envs --no-such-option\n```\n", 2),
        ("```sh\ngpurl eval RUN\n```\n", 2),
        ("- a list\n\n    ```python\n    raise SystemExit\n    ```\n", 4),
        ("```\nno language\n```\n", 2),
        ("<!-- fails -->\n```python\nprint(1)\n```\n\n```text\nTypeError: 1\n```\n", 3),
        ("<!-- fails -->\n```python\nint('x')\n```\n\n```text\nTypeError: 1\n```\n", 7),
        ("<!-- fails -->\n```python\nint('x')\n```\n", 4),
        ("<!-- fails -->\n```sh\ngpurl --version\n```\n", 3),
        ("<!-- fails -->\n```sh\ngpurl fly\n```\n\n```text\nerror: no wings\n```\n", 7),
    ],
)
def test_a_page_that_is_wrong_is_found_out(page: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    done = _read_page(tmp_path / "page.md")
    assert done.returncode == 1
    assert f"page.md:{line}: " in done.stderr.splitlines()[-1]


def test_an_error_is_shown_as_it_is(tmp_path: Path) -> None:
    """Its folder and its line breaks apart."""
    page = """
<!-- fails -->
```python
raise KeyError("a  b")
```

```text
KeyError: 'a
b'
```

<!-- fails -->
```sh
gpurl check nothing.py:SPEC
```

```text
error: no file nothing.py
```
"""
    (tmp_path / "page.md").write_text(page)
    done = _read_page(tmp_path / "page.md")
    assert done.returncode == 0, done.stderr


def test_a_short_run_gets_its_options_and_run_is_the_newest(tmp_path: Path) -> None:
    """Names pass from block to block, `short` reaches its own commands alone."""
    page = """
<!-- short: gpurl envs --json -->
```sh
gpurl envs > envs.json
gpurl --version > version.txt
mkdir -p runs/a/old runs/a/new
touch runs/a/old/config.json
sleep 0.02
touch runs/a/new/config.json
python -c 'import sys; open("run.txt", "w").write(sys.argv[1])' RUN
```

```python
import json

ids = [row["id"] for row in json.load(open("envs.json"))]
```

```python
assert "CartPole-v1" in ids
assert open("version.txt").read().startswith("gpurl ")
assert open("run.txt").read() == "runs/a/new"
```
"""
    (tmp_path / "page.md").write_text(page)
    done = _read_page(tmp_path / "page.md")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("gpurl train CartPole-v1 --nonsense 3", "--nonsense"),
        ("gpurl fly CartPole-v1", "fly"),
        ("make cake", "cake"),
        ('pip install -e ".[dev,wings]"', "wings"),
        ("python -m benchmarks.nothing --write", "benchmarks.nothing"),
        ("curl somewhere", "curl"),
    ],
)
def test_a_command_that_does_not_exist_is_found_out(command: str, problem: str) -> None:
    (block,) = blocks(f"<!-- elsewhere: for no reason -->\n```sh\n{command}  # in passing\n```\n")
    (found,) = problems(block)
    assert problem in found


def _targets(document: str) -> set[str]:
    """Files that a document links to, in Markdown and HTML."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / document).read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r'(?:src|href)="([^"#]+)', text)
    return {link for link in links if "://" not in link}


@pytest.mark.parametrize("document", PAGES)
def test_linked_files_are_there(document: str) -> None:
    folder = (ROOT / document).parent
    assert not [link for link in _targets(document) if not (folder / link).is_file()]


def test_every_table_of_a_page_is_there() -> None:
    from docs_hooks import filled

    for document in DOCS:
        text = (ROOT / document).read_text()
        assert text.count("<!-- measured:") + text.count("<!-- table:") == 0 or filled(text) != text
        assert not re.search(r"<!-- (measured|table):", filled(text)), document


def test_tables_hold_what_the_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    from docs_hooks import TABLES

    own = dataclasses.replace(gpuenvs.get("CartPole-v1"), id="Own-v0", doc="")
    monkeypatch.setitem(registry._specs, own.id, own)  # as by another test: not one of the program's
    tables = {name: make() for name, make in TABLES.items()}
    assert all(f"| {env_id} |" in tables["environments"] for env_id in registry.BUILTIN)
    assert "Own-v0" not in tables["environments"]
    assert "`learning_rate`" in tables["settings"] and "## a2c" in tables["settings"]
    assert "## gpurl train" in tables["commands"] and "### gpurl bench env" in tables["commands"]
    assert "`SpecError`" in tables["errors"] and "`TypeError`" in tables["errors"]


@pytest.fixture(autouse=True)
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/hooks.py as the module `docs_hooks`."""
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "docs_hooks", module)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed; `make docs` builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "schedules/index.html", "reference/gpuenvs/index.html"} <= pages
    assert not (tmp_path / "site" / "hooks.py").exists()
    elsewhere = re.compile(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)"')
    assert not [name for name in pages if elsewhere.search((tmp_path / "site" / name).read_text())]
    commands = (tmp_path / "site" / "reference" / "commands" / "index.html").read_text()
    assert "--total-steps" in commands


def test_the_environment_in_contributing_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved as a module, as the text says, it steps, ends and is reset."""
    (block,) = (block for block in _blocks("CONTRIBUTING.md") if block.language == "python")
    (tmp_path / "hover.py").write_text(block.code)
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
