"""A small MLP policy as source lines of a CUDA kernel: a thread per row, weights in shared memory, activations in registers.

Layers alternate between two forms, so that no more than two vectors of activations are alive and none is indexed at run time:

- *spread*: for every input, added to all outputs at once. The outputs are registers; the weights of one input lie together.
- *streamed*: for every output (a loop at run time) the products of all inputs, which are registers, and at once the spread of
  that one number over the next layer. The weights of one output lie together.

All threads of a warp read the same weight at the same time: one broadcast, four weights to an instruction. (Indices are
unsigned: numba would look whether a signed one is negative, and the compiler could not tell that it is a multiple of four.)

Knows no torch: weights come as one flat float32 array in PyTorch's order (of each layer the weight (out, in), then the bias;
after the last the log standard deviations of continuous actions).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuenvs.scalar import f32, floor, i32, log, njit, u32

SHARED_BYTES = 48 * 1024  # what a block may have without asking
UNROLLED_INPUTS = 16  # observations longer than this are looped over
_MOST_REGISTERS = 160  # activations of two layers that are registers at the same time
_ALIGNED = 4  # floats in one load

# tanh(x) = x P(x^2) / Q(x^2) on |x| <= 7.905, beyond which float32 tanh is 1: the coefficients of Eigen's `ptanh_float`.
_BOUND = f32(7.90531110763549805)
_P0, _P1, _P2, _P3 = (
    f32(4.89352455891786e-03),
    f32(6.37261928875436e-04),
    f32(1.48572235717979e-05),
    f32(5.12229709037114e-08),
)
_P4, _P5, _P6 = f32(-8.60467152213735e-11), f32(2.00018790482477e-13), f32(-2.76076847742355e-16)
_Q0, _Q1, _Q2, _Q3 = (
    f32(4.89352518554385e-03),
    f32(2.26843463243900e-03),
    f32(1.18534705686654e-04),
    f32(1.19825839466702e-06),
)

_LOG2E, _LN2_HIGH, _LN2_LOW = f32(1 / math.log(2)), f32(0.693359375), f32(math.log(2) - 0.693359375)
_E2, _E3, _E4, _E5, _E6, _E7 = (f32(1 / math.factorial(k)) for k in range(2, 8))


@njit
def tanh32(x):
    """float32 tanh, error below 4 ulp."""
    x = -_BOUND if x < -_BOUND else x
    x = _BOUND if x > _BOUND else x
    z = x * x
    p = _P0 + z * (_P1 + z * (_P2 + z * (_P3 + z * (_P4 + z * (_P5 + z * _P6)))))
    return x * p / (_Q0 + z * (_Q1 + z * (_Q2 + z * _Q3)))


@njit
def relu32(x):
    """x above 0, else 0."""
    return x if x > f32(0.0) else f32(0.0)


@njit
def exp32(x):
    """float32 e**x within 2 ulp; arguments are clamped to [-87, 88]."""
    x = f32(-87.0) if x < f32(-87.0) else x
    x = f32(88.0) if x > f32(88.0) else x
    n = floor(x * _LOG2E + f32(0.5))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = f32(1.0) + r * (f32(1.0) + r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * _E7))))))
    return p * f32(i32(i32(i32(n) + i32(127)) << i32(23)).view(f32))


@dataclass(frozen=True)
class Mlp:
    """An actor: `sizes` from the observation to the outputs, `activation` "tanh" or "relu" between layers, and its head.

    `continuous`: the outputs are means of normal actions with one log standard deviation each; else logits.
    """

    sizes: tuple[int, ...]
    activation: str
    continuous: bool

    @property
    def outputs(self) -> int:
        return self.sizes[-1]

    def problem(self) -> str | None:
        """Why no kernel can be made of it, in words; None if one can."""
        hidden = self.sizes[1:-1]
        if not hidden:
            return "the policy has no hidden layer"
        if self.activation not in ("tanh", "relu"):
            return f"there is no {self.activation} in the kernel"
        # Spread layers are the first, third ...; after a streamed one the next is spread while its inputs are still alive.
        spread = [*hidden[::2], self.outputs] if len(hidden) % 2 == 0 else list(hidden[::2])
        if max(a + b for a, b in itertools.zip_longest(spread, spread[1:], fillvalue=0)) > _MOST_REGISTERS:
            return f"hidden_sizes {','.join(map(str, hidden))} do not fit into a thread's registers"
        size = 4 * Staging(self).size
        if size > SHARED_BYTES:
            return f"its {size} bytes of weights do not fit into {SHARED_BYTES} bytes of shared memory"
        return None


class Staging:
    """What a block keeps in shared memory: float32 elements, each part at a multiple of four.

    Attributes:
        weight, bias: offset of each layer's; row length of `weight` in `stride`.
        spread: whether a layer is spread, of each layer.
        shift, scale: offsets of the normaliser's vectors.
        std, inverse, log_std: offsets of exp(log_std), exp(-log_std) and log_std, for continuous actions.
        order: int32; element k of shared memory is element order[k] of the flat weights, for the first `copied`.
        size: of all.
    """

    def __init__(self, mlp: Mlp) -> None:
        self.weight: list[int] = []
        self.bias: list[int] = []
        self.stride: list[int] = []
        layers = list(itertools.pairwise(mlp.sizes))
        last = len(layers) - 1
        # A last layer whose inputs are registers has few outputs: each is summed on its own, like a streamed one.
        self.spread = [k % 2 == 0 if k < last else last % 2 == 0 and last > 0 for k in range(len(layers))]
        order: list[np.ndarray] = []
        flat = end = 0

        def put(block: np.ndarray) -> int:
            nonlocal end
            start = end
            padded = np.zeros(_up(block.size), np.int32)
            padded[: block.size] = block.ravel()
            order.append(padded)
            end += padded.size
            return start

        for k, (fan_in, fan_out) in enumerate(layers):
            where = np.arange(flat, flat + fan_in * fan_out).reshape(fan_out, fan_in)
            rows = where.T if self.spread[k] else where
            self.stride.append(_up(rows.shape[1]) if rows.shape[1] > 2 else rows.shape[1])
            block = np.zeros((rows.shape[0], self.stride[k]), np.int32)
            block[:, : rows.shape[1]] = rows
            self.weight.append(put(block))
            self.bias.append(put(np.arange(flat + where.size, flat + where.size + fan_out)))
            flat += where.size + fan_out
        self.log_std = put(np.arange(flat, flat + mlp.outputs)) if mlp.continuous else 0
        self.copied = end
        self.order = np.concatenate(order).astype(np.int32)
        lengths = [mlp.sizes[0]] * 2 + [mlp.outputs] * (2 if mlp.continuous else 0)
        starts = list(itertools.accumulate([end, *map(_up, lengths)]))
        self.shift, self.scale = starts[:2]
        self.std, self.inverse = starts[2:4] if mlp.continuous else (0, 0)
        self.size = starts[-1]


def _up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def staging_lines(mlp: Mlp, alignment: str) -> list[str]:
    """Fill `shared` from the arrays `weights`, `order`, `shift` and `scale`; every thread of the block takes part."""
    s = Staging(mlp)
    lines = [
        f"shared = cuda.shared.array({s.size}, _float32{alignment})",
        "_thread = cuda.threadIdx.x",
        f"for _k in range(_thread, {s.copied}, cuda.blockDim.x):",
        "    shared[_k] = weights[order[_k]]",
        f"for _k in range(_thread, {mlp.sizes[0]}, cuda.blockDim.x):",
        f"    shared[{s.shift} + _k] = shift[_k]",
        f"    shared[{s.scale} + _k] = scale[_k]",
        "cuda.syncthreads()",
    ]
    if mlp.continuous:
        lines += [
            f"for _k in range(_thread, {mlp.outputs}, cuda.blockDim.x):",
            f"    shared[{s.std} + _k] = _exp(shared[{s.log_std} + _k])",
            f"    shared[{s.inverse} + _k] = _exp(-shared[{s.log_std} + _k])",
            "cuda.syncthreads()",
        ]
    return lines


def local_lines(mlp: Mlp) -> list[str]:
    """What a thread needs beside its registers."""
    long = mlp.sizes[0] > UNROLLED_INPUTS
    return [f"_inputs = cuda.local.array({mlp.sizes[0]}, _float32)"] if long else []


def forward_lines(mlp: Mlp) -> list[str]:
    """`_z_0 ...`, the outputs, from the raw observation `_obs_0 ...`."""
    s, layers = Staging(mlp), list(itertools.pairwise(mlp.sizes))
    inputs = range(mlp.sizes[0])
    long = mlp.sizes[0] > UNROLLED_INPUTS
    place = "_inputs[{k}]" if long else "_x_{k}"
    lines = [
        f"{place.format(k=k)} = _clip((_obs_{k} - shared[{s.shift + k}]) * shared[{s.scale + k}], -clip, clip)"
        for k in inputs
    ]
    lines += [f"_h0_{j} = shared[{s.bias[0] + j}]" for j in range(layers[0][1])]
    if long:
        lines += [
            f"for _k in range({mlp.sizes[0]}):",
            "    _x = _inputs[_k]",
            f"    _row = _u64({s.weight[0]} + _k * {s.stride[0]})",
        ]
        lines += [f"    _h0_{j} += shared[_row + _u64({j})] * _x" for j in range(layers[0][1])]
    else:
        for k in inputs:
            lines += [f"_h0_{j} += shared[{s.weight[0] + k * s.stride[0] + j}] * _x_{k}" for j in range(layers[0][1])]
    lines += [f"_h0_{j} = _activation(_h0_{j})" for j in range(layers[0][1])]
    layer, name = 1, "_h0"
    while layer < len(layers):
        following = "_z" if layer + 1 >= len(layers) - 1 else f"_h{layer + 1}"
        if layer == len(layers) - 1:
            lines += _direct_lines(s, layer, layers[layer], name, "_z")
            break
        lines += _streamed_lines(s, layer, layers[layer], layers[layer + 1][1], name, following)
        if following != "_z":
            lines += [f"{following}_{j} = _activation({following}_{j})" for j in range(layers[layer + 1][1])]
        layer, name = layer + 2, following
    return lines


def _direct_lines(s: Staging, layer: int, sizes: tuple[int, int], source: str, target: str) -> list[str]:
    """Few outputs, each the sum over registers."""
    fan_in, fan_out = sizes
    lines = []
    for k in range(fan_out):
        lines.append(f"{target}_{k} = shared[{s.bias[layer] + k}]")
        row = s.weight[layer] + k * s.stride[layer]
        lines += [f"{target}_{k} += shared[{row + j}] * {source}_{j}" for j in range(fan_in)]
    return lines


def _streamed_lines(
    s: Staging, layer: int, sizes: tuple[int, int], spread_over: int, source: str, target: str
) -> list[str]:
    """One neuron after the other, in two sums that do not wait for each other; each at once spread over the next layer."""
    fan_in, fan_out = sizes
    lines = [f"{target}_{k} = shared[{s.bias[layer + 1] + k}]" for k in range(spread_over)]
    lines += [
        f"for _j in range({fan_out}):",
        f"    _row = _u64({s.weight[layer]} + _j * {s.stride[layer]})",
        f"    _even = shared[_u64({s.bias[layer]} + _j)]",
        "    _odd = _float32(0)",
    ]
    for j in range(fan_in):
        lines.append(f"    {'_odd' if j % 2 else '_even'} += shared[_row + _u64({j})] * {source}_{j}")
    lines += [
        "    _y = _activation(_even + _odd)",
        f"    _row = _u64({s.weight[layer + 1]} + _j * {s.stride[layer + 1]})",
    ]
    return lines + [f"    {target}_{k} += shared[_row + _u64({k})] * _y" for k in range(spread_over)]


def sample_lines(mlp: Mlp, correlated: bool) -> list[str]:
    """`_act_0 ...` and `_log_prob`, from `_z_0 ...` and the noise of (`_env`, `_now_lo`, `_now_hi`)."""
    ks = range(mlp.outputs)
    lines = []
    for block in range(-(-mlp.outputs // 4)):
        names = ", ".join(f"_n_{4 * block + k}" for k in range(4))
        lines.append(f"{names} = _four(noise_lo, noise_hi, _env, _now_lo, _now_hi, _u32({block}), plane)")
    if not mlp.continuous:
        lines += ["_act_0 = _i32(0)", "_best = _z_0 + _n_0", "_top = _z_0", "_mine = _z_0"]
        for k in ks[1:]:
            lines += [
                f"_score = _z_{k} + _n_{k}",
                "_better = _score > _best",
                f"_act_0 = _select(_better, _i32({k}), _act_0)",
                f"_mine = _select(_better, _z_{k}, _mine)",
                "_best = _select(_better, _score, _best)",
                f"_top = _select(_z_{k} > _top, _z_{k}, _top)",
            ]
        lines.append("_total = " + " + ".join(f"_exp(_z_{k} - _top)" for k in ks))
        return [*lines, "_log_prob = _mine - (_top + _log(_total))"]
    s = Staging(mlp)
    if correlated:
        lines += [f"_n_{k} = _share * _n_{k} + keep * _last_{k}" for k in ks]
        lines += [f"_last_{k} = _n_{k}" for k in ks] + ["_share = share"]
    lines.append("_log_prob = _float32(0)")
    for k in ks:
        lines += [
            f"_act_{k} = _z_{k} + shared[{s.std + k}] * _n_{k}",
            f"_u = (_act_{k} - _z_{k}) * shared[{s.inverse + k}]",
            f"_log_prob += _NEGATIVE_HALF * (_u * _u) - shared[{s.log_std + k}] - _HALF_LOG_2PI",
        ]
    return lines


def namespace(mlp: Mlp) -> dict[str, Any]:
    """Globals of these lines."""
    from gpuenvs import rng
    from gpuenvs.scalar import clip, select

    return {
        "_float32": np.float32, "_exp": exp32, "_log": log, "_clip": clip, "_select": select, "_i32": i32, "_u32": u32,
        "_u64": np.uint64, "_activation": tanh32 if mlp.activation == "tanh" else relu32,
        "_four": rng.four_normal32 if mlp.continuous else rng.four_gumbel32,
        "_NEGATIVE_HALF": f32(-0.5), "_HALF_LOG_2PI": f32(0.5 * math.log(2 * math.pi)),
    }  # fmt: skip
