"""The kernels of traced environments as plain Python: to read them, and to run them where there is no device.

python -m gpuenvs.runtime.traced_python HalfCheetah-v5 > half_cheetah.py
python -m gpuenvs.runtime.traced_python Ant-v5 --kernel begin_kernel --dtype float32 --autoreset disabled
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from gpuenvs.runtime import traced
from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP, Layout, make_layout
from gpuenvs.trace.python import PythonPrinter, load


def printer(layout: Layout, real: str, kernel: str, rows: str = "one", visits: bool = False) -> PythonPrinter:
    """A printer of a kernel's program, with the environment's names for its state, params and buffers."""
    names = {k: b.name for k, b in enumerate(layout.buffers)} | {k: name for name, k in traced.slots(layout).items()}
    labels = {(buffer, row): field for field, buffer, row in layout.state_fields}
    labels |= {(buffer, row): field for field, buffer, row, own in layout.param_fields if own}
    labels |= {("action", k): f"action_{k}" for k in range(layout.spec.action_dim)}
    action = "int32" if layout.spec.discrete else real
    program = traced.record_kernel(layout, real, kernel, action)
    return PythonPrinter(program, kernel, names, labels, rows, visits)


def function(layout: Layout, real: str, kernel: str, rows: str = "one") -> Callable[..., Any]:
    """The kernel as a Python function; see `gpuenvs.trace.python` for its arguments."""
    return load(printer(layout, real, kernel, rows).text(), kernel, real, rows)


def main() -> None:
    from gpuenvs import registry

    options = argparse.ArgumentParser(
        prog="python -m gpuenvs.runtime.traced_python", description="Print a kernel as Python."
    )
    options.add_argument("env_id", help="a traced environment, such as HalfCheetah-v5")
    options.add_argument("--kernel", choices=traced.KERNELS, default=traced.KERNELS[0])
    options.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    options.add_argument("--autoreset", choices=AUTORESET_MODES, default=SAME_STEP)
    given = options.parse_args()
    spec = registry.get(given.env_id)
    if not spec.traced:
        options.error(f"{spec.id} is not traced: its functions are Python source in {spec.step.__module__}")
    print(printer(make_layout(spec, given.autoreset), given.dtype, given.kernel).text(), end="")


if __name__ == "__main__":
    main()
