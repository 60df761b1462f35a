"""Instructions that one step of one environment executes, counted by the interpreter; a table in Markdown.

    python -m tests.ptx.counts CartPole-v1 HalfCheetah-v5

`executed` is the mean over threads. `issued` counts an instruction of a warp for all of its 32 threads, those that take no
part included: the ratio of the two is what divergence leaves of a GPU's throughput. Both are of PTX, of which machine code
has a few more or less, in steps of episodes that have gone on for a while; a third of the rows end and begin anew in each.
"""

from __future__ import annotations

import sys

import numpy as np

from gpuenvs.runtime.buffers import SAME_STEP
from tests.gpuenvs.classic import CLASSIC
from tests.ladder.traced import MUJOCO
from tests.ptx.backend import interpreted
from tests.ptx.machine import WARP, Statistics
from tests.ptx.parity import play, scenario

ROWS = 256
HEAD = "| env | executed | issued | of them useful | float operations | loads and stores of global memory |"


def count(env_id: str) -> list[Statistics]:
    """What each step of `ROWS` environments executed."""
    log: list[tuple[str, Statistics]] = []
    with interpreted(log):
        play("cuda:0", env_id, scenario(env_id, ROWS, "float32"), "float32", SAME_STEP)
    return [statistics for name, statistics in log if name == "step_kernel"]


def row(env_id: str) -> str:
    """One line of the table."""
    steps = count(env_id)
    executed = float(np.mean([s.per_thread() for s in steps]))
    issued = float(np.mean([s.issued * WARP / s.threads for s in steps]))

    def mean(chosen: str) -> float:
        return float(
            np.mean([sum(n for name, n in s.executed.items() if _kind(name) == chosen) / s.threads for s in steps])
        )

    cells = [
        f"{executed:,.0f}",
        f"{issued:,.0f}",
        f"{executed / issued:.0%}",
        f"{mean('float'):,.0f}",
        f"{mean('global'):,.0f}",
    ]
    return f"| {env_id} | {' | '.join(cells)} |"


def _kind(opcode: str) -> str:
    base = opcode.split(".")[0]
    if base in ("ld", "st", "atom") and ".local" not in opcode and ".param" not in opcode:
        return "global"
    return (
        "float"
        if base in ("add", "sub", "mul", "fma", "div", "rcp", "sqrt") and opcode.endswith((".f32", ".f64"))
        else ""
    )


if __name__ == "__main__":
    print(HEAD)
    print("|---|---:|---:|---:|---:|---:|")
    for name in sys.argv[1:] or [*CLASSIC, *MUJOCO]:
        print(row(name), flush=True)
