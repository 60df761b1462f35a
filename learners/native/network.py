"""Forward and backward pass of one MLP over a chunk of rows, generated for its sizes.

Weights live in one packed float32 vector per set (weights, gradient, Adam's moments). A hidden layer is stored (in, out),
which is what the forward product reads row by row; a head is stored (out, in). `Plan.packed` and `Plan.flat` map between
this order and PyTorch's, in which every weight is (out, in).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from learners.native.vector import LANES, make_dots, make_matmul

# Rows that go through the network together: their activations (64 x 64 x 4 bytes a layer) stay in the second-level cache.
ROWS = 64


class Plan:
    """Where each weight of one network lies, in the packed vector and in `Policy.actor_flat` / `critic_flat`.

    Attributes:
        sizes: layer sizes, input first.
        log_std: True for an actor of continuous actions, whose log_std comes last.
        rows: most rows that go through the network together.
        offsets: (layer, "weight" or "bias") -> element offset in the packed vector; `log_std` under ("log_std",).
        size: length of the packed vector, a multiple of LANES.
        flat, packed: equally long index arrays: packed_vector[packed] = flat_vector[flat].
        workspace: name -> element offset in a thread's workspace; `workspace_size` elements in all.
        turned: layer -> element offset of its transposed copy; `turned_size` elements in all.
    """

    def __init__(self, sizes: tuple[int, ...], activation: str, log_std: bool = False, rows: int = ROWS) -> None:
        self.sizes, self.activation, self.log_std, self.rows = sizes, activation, log_std, rows
        self.obs_dim, self.outputs = sizes[0], sizes[-1]
        self.offsets: dict[tuple, int] = {}
        flat, packed = [], []
        source = end = 0
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            where = np.arange(source, source + fan_out * fan_in).reshape(fan_out, fan_in)
            blocks: dict[str, np.ndarray] = {"weight": where.T if layer < len(sizes) - 2 else where}
            blocks["bias"] = np.arange(source + where.size, source + where.size + fan_out)
            source += where.size + fan_out
            for kind, block in blocks.items():
                self.offsets[layer, kind] = end
                flat.append(block.ravel())
                packed.append(end + np.arange(block.size))
                end = _round_up(end + block.size)
        if log_std:
            self.offsets["log_std",] = end
            flat.append(source + np.arange(self.outputs))
            packed.append(end + np.arange(self.outputs))
            end = _round_up(end + self.outputs)
        self.size = end
        self.flat, self.packed = np.concatenate(flat), np.concatenate(packed)
        hidden = rows * sum(sizes[1:-1])
        rows_of = {"x": self.obs_dim, "z": self.outputs, "dz": self.outputs, "action": self.outputs, "stats": 4}
        lengths = {"h": hidden, "d": hidden, **{name: rows * k for name, k in rows_of.items()}}
        lengths |= dict.fromkeys(("log_prob", "entropy", "row_a", "row_b"), rows)
        self.workspace, self.workspace_size = _lay_out({**lengths, "one": LANES})
        middle = range(1, len(sizes) - 2)
        self.turned, self.turned_size = _lay_out({layer: sizes[layer] * sizes[layer + 1] for layer in middle})


def _lay_out(lengths: dict[Any, int]) -> tuple[dict[Any, int], int]:
    """Offsets of blocks one after the other, each at a multiple of LANES, and the length of all (at least LANES)."""
    offsets, end = {}, 0
    for name, length in lengths.items():
        offsets[name] = end
        end = _round_up(end + length)
    return offsets, max(end, LANES)


def plans(policy: Any) -> dict[str, Plan]:
    """The plans of a policy's two networks."""
    return {
        "actor": Plan(policy.actor.sizes, policy.actor.activation, policy.continuous),
        "critic": Plan(policy.critic.sizes, policy.critic.activation),
    }


def fits(policy: Any) -> bool:
    """True when the generated kernels can stand in for this policy: an MLP whose hidden sizes are multiples of LANES."""
    return misfit(policy) is None


def misfit(policy: Any) -> str | None:
    """Why the generated kernels cannot stand in for this policy, in words; None if they can."""
    if policy.image:
        return "the policy reads images"
    actor, critic = policy.actor, policy.critic
    hidden = (*actor.sizes[1:-1], *critic.sizes[1:-1])
    if not actor.sizes[1:-1]:
        return "the policy has no hidden layer"
    if actor.activation not in ("tanh", "relu"):
        return f"there is no native {actor.activation}"
    if any(h % LANES for h in hidden):
        return f"hidden_sizes must be multiples of the SIMD width {LANES} (16 always fits)"
    return None


def obs_statistics(policy: Any) -> np.ndarray:
    """(3, d) float32 of a policy: shift, scale and limit of its observations; 0, 1 and infinity where none are kept."""
    found = np.zeros((3, policy.obs_dim), np.float32)
    found[1], found[2] = 1.0, np.inf
    if policy.obs_norm is not None:
        found[0], found[1] = policy.obs_norm.shift.numpy(), policy.obs_norm.scale.numpy()
        found[2] = policy.obs_norm.clip
    return found


