"""What is done with tensors inside of a recorder: PyTorch's functions and the operations they come to."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.protocol.clocks import HOST

aten = torch.ops.aten
# Operations whose result's shape depends on the data: the host waits for it.
_WAITING = {aten.nonzero.default, aten.masked_select.default, aten._local_scalar_dense.default, aten.equal.default}


class Functions(TorchFunctionMode):
    """What tensors say of themselves, and the ways to another device."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        recorder = self._recorder
        if func == torch.Tensor.device.__get__:
            label = recorder.label(args[0])
            return torch.device("cpu") if label is None else torch.device("cuda", label)
        if func == torch.Tensor.is_cuda.__get__:
            return recorder.label(args[0]) is not None
        if func == torch.Tensor.numpy:
            if recorder.label(args[0]) is not None:
                raise TypeError("can't convert a CUDA tensor to numpy; use Tensor.cpu() first")
            recorder.kernel("numpy", HOST, [args[0]], [])
            return func(*args, **kwargs)
        if func == torch.Tensor.pin_memory:
            return self._pinned(args[0])
        if func == torch.Tensor.cpu:
            return self._to(args[0], None, None, False)
        if func == torch.Tensor.to:
            device, dtype, non_blocking, _ = (
                torch._C._nn._parse_to(*args[1:], **kwargs) if _plain(args[1:]) else (None,) * 4
            )
            if device is not None:
                index = None if device.type == "cpu" else recorder.device_index(device)
                if index != recorder.label(args[0]):
                    return self._to(args[0], index, dtype, non_blocking)
                return args[0] if dtype in (None, args[0].dtype) else args[0].to(dtype)
            return func(*args, **kwargs)
        if kwargs.pop("pin_memory", False):
            return self._pinned(func(*args, **kwargs))
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "cpu"
            with recorder.making(recorder.device_index(device)):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _to(self, tensor: torch.Tensor, device: int | None, dtype: Any, non_blocking: bool) -> torch.Tensor:
        with torch.no_grad(), self._recorder.making(device):
            like = torch.empty_like(tensor, dtype=dtype, device="meta")
            target = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
            target.copy_(tensor.detach(), non_blocking=non_blocking)
        return target

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._recorder.making(None):
            pinned = tensor.clone()
        buffer = self._recorder.look_up(pinned)[0]
        buffer.pinned, buffer.name = True, f"pinned {buffer.name}"
        return pinned


def _plain(args: Any) -> bool:
    """Whether the arguments of `Tensor.to` are those that name a device or dtype."""
    return not (args and isinstance(args[0], torch.Tensor))


class Operations(TorchDispatchMode):
    """Every operation as an access of a stream."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        reads, writes = _arguments(func, args, kwargs)
        if func is aten.copy_.default:
            recorder.copy(args[0], args[1], bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))
            return func(*args, **kwargs)
        if func.is_view or func in (aten.lift_fresh.default, aten.detach.default, aten.alias.default):
            out = func(*args, **kwargs)
            return out
        device = self._device(func, reads + writes)
        actor = recorder.actor(device)
        recorder.kernel(func._schema.name, actor, reads, writes)
        with recorder.making(device) if reads + writes else contextlib.nullcontext():
            out = func(*args, **kwargs)
            made = [t for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
            for tensor in made:
                if all(tensor is not t for t in writes):
                    recorder.touch(actor, tensor, True, func._schema.name)
        if device is not None and (func in _WAITING or _picks_rows(func, args)):
            recorder.host_wait(actor, func._schema.name)
        return out

    def _device(self, func: Any, tensors: list[torch.Tensor]) -> int | None:
        """Where the operation runs: its tensors' device; a host tensor without dimensions fits everywhere."""
        recorder = self._recorder
        labels = {recorder.label(t) for t in tensors if t.dim()} or {recorder.label(t) for t in tensors}
        named = sorted(label for label in labels | {recorder.label(t) for t in tensors} if label is not None)
        if len(named) > 1:
            recorder.checker.refuse(
                f"wrong device: {func._schema.name} takes tensors of cuda:{named[0]} and cuda:{named[1]}"
            )
        if not tensors:
            return recorder._forced[-1] if recorder._forced else None
        return named[0] if named else None


def _arguments(func: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors that an operation reads and those it writes, by its schema."""
    reads, writes = [], []
    for k, argument in enumerate(func._schema.arguments):
        value = args[k] if k < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        for leaf in value if isinstance(value, list | tuple) else (value,):
            if isinstance(leaf, torch.Tensor):
                (writes if written else reads).append(leaf)
    return reads, writes


def _picks_rows(func: Any, args: Any) -> bool:
    if func is not aten.index.Tensor:
        return False
    return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
