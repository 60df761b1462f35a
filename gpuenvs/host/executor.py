"""An executor: a process that steps its rows when asked to, and says which are done."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import struct
import time
from array import array
from typing import Any, NoReturn

import numpy as np

from gpuenvs.host.lookup import described
from gpuenvs.host.memory import Arrays, leave_error
from gpuenvs.host.protocol import BEGIN, DUMP, READ, REPLAY, ROW, WORD
from gpuenvs.host.spec import HostSpec

# A running episode of more steps than this is not written into checkpoints: its row begins a new episode on resume.
LONGEST_LOG = 1_000_000


def episode_seed(seed: int, row: int, episode: int) -> int:
    """What `env.reset` gets: 31 bits that are a function of the pool's seed, the row and the number of the episode."""
    key = struct.pack("<QQQ", seed, row, episode)
    return int.from_bytes(hashlib.blake2b(key, digest_size=4, person=b"gpurl-host").digest(), "little") >> 1


class Row:
    """One environment and its row of the shared arrays.

    Attributes:
        doing: what its code is at, for the message when that raises.
    """

    def __init__(self, spec: HostSpec, arrays: Arrays, row: int, seed: int, offset: int) -> None:
        self.row, self.doing = row, "making"
        self._spec, self._arrays = spec, arrays
        self._seed, self._number = seed, offset + row
        self._clip, self._discrete = spec.clip_reward, spec.discrete
        self._obs, self._final_obs = arrays["obs"][row], arrays["final_obs"][row]
        self._shape, self._dtype = self._obs.shape, self._obs.dtype
        self._zeros = None if spec.image else np.zeros(self._shape, self._dtype)
        # Reading and writing single elements of arrays takes three times as long as of memory views.
        single: Any = {name: memoryview(values[row : row + 1]) for name, values in arrays.items() if values.ndim == 1}  # type: ignore[arg-type]
        self._reward, self._terminated, self._truncated = single["reward"], single["terminated"], single["truncated"]
        self._elapsed, self._running_return = single["elapsed"], single["running_return"]
        self._action: Any = single["action"] if self._discrete else arrays["action"][row]
        # The running episode's actions.
        self._log = array("f" if not self._discrete else "B" if spec.action_space.n <= 256 else "q")  # type: ignore[attr-defined]

    def make(self) -> None:
        self.env = self._spec.make()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.env.close()

    def begin(self) -> None:
        """The first observation of episode `episode`."""
        self.doing = "reset of"
        del self._log[:]
        self._elapsed[0], self._running_return[0] = 0, 0.0
        episode = int(self._arrays["episode"][self.row])
        obs, _ = self.env.reset(seed=episode_seed(self._seed, self._number, episode))
        values = self._fitting(obs)
        if not self._finite(values):
            raise FloatingPointError("the first observation of the episode is NaN or infinite")
        self._obs[...] = values

    def step(self) -> None:
        """One step with the row's action; when it ends the episode, the next one begins in the same step."""
        if self._advance(self._action[0] if self._discrete else self._action):
            arrays, row = self._arrays, self.row
            self._final_obs[...] = self._obs
            arrays["episode_return"][row] = self._running_return[0]
            arrays["episode_length"][row] = self._elapsed[0]
            arrays["episode"][row] += 1
            self.begin()

    def _advance(self, action: Any) -> bool:
        """One step; whether it ended the episode. The observation is the one of the last state."""
        self.doing = "step of"
        obs, reward, terminated, truncated, _ = self.env.step(action)
        reward = float(reward)
        self._elapsed[0] = elapsed = self._elapsed[0] + 1
        if elapsed <= LONGEST_LOG:
            if self._discrete:
                self._log.append(action)
            else:
                self._log.frombytes(action.tobytes())
        values = self._fitting(obs)
        if self._finite(values):
            self._obs[...] = values
        else:  # the last finite observation stays
            self._arrays["nonfinite"][self.row, 0] += 1
            reward, terminated, truncated = 0.0, False, True
        if not math.isfinite(reward):
            self._arrays["nonfinite"][self.row, 1] += 1
        self._running_return[0] += reward
        if self._clip:
            reward = (reward > 0) - (reward < 0)
        self._reward[0], self._terminated[0], self._truncated[0] = reward, terminated, truncated
        return bool(terminated or truncated)

    def _fitting(self, obs: Any) -> np.ndarray:
        values = np.asarray(obs, self._dtype)
        if values.shape != self._shape:
            raise ValueError(f"an observation has shape {values.shape}, but the space says {self._shape}")
        return values

    def _finite(self, values: np.ndarray) -> bool:
        """Whether there is no NaN or infinity among them: times zero they are NaN."""
        return self._zeros is None or math.isfinite(values.dot(self._zeros))

    def dump(self, log: int) -> None:
        """Write the running episode's actions into file `log`, from `log_start` on."""
        if self._elapsed[0] > LONGEST_LOG:
            return
        data, start = memoryview(self._log).cast("B"), int(self._arrays["log_start"][self.row])
        while data:
            written = os.pwrite(log, data, start)
            data, start = data[written:], start + written

    def replay(self, log: int) -> None:
        """Get to where the actions in `log` lead; to the next episode's start where that is not the place in `obs`."""
        arrays, row = self._arrays, self.row
        wanted, steps, counted = self._obs.tobytes(), self._elapsed[0], arrays["nonfinite"][row].copy()
        width = 1 if self._discrete else self._action.size
        reached = steps <= LONGEST_LOG
        actions: Any = array(self._log.typecode)
        if reached:
            actions.frombytes(os.pread(log, steps * width * actions.itemsize, int(arrays["log_start"][row])))
        if not self._discrete:
            actions = np.array(actions, np.float32).reshape(-1, width)
        self.begin()
        for action in actions:
            if self._advance(action):
                reached = False
                break
        arrays["nonfinite"][row] = counted
        if not reached or self._obs.tobytes() != wanted:
            arrays["mismatch"][row] = True
            arrays["episode"][row] += 1
            self.begin()


def run(spec: HostSpec, arrays: Arrays, rows: list[Row], slot: int, commands: int, done: int, log: int) -> NoReturn:
    """Serve until the command pipe is closed; ends the process. An error is left in `slot`."""
    code, row = 1, rows[0]
    try:
        for row in rows:
            row.make()
        first = row.row - len(rows) + 1
        answers = [WORD.pack(row.row) for row in rows]
        while words := os.read(commands, READ):
            for word in memoryview(words).cast("q"):
                index = (word & ROW) - first
                row = rows[index]
                if word < BEGIN:
                    row.step()
                elif word < DUMP:
                    row.begin()
                elif word < REPLAY:
                    row.dump(log)
                else:
                    row.replay(log)
                os.write(done, answers[index])
        for row in rows:
            row.close()
        code = 0
    except BaseException as error:
        if row.doing == "making":
            line, trace = described(spec.id, f"making env {row.row}", error)
        else:
            episode, step = arrays["episode"][row.row], arrays["elapsed"][row.row]
            line, trace = described(spec.id, f"{row.doing} env {row.row} (episode {episode}, step {step})", error)
        leave_error(arrays, slot, time.monotonic_ns(), line, trace)
    finally:
        os._exit(code)
