import json
import math
import os
import pickle

import numpy as np
import pytest
import torch

from gpuenvs.errors import CheckpointError, NonFiniteError, RunError
from learners import checkpoint
from learners.checkpoint import checkpoint_path, load, save


def tree():
    return {
        "weights": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "env": {"counters": np.array([1, 2**32 - 1], np.uint32), "flags": np.array([True, False])},
        "by_index": {0: np.int64(7), 1: "text"},
        "plain": (1, 2.5, None, True, float("inf"), [10**30, -0.1]),
    }


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
    return a == b


def test_a_tree_comes_back_with_types_dtypes_and_bits(tmp_path):
    path = tmp_path / "a.safetensors"
    save(path, tree(), step=3)
    expected = tree()
    expected["by_index"][0] = np.asarray(expected["by_index"][0])  # numpy scalars come back as 0-d arrays
    assert same(load(path), expected)


def test_loaded_arrays_can_be_written_to(tmp_path):
    save(tmp_path / "a.safetensors", tree(), step=3)
    state = load(tmp_path / "a.safetensors")
    state["env"]["counters"][0] = 9
    state["weights"][0] = 9
    assert state["env"]["counters"][0] == 9


def test_nan_and_none_scores(tmp_path):
    for score in (None, math.nan):
        save(tmp_path / "a.safetensors", {}, step=3, score=score)
        assert checkpoint.read_info(tmp_path / "a.safetensors").score is None
    save(tmp_path / "a.safetensors", {}, step=3, score=0.1)
    assert checkpoint.read_info(tmp_path / "a.safetensors") == checkpoint.CheckpointInfo(
        tmp_path / "a.safetensors", 3, 0.1
    )


@pytest.mark.parametrize("leaf", [object(), {1, 2}, print, 1 + 2j])
def test_a_leaf_that_needs_code_to_load_is_refused(tmp_path, leaf):
    with pytest.raises(TypeError, match=r"state\.a: a checkpoint cannot hold"):
        save(tmp_path / "a.safetensors", {"a": leaf}, step=0)
    assert not list(tmp_path.iterdir())


def test_every_cut_is_noticed(tmp_path):
    path = checkpoint_path(tmp_path, 5)
    save(path, tree(), step=5)
    content = path.read_bytes()
    for length in (*range(0, len(content), 61), len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError) as error:
            load(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_every_altered_byte_is_noticed(tmp_path):
    path = checkpoint_path(tmp_path, 5)
    save(path, tree(), step=5)
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        altered = bytearray(content)
        altered[place] ^= 0x55
        path.write_bytes(bytes(altered))
        try:
            state = load(path)
        except CheckpointError as error:
            assert "\n" not in str(error)
        else:  # padding between header and arrays carries no information
            assert content[place : place + 1] == b" " and state["plain"][0] == 1


@pytest.mark.parametrize(
    "content",
    [pickle.dumps({"policy": 1}), b"PK\x03\x04 a zip, as torch.save makes", b"", b"hello", os.urandom(4096)],
    ids=["pickle", "zip", "empty", "text", "noise"],
)
def test_foreign_files_are_refused_without_running_code(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"not a gpurl checkpoint|damaged"):
        load(path)


def test_another_programs_safetensors_file_is_foreign(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="is not a gpurl checkpoint"):
        load(tmp_path / "other.safetensors")


def test_any_safetensors_reader_opens_ours(tmp_path):
    from safetensors.numpy import load_file

    save(tmp_path / "a.safetensors", tree(), step=3)
    assert (load_file(tmp_path / "a.safetensors")["state.env.flags"] == [True, False]).all()


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        load(tmp_path / "none.safetensors")


def test_a_newer_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", 99)
    save(tmp_path / "a.safetensors", {}, step=0)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format version 99; this gpurl reads 1"):
        load(tmp_path / "a.safetensors")


def test_latest_is_by_step_not_by_time(tmp_path):
    for step in (200, 1000, 90):
        save(checkpoint_path(tmp_path, step), {}, step=step)
    os.utime(checkpoint_path(tmp_path, 1000), (0, 0))
    assert checkpoint.latest(tmp_path) == checkpoint_path(tmp_path, 1000)


def test_latest_of_nothing_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.latest(tmp_path)


def test_prune_keeps_the_last_ones_and_the_best(tmp_path):
    for step, score in ((1, 5.0), (2, 9.0), (3, 1.0), (4, None), (5, 2.0)):
        save(checkpoint_path(tmp_path, step), {}, step=step, score=score)
    checkpoint.prune(tmp_path, keep_last=2)
    assert [step for step, _ in checkpoint.list_steps(tmp_path)] == [2, 4, 5]
    assert checkpoint.best(tmp_path) == checkpoint_path(tmp_path, 2)


def test_prune_leaves_a_damaged_file_to_the_user(tmp_path):
    for step in (1, 2, 3):
        save(checkpoint_path(tmp_path, step), {}, step=step)
    checkpoint_path(tmp_path, 1).write_bytes(b"damaged")
    checkpoint.prune(tmp_path, keep_last=1)
    assert [step for step, _ in checkpoint.list_steps(tmp_path)] == [1, 3]


def test_best_without_scores_is_the_latest(tmp_path):
    for step in (1, 2):
        save(checkpoint_path(tmp_path, step), {}, step=step)
    assert checkpoint.best(tmp_path) == checkpoint_path(tmp_path, 2)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, failing):
    path = checkpoint_path(tmp_path, 5)
    save(path, {"value": 1}, step=5)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(RunError, match="No space left on device; free some space"):
        save(path, {"value": 2}, step=5)
    monkeypatch.undo()
    assert load(path) == {"value": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_rename_comes_after_the_content_is_on_disk(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    save(tmp_path / "a.safetensors", {}, step=0)
    assert events == ["fsync", "replace", "fsync"]  # file, rename, folder


def test_require_finite_names_the_tensor():
    good = [("a", torch.ones(2)), ("count", torch.tensor(3))]
    checkpoint.require_finite(good, "the policy")
    with pytest.raises(NonFiniteError, match="the policy holds NaN or infinity in b"):
        checkpoint.require_finite([*good, ("b", torch.tensor([1.0, math.nan]))], "the policy")


def test_weights_hash_sees_values_names_and_dtypes_but_not_order():
    a, b = torch.arange(3.0), torch.ones(2)
    digest = checkpoint.weights_hash([("a", a), ("b", b)])
    assert digest == checkpoint.weights_hash([("b", b), ("a", a)])
    assert digest != checkpoint.weights_hash([("a", a + 1e-7), ("b", b)])
    assert digest != checkpoint.weights_hash([("a", a), ("c", b)])
    assert digest != checkpoint.weights_hash([("a", a.double()), ("b", b)])


def test_the_header_is_plain_json(tmp_path):
    save(tmp_path / "a.safetensors", {"x": np.zeros(2)}, step=7, score=1.5)
    content = (tmp_path / "a.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"]["step"] == "7" and header["__metadata__"]["format"] == "gpurl-checkpoint"
