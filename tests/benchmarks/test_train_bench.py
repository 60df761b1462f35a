from benchmarks import train_bench
from benchmarks.cases import TRAIN_CASES, TRAIN_PEERS, TrainCase


def _fake(monkeypatch, results):
    requests = []

    def side_by_side(contenders, request, python, repeats, progress):
        requests.append(request)
        return {contender.name: dict(results[contender.name]) for contender in contenders}

    monkeypatch.setattr(train_bench, "side_by_side", side_by_side)
    monkeypatch.setattr(train_bench, "measure", lambda *_: {"fma_per_second": 113_600e6})
    return requests


def test_everyone_gets_the_same_settings_and_ratios_are_of_medians(monkeypatch):
    answers = {peer.name: {"rate": 50e3, "samples": [50e3], "config": {}} for peer in TRAIN_PEERS}
    own = {"rate": 250e3, "samples": [250e3], "config": {"threads": 1}, "compile_seconds": 3.0}
    requests = _fake(monkeypatch, {"gpurl PPO": own, **answers})
    rows = train_bench.run(peers=True)
    assert [request["num_minibatches"] for request in requests] == [case.num_minibatches for case in TRAIN_CASES]
    first = rows[1 : 2 + len(TRAIN_PEERS)]
    assert [row["contender"] for row in first] == ["gpurl PPO", *(peer.name for peer in TRAIN_PEERS)]
    assert first[0]["samples_per_second"] == 250e3
    assert first[0]["compile_seconds"] == 3.0
    assert first[0]["floor"]["samples_per_second"] == 113_600e6 / first[0]["floor"]["multiply_adds_per_sample"]
    assert first[0]["floor"]["fraction"] == 250e3 / first[0]["floor"]["samples_per_second"]
    assert all(row["gpurl_ratio"] == 5 for row in first[1:])
    assert len(train_bench.tables(rows)) == 1


def test_a_missing_peer_is_a_row_that_says_how_to_install_it(monkeypatch):
    answers = {peer.name: {"missing": peer.package} for peer in TRAIN_PEERS}
    _fake(monkeypatch, {"gpurl PPO": {"error": "killed"}, **answers})
    rows = train_bench.run(peers=True)
    assert rows[1]["error"] == "killed"
    assert rows[2]["install"] == "pip install stable-baselines3"
    assert train_bench.tables(rows)[0].row_count == len(rows) - 1


def test_multiply_adds_by_hand():
    """Two 3-2-1 networks, one epoch: 8 forward each; backward 8 for weights and 2 for the hidden layer."""
    case = TrainCase("", "", 1, 1, update_epochs=1, num_minibatches=1)
    assert train_bench.multiply_adds(case, obs_dim=3, actions=1, hidden=(2,)) == 2 * (8 + 8 + 8 + 2)


def test_cases_divide_evenly():
    for case in TRAIN_CASES:
        assert case.num_envs * case.num_steps % case.num_minibatches == 0
