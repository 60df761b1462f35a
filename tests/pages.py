"""The code blocks of a page of the documentation, and a program that runs them as a reader would.

    python -m tests.pages docs/index.md

runs a page in an empty folder (a second argument may name one): the ```python blocks in one interpreter, so that they share
their names like the cells of a notebook, the ```sh blocks in bash, all in their order. A block with `title="FILE"` is written
into that file instead. `examples/` is there. The word RUN in an argument stands for the newest run under runs/. ```text is
output or for the eye, and not run.

A comment before a block says what else is to be known:

    <!-- short: gpurl train -t 4096 -->     adds options to the `gpurl train` lines of the block, so that it ends soon
    <!-- elsewhere: needs a GPU -->         not run here, for this reason; that its commands exist is checked all the same
    <!-- fails -->                          ends with an error, whose one line is the ```text block that follows
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("gpurl", "python", "torchrun")
_BLOCK = re.compile(
    r"(?P<before>(?:^[ ]*<!--(?:(?!-->).)*-->\n+)*)^(?P<indent>[ ]*)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!-- (short|elsewhere|fails)(?:: (.*?))? -->")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its first line of code, counted from 1."""

    line: int
    language: str
    title: str
    code: str
    short: tuple[tuple[str, ...], ...] = ()
    elsewhere: str = ""
    fails: bool = False

    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block, without comments."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a Markdown text, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        language, _, rest = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]*)"', rest)
        comments = _COMMENT.findall(match["before"])
        found.append(
            Block(
                line=text.count("\n", 0, match.start("code")) + 1,
                language=language,
                title=title[1] if title else "",
                code=textwrap.dedent(match["code"]),
                short=tuple(tuple(words.split()) for kind, words in comments if kind == "short"),
                elsewhere=" ".join(words for kind, words in comments if kind == "elsewhere"),
                fails=any(kind == "fails" for kind, _ in comments),
            )
        )
    return found


@dataclass
class Reader:
    """Runs the blocks of one page in a folder of its own."""

    page: Path
    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    error: str = ""  # of a block that was to fail, until the next one shows it

    def __post_init__(self) -> None:
        programs = self.folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name in PROGRAMS:
            file = programs / name
            line = shlex.join([sys.executable, str(Path(__file__).resolve()), "--as", name])
            file.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
            file.chmod(0o755)
        (self.folder / "examples").symlink_to(ROOT / "examples")
        sys.path.insert(0, str(self.folder))
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def run(self, block: Block) -> None:
        """Whatever the block is for; raises if it fails, or does not fail as it should."""
        if block.language == "text":
            self._compare(block.code)
        elif self.error:
            raise RuntimeError(f"an error is to be shown here: {self.error}")
        elif block.elsewhere:
            return
        elif block.title:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.code)
        elif block.language == "python":
            self._python(block)
        elif block.language == "sh":
            self._shell(block)
        else:
            raise RuntimeError(f"a block of {block.language!r} is neither python, sh nor text")

    def _python(self, block: Block) -> None:
        file = self.folder / f"block-{block.line}.py"  # a file, because numba and tracebacks look for the source
        file.write_text("\n" * (block.line - 1) + block.code)
        code = compile(file.read_text(), str(file), "exec")
        if not block.fails:
            exec(code, self.names)
            return
        try:
            exec(code, self.names)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        if not self.error:
            raise RuntimeError("no error, where there should be one")

    def _shell(self, block: Block) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=self.folder,
            env={**os.environ, "GPURL_PAGE_SHORT": json.dumps(block.short)},
            stderr=subprocess.PIPE if block.fails else None,
            text=True,
            check=False,
        )
        if (done.returncode != 0) != block.fails:
            raise RuntimeError(f"the commands end with exit code {done.returncode}")
        if block.fails:
            self.error = done.stderr.strip().splitlines()[-1]

    def _compare(self, shown: str) -> None:
        """A text after a block that failed is its error; the folder's name and line breaks do not count."""
        error, self.error = self.error, ""
        said = " ".join(error.replace(f"{self.folder}/", "").split())
        if error and said != " ".join(shown.split()):
            raise RuntimeError(f"the error is: {said}")


def _as_program(name: str, arguments: list[str]) -> None:
    """What the `gpurl`, `python` and `torchrun` of a page do: the real ones, with RUN and `short` put in. No return."""
    program = {
        "gpurl": [sys.executable, "-m", "cli.main"],
        "python": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    }[name]
    arguments = [_newest_run() if word == "RUN" else word for word in arguments]
    for words in json.loads(os.environ.get("GPURL_PAGE_SHORT", "[]")):
        first_option = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
        start, more = words[:first_option], words[first_option:]
        if start == [name, *arguments][: len(start)]:
            arguments += more
    os.execv(program[0], [*program, *arguments])


def _newest_run() -> str:
    runs = [file.parent for file in Path("runs").rglob("config.json")]
    if not runs:
        raise SystemExit("RUN: there is no run yet")
    return str(max(runs, key=lambda run: run.stat().st_ctime_ns))


def problems(block: Block) -> Iterator[str]:
    """What is wrong with the commands of a block that is not run: what they name and is not there."""
    for words in block.commands():
        program = Path(words[0]).name
        if program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            yield from (f"make has no target {word}" for word in words[1:] if word not in targets and "=" not in word)
        elif program == "gpurl":
            done = subprocess.run(
                [sys.executable, "-m", "cli.main", *_before_redirection(words[1:]), "--help"],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                yield done.stderr.strip()
        elif "-m" in words and program in ("python", "python3", "torchrun"):
            module = words[words.index("-m") + 1]
            file = ROOT / module.replace(".", "/")
            if module != "venv" and not (file.with_suffix(".py").is_file() or (file / "__main__.py").is_file()):
                yield f"no module {module}"
        elif program == "pip":
            known = set(re.findall(r"^([a-z0-9]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
            asked = {
                extra for word in words for group in re.findall(r"\[([\w,]+)\]", word) for extra in group.split(",")
            }
            yield from (f"no extra {extra}" for extra in sorted(asked - known))
        else:
            yield f"{program} is a program that nobody has checked"


def _before_redirection(words: list[str]) -> list[str]:
    return words[: words.index(">")] if ">" in words else words


def run_page(page: Path, folder: Path | None = None) -> int:
    """Run a page in a folder, which is made, or in a temporary one. Returns 0, or 1 after saying which block failed."""
    text = page.read_text()
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpurl-page-")))
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        reader = Reader(page, folder)
        for block in (*blocks(text), Block(text.count("\n"), "text", "", "")):
            try:
                reader.run(block)
            except BaseException as error:
                traceback.print_exc()
                print(f"{page}:{block.line}: {error}", file=sys.stderr)
                return 1
        os.chdir("/")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--as":
        _as_program(sys.argv[2], sys.argv[3:])
    sys.path.insert(0, str(ROOT))
    raise SystemExit(run_page(*(Path(argument).resolve() for argument in sys.argv[1:])))
