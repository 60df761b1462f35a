"""Floating-point operations per row of each kernel of a traced environment.

Counted in the recorded program: the operations of each region, times how often it runs on states that random actions lead to.
"""

from typing import Any

_KINDS = {"add": "add", "sub": "add", "mul": "multiply", "div": "divide", "sqrt": "divide"}
ROWS, STEPS = 8, 40


def measure(request, clock):
    import numpy as np

    import gpuenvs
    from gpuenvs.runtime.buffers import make_layout
    from gpuenvs.runtime.traced_python import printer
    from gpuenvs.trace.python import load

    spec: Any = gpuenvs.get(request["env_id"])
    rng = np.random.default_rng(0)
    found = {}
    with gpuenvs.make(spec, ROWS, device="cpu", seed=0) as env:
        env.reset()
        low, high = spec.action_space.low, spec.action_space.high
        for _ in range(STEPS):
            env.step(rng.uniform(low, high, (ROWS, spec.action_dim)).astype(np.float32))
        arrays = {name: array.copy() for name, array in env.arrays.items()}
        layout, limit = make_layout(spec, env.autoreset), env.max_episode_steps or 2**31 - 1
    arrays["action"][:] = rng.uniform(low, high, (ROWS, spec.action_dim)).T
    arrays["param_real"] = np.zeros(max(1, len(layout.param_fields)), np.float32)
    arrays["param_int"] = np.zeros(max(1, len(layout.param_fields)), np.int32)
    for field, buffer, row, _ in layout.param_fields:
        arrays[buffer][row] = getattr(spec.params, field)
    settings = {"seed_lo": 0, "seed_hi": 0, "env_offset": 0, "limit": limit}
    for kernel in ("step_kernel", "begin_kernel", "observe_kernel"):
        printed = printer(layout, "float32", kernel, visits=True)
        text = printed.text()
        visits = [0] * len(printed.regions)
        function = load(text, kernel, "float32", visits=visits)
        copies = {name: array.copy() for name, array in arrays.items()}
        with np.errstate(all="ignore"):
            for i in range(ROWS):
                function(i, copies, settings, [0] * 4)
        found[kernel] = total(printed, visits)
    return {"operations": found["step_kernel"], "kernels": found}


def total(printed, visits):
    """kind -> operations per row."""
    sums = {}
    for region, times in zip(printed.regions, visits):
        for item in region.items:
            kind = _KINDS.get(item.op)
            if kind is not None and item.kind == "real" and item in printed.live:
                sums[kind] = sums.get(kind, 0) + times
    return {kind: round(count / ROWS, 1) for kind, count in sums.items()}
