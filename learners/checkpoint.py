"""Checkpoints: one safetensors file each, whole or absent, hashed, loaded without running any code.

A checkpoint is a tree (dicts, lists, tuples; a named tuple comes back as a plain one) of tensors, numpy
arrays and plain Python values. Arrays go into the safetensors payload, the tree's shape and the plain values
into its JSON metadata, together with a SHA-256 over both. The file therefore opens in any safetensors reader,
and a cut or altered one is refused with one line.

File names carry the step (`step-000000409600.safetensors`): "latest" is the highest step, whatever the clock
says.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuenvs.errors import CheckpointError, NonFiniteError
from learners.atomic import write_atomic

FORMAT = "gpurl-checkpoint"
VERSION = 1
SUFFIX = ".safetensors"
_NAME = re.compile(r"^step-(\d{12,})\.safetensors$")
_MAX_HEADER = 100_000_000  # safetensors' own limit; a larger length field means a foreign or damaged file


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint without reading its arrays."""

    path: Path
    step: int
    score: float | None  # mean return of the last finished training episodes; None before any has finished


def checkpoint_path(folder: Path, step: int) -> Path:
    """The file of step number `step` (environment steps)."""
    return folder / f"step-{step:012d}{SUFFIX}"


def save(path: Path, tree: Mapping[str, Any], *, step: int, score: float | None = None) -> None:
    """Write `tree` to `path` atomically. Raises `RunError` if the disk refuses."""
    arrays: dict[str, np.ndarray] = {}
    document = json.dumps(_encode(tree, arrays, "state"))
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "step": str(step),
        "score": "" if score is None or not math.isfinite(score) else repr(float(score)),
        "tree": document,
    }
    metadata["sha256"] = _digest(metadata, arrays)
    from safetensors.numpy import save as encode_arrays

    write_atomic(path, encode_arrays(arrays, metadata=metadata))


def load(path: Path | str, device: str = "cpu") -> dict[str, Any]:
    """Read and verify a checkpoint; torch leaves land on `device`, numpy leaves stay numpy.

    Raises `CheckpointError` for a missing, truncated, altered or foreign file.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    metadata = _parse_metadata(path, content)
    from safetensors import SafetensorError
    from safetensors.numpy import load as decode_arrays

    try:
        arrays = decode_arrays(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "its arrays cannot be read") from error
    if _digest(metadata, arrays) != metadata["sha256"]:
        raise _damaged(path, "its content does not match its hash")
    return _decode(json.loads(metadata["tree"]), arrays, device)


def read_info(path: Path) -> CheckpointInfo:
    """Step and score from a file's header alone. Raises `CheckpointError` if even that is damaged."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MAX_HEADER:
                raise _foreign(path)
            content = length.to_bytes(8, "little") + file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    metadata = _parse_metadata(path, content)
    score = metadata.get("score") or None
    try:
        return CheckpointInfo(path, int(metadata["step"]), float(score) if score else None)
    except ValueError as error:
        raise _damaged(path, "its header is garbled") from error


