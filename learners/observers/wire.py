"""What a training and its observers send each other.

To the observer: messages of two lengths (uint64 each), that many bytes of JSON with the message's `kind` in it, and that many
bytes of tensors in the safetensors format, if there are any. From it: lines of JSON.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Kinds of messages beside those of one observer's own.
PLAN = "plan"  # the first one
WEIGHTS = "weights"
FINISH = "finish"  # complete what you are doing, then end
_LENGTHS = struct.Struct("=QQ")


def pack(kind: str, message: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """One message's bytes; the tensors are on the host and share no memory."""
    from safetensors.torch import save

    text = json.dumps({**message, "kind": kind}).encode()
    blob = save(dict(tensors)) if tensors else b""
    return _LENGTHS.pack(len(text), len(blob)) + text + blob


def receive(descriptor: int) -> tuple[dict[str, Any], bytes] | None:
    """Wait for the next message: its JSON and the bytes of its tensors; None when the other side has gone."""
    lengths = _read(descriptor, _LENGTHS.size)
    if lengths is None:
        return None
    text, blob = (_read(descriptor, size) for size in _LENGTHS.unpack(lengths))
    if text is None or blob is None:
        return None
    return json.loads(text), blob


def _read(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
