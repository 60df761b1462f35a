"""What a CUDA kernel takes on a device, read from the assembler on a machine that has none.

Needs the `ptxas` of the wheel nvidia-cuda-nvcc, or one on PATH.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

_INSTRUCTION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.\w+|::)*)[\s;]")
_INEXACT = re.compile(r"call|div\.full|.*\.approx|.*\.ftz")
_BYTES_PER_INSTRUCTION = 16  # of machine code, on every architecture since sm_70
_NUMBERS = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
}


@dataclass(frozen=True)
class Usage:
    """What one kernel takes on one architecture.

    Args:
        registers: per thread.
        stack, spill_stores, spill_loads: bytes of local memory per thread.
        instructions: static count in the PTX, resets and bounds check included.
        machine_instructions: static count in the machine code.
        float64: PTX instructions with a float64 operand.
        inexact: PTX instructions that call a function, or compute less exactly than IEEE arithmetic.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    instructions: int
    machine_instructions: int
    float64: int
    inexact: int

    def row(self) -> dict[str, int]:
        return asdict(self)


def opcodes(text: str) -> list[str]:
    """Opcodes in the order of the PTX text; labels and declarations are none."""
    body = text[text.index("{") + 1 :].splitlines()
    return [match.group(1) for match in map(_INSTRUCTION.match, body) if match]


def assemble(text: str, arch: str) -> Usage:
    """Machine code of a PTX text for `arch` ("sm_90"), and what `ptxas -v` says about it.

    Raises:
        ValueError: ptxas rejects the text.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text)
        command = [find_ptxas(), "-v", f"-arch={arch}", str(source), "-o", str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ValueError(f"ptxas rejects a kernel for {arch}: {done.stderr.strip()}")
        machine = code_bytes(result.read_bytes()) // _BYTES_PER_INSTRUCTION
    found = {name: int(re.search(pattern, done.stderr).group(1)) for name, pattern in _NUMBERS.items()}  # type: ignore[union-attr]
    names = opcodes(text)
    return Usage(
        **found,
        instructions=len(names),
        machine_instructions=machine,
        float64=sum(".f64" in name for name in names),
        inexact=sum(_INEXACT.match(name) is not None for name in names),
    )


def code_bytes(image: bytes) -> int:
    """Length of the machine code in an ELF image: its sections `.text.*`."""
    (table,) = struct.unpack_from("<Q", image, 40)
    entry, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, table + k * entry) for k in range(count)]
    start = headers[names][4]
    total = 0
    for header in headers:
        first = start + header[0]
        if image[first : image.index(b"\0", first)].startswith(b".text."):
            total += header[5]
    return total


@functools.cache
def find_ptxas() -> str:
    """Path of the `ptxas` of the nvcc wheel, or else of the one on PATH.

    The wheel comes first: an older `ptxas` rejects the PTX of a newer NVVM. Raises FileNotFoundError if there is neither.
    """
    for name in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(name) or []:
                if file.name == "ptxas":
                    return str(file.locate())
    found = shutil.which("ptxas")
    if found is None:
        raise FileNotFoundError("no ptxas; install the wheels of the dev extra: pip install -e '.[dev]'")
    return found


@functools.cache
def toolchain() -> dict[str, str]:
    """Versions that decide what a kernel takes."""
    said = subprocess.run([find_ptxas(), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"release [\d.]+, V([\d.]+)", said)
    return {
        "ptxas": version.group(1) if version else "unknown",
        "nvvm": importlib.metadata.version("nvidia-nvvm"),
        "numba-cuda": importlib.metadata.version("numba-cuda"),
    }