def list_steps(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint in `folder`, lowest step first; other files are not looked at."""
    found = []
    if folder.is_dir():
        for path in folder.iterdir():
            match = _NAME.match(path.name)
            if match:
                found.append((int(match.group(1)), path))
    return sorted(found)


def latest(folder: Path) -> Path:
    """The checkpoint with the highest step. Raises `CheckpointError` when there is none."""
    steps = list_steps(folder)
    if not steps:
        raise CheckpointError(f"no checkpoint in {folder}; the run was stopped before its first one")
    return steps[-1][1]


def best(folder: Path) -> Path:
    """The checkpoint with the highest score (the later one of equals, the latest if none has a score)."""
    infos = _readable(folder)
    scored = [info for info in infos if info.score is not None]
    if not scored:
        return latest(folder)
    return max(scored, key=lambda info: (info.score, info.step)).path


def prune(folder: Path, keep_last: int) -> None:
    """Delete all but the `keep_last` highest steps and the best. An unreadable file is left for the user."""
    infos = _readable(folder)
    scored = [info for info in infos if info.score is not None]
    keep = {info.path for info in infos[-max(1, keep_last) :]}
    if scored:
        keep.add(max(scored, key=lambda info: (info.score, info.step)).path)
    for info in infos:
        if info.path not in keep:
            with suppress(OSError):
                info.path.unlink()


def require_finite(tensors: Iterable[tuple[str, Any]], what: str) -> None:
    """Raise `NonFiniteError` naming the first tensor that holds NaN or infinity."""
    import torch

    for name, tensor in tensors:
        if torch.is_tensor(tensor) and tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise NonFiniteError(f"{what} holds NaN or infinity in {name}")


def weights_hash(tensors: Iterable[tuple[str, Any]]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of `tensors`, in name order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        _add_array(digest, name, _to_numpy(tensor)[0])
    return digest.hexdigest()


def _readable(folder: Path) -> list[CheckpointInfo]:
    infos = []
    for _, path in list_steps(folder):
        with suppress(CheckpointError):
            infos.append(read_info(path))
    return infos


def _foreign(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is not a gpurl checkpoint")


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {path} is damaged ({why}); delete it to fall back to the one before")


def _parse_metadata(path: Path, content: bytes) -> dict[str, str]:
    """The safetensors metadata of a file that is ours; `content` need not hold the arrays."""
    if len(content) < 8:
        raise _damaged(path, "the file is cut short") if _NAME.match(path.name) else _foreign(path)
    length = int.from_bytes(content[:8], "little")
    if length > _MAX_HEADER or content[8:9] not in (b"{", b""):
        raise _foreign(path)
    if 8 + length > len(content):
        raise _damaged(path, "the file is cut short")
    try:
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except (ValueError, AttributeError) as error:
        raise _damaged(path, "its header is garbled") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise _foreign(path)
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"checkpoint {path} has format version {metadata.get('version')}; this gpurl reads {VERSION}"
        )
    if not {"sha256", "tree", "step"} <= metadata.keys():
        raise _damaged(path, "its header is garbled")
    return metadata


def _digest(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(metadata):
        if key != "sha256":
            digest.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(arrays):
        _add_array(digest, name, arrays[name])
    return digest.hexdigest()


def _add_array(digest: Any, name: str, array: np.ndarray) -> None:
    digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
    digest.update(np.ascontiguousarray(array).tobytes())


def _to_numpy(leaf: Any) -> tuple[np.ndarray, str]:
    """The leaf's values on the host in C order, and the torch dtype's name where numpy has none like it."""
    if isinstance(leaf, np.ndarray | np.generic):
        return np.array(leaf, order="C"), ""
    tensor = leaf.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":
        import torch

        return tensor.view(torch.int16).numpy().copy(), name
    return tensor.numpy().copy(), ""


def _encode(node: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """JSON for `node`; arrays are put aside under their path in the tree."""
    if type(node) in (type(None), bool, int, float, str):
        return node
    if isinstance(node, Mapping):
        items = [[_encode_key(key, name), _encode(value, arrays, f"{name}.{key}")] for key, value in node.items()]
        return {"dict": items}
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_encode(value, arrays, f"{name}.{index}") for index, value in enumerate(node)]}
    if isinstance(node, np.ndarray | np.generic) or type(node).__module__.startswith("torch"):
        array, view = _to_numpy(node)
        key = name if name not in arrays else f"{name}#{len(arrays)}"
        arrays[key] = array
        return {"array" if isinstance(node, np.ndarray | np.generic) else "tensor": key, "view": view}
    raise TypeError(f"{name}: a checkpoint cannot hold a {type(node).__name__}")


def _encode_key(key: Any, name: str) -> Any:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise TypeError(f"{name}: a checkpoint's keys are strings or integers, not {type(key).__name__}")


def _decode(node: Any, arrays: Mapping[str, np.ndarray], device: str) -> Any:
    if not isinstance(node, dict):
        return node
    if "dict" in node:
        return {key: _decode(value, arrays, device) for key, value in node["dict"]}
    if "list" in node:
        return [_decode(value, arrays, device) for value in node["list"]]
    if "tuple" in node:
        return tuple(_decode(value, arrays, device) for value in node["tuple"])
    if "array" in node:
        return arrays[node["array"]].copy()  # the reader's own memory is read-only
    import torch

    tensor = torch.from_numpy(arrays[node["tensor"]].copy())
    if node["view"]:
        tensor = tensor.view(getattr(torch, node["view"]))
    return tensor.to(device)