def _round_up(value: int) -> int:
    return -(-value // LANES) * LANES


class Source:
    """Lines of the network passes, over the addresses `work`, `weights`, `grad` and `turned`, and the names they use.

    Addresses are bytes, so element offsets are multiplied by 4. `prefix` goes before these four names.
    """

    def __init__(self, plan: Plan, prefix: str = "") -> None:
        self.plan, self.prefix = plan, prefix
        self.names: dict[str, Any] = {}

    def _matmul(self, columns: int, init: str, epilogue: str) -> str:
        name = f"_mm_{columns}_{init}_{epilogue}"
        if name not in self.names:
            self.names[name] = make_matmul(columns, init, epilogue)
        return name

    def _hidden(self, layer: int, kind: str) -> str:
        """Address of the activations ("h") or their gradients ("d") of hidden layer `layer` (0-based)."""
        before = sum(self.plan.sizes[1 : layer + 1])
        return f"({self.prefix}work + {4 * (self.plan.workspace[kind] + self.plan.rows * before)})"

    def _weight(self, base: str, layer: int, kind: str) -> str:
        return f"({self.prefix}{base} + {4 * self.plan.offsets[layer, kind]})"

    def work(self, name: str) -> str:
        """Address of a block of the workspace."""
        return f"({self.prefix}work + {4 * self.plan.workspace[name]})"

    def forward(self) -> list[str]:
        """From x (rows, obs_dim) in the workspace to z[k * plan.rows + row]."""
        sizes = self.plan.sizes
        lines = []
        source, width = self.work("x"), sizes[0]
        for layer, size in enumerate(sizes[1:-1]):
            name = self._matmul(size, "row", self.plan.activation)
            weight, bias = (self._weight("weights", layer, kind) for kind in ("weight", "bias"))
            target = self._hidden(layer, "h")
            lines.append(f"{name}({source}, {width}, 1, {weight}, {size}, {target}, {size}, {bias}, rows, {width})")
            source, width = target, size
        last = len(sizes) - 2
        self.names[f"_dots_{width}"] = make_dots(width)
        weight, bias = (self._weight("weights", last, kind) for kind in ("weight", "bias"))
        lines.append(
            f"_dots_{width}({source}, {width}, {weight}, {bias}, {self.work('z')}, {self.plan.rows}, rows, {sizes[-1]})"
        )
        return lines

    def backward(self) -> list[str]:
        """From dz[k * plan.rows + row] to the gradient, added to what lies at `grad`."""
        sizes = self.plan.sizes
        last = len(sizes) - 2
        width, outputs = sizes[-2], sizes[-1]
        dz, one = self.work("dz"), self.work("one")
        top = self._hidden(last - 1, "h")
        weight = self._weight("grad", last, "weight")
        add = self._matmul(width, "add", "none")
        lines = [f"{add}({dz}, {self.plan.rows}, 1, {top}, {width}, {weight}, {width}, 0, {outputs}, rows)"]
        lines.append(f"_add_sums({dz}, {self._weight('grad', last, 'bias')}, rows, {outputs})")
        name = self._matmul(width, "zero", f"{self.plan.activation}_grad")
        target = self._hidden(last - 1, "d")
        weight = self._weight("weights", last, "weight")
        lines.append(f"{name}({dz}, 1, {self.plan.rows}, {weight}, {width}, {target}, {width}, {top}, rows, {outputs})")
        for layer in range(last - 1, -1, -1):
            size, width = sizes[layer + 1], sizes[layer]
            delta = self._hidden(layer, "d")
            source = self.work("x") if layer == 0 else self._hidden(layer - 1, "h")
            weight, bias = (self._weight("grad", layer, kind) for kind in ("weight", "bias"))
            add = self._matmul(size, "add", "none")
            lines.append(f"{add}({source}, 1, {width}, {delta}, {size}, {weight}, {size}, 0, {width}, rows)")
            lines.append(f"{add}({one}, 0, 0, {delta}, {size}, {bias}, {size}, 0, 1, rows)")
            if layer > 0:
                name = self._matmul(width, "zero", f"{self.plan.activation}_grad")
                target, output = self._hidden(layer - 1, "d"), self._hidden(layer - 1, "h")
                weight = f"({self.prefix}turned + {4 * self.plan.turned[layer]})"
                lines.append(
                    f"{name}({delta}, {size}, 1, {weight}, {width}, {target}, {width}, {output}, rows, {size})"
                )
        return lines

    def turn(self) -> list[str]:
        """(out, in) copies of the hidden weights that `backward` reads."""
        lines = []
        for layer in range(1, len(self.plan.sizes) - 2):
            rows, columns = self.plan.sizes[layer], self.plan.sizes[layer + 1]
            weight = self._weight("weights", layer, "weight")
            lines.append(
                f"_transpose({weight}, ({self.prefix}turned + {4 * self.plan.turned[layer]}), {rows}, {columns})"
            )
        return lines
