"""What the pool, its server and its executors tell each other.

A pipe to each executor carries rows and what to do with them, one pipe of all executors the rows that are done; a word is an
int64. Whatever is more than a number lies in the shared arrays (`gpuenvs.host.memory`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gpuenvs.host.memory import Field

WORD = struct.Struct("=q")
ROW = 0xFFFFFFFF  # the bits of a word that are the row's number; the others are one of
STEP = 0  # step it with its action
BEGIN = 1 << 32  # begin its episode number `episode`
DUMP = 2 << 32  # write the actions of its running episode into the log file at `log_start`
REPLAY = 3 << 32  # begin episode `episode`, repeat `elapsed` actions of the log file, compare with `obs`
# Words of the other direction that are no rows.
FAILED, WOKEN = -1, -2
MARK = b"\xff\xff"  # bytes that are in each of those and in no row's number
MAX_ENVS = 4096  # so many words fit into a pipe, so nobody ever waits for room in one
READ = 2 * MAX_ENVS * WORD.size  # bytes to ask a pipe for
ATOMIC_WORDS = 64  # what every system writes into a pipe in one piece: 512 bytes (POSIX)

LENGTH = struct.Struct("=Q")  # bytes of the plan, before it
STATUS = struct.Struct("=qq")  # an executor's number and its wait status


class Plan(NamedTuple):
    """What the pool tells the server; the numbers are descriptors that it inherits, `commands` one for each executor."""

    name: str  # the spec's id
    spec: bytes  # pickled on its own: reading it imports the user's code, for which `path` is needed
    path: list[str]
    fields: list[Field]
    num_envs: int
    seed: int
    env_offset: int
    parent: int  # process number
    bound: bool  # die with the thread that started the server: it is the parent's main thread
    memory: int
    log: int
    status: int
    done: int
    commands: list[int]
