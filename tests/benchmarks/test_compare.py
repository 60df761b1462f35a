from benchmarks import compare
from benchmarks.cases import Contender

A = Contender("a", worker="a", package="a", install="pip install a", peer=False)
B = Contender("b", worker="b", package="b", install="pip install b", peer=True)


def _run(monkeypatch, answers, repeats=2):
    calls = []

    def measure(contender, python, request):
        calls.append((contender.name, "config" in request))
        return answers(contender.name, request, len(calls))

    monkeypatch.setattr(compare, "measure", measure)
    request = {"env_id": "X-v0", "seconds": 0.1}
    return compare.side_by_side([A, B], request, "python", repeats, lambda message: None), calls


def test_contenders_sweep_first_and_then_take_turns(monkeypatch):
    def answers(name, request, number):
        return {"rate": float(number), "config": {"n": name}, "tried": [{"n": name, "rate": 1.0}], "jit_seconds": 2.0}

    results, calls = _run(monkeypatch, answers)
    assert calls == [("a", False), ("b", False), ("a", True), ("b", True), ("a", True), ("b", True)]
    # The sweep's own rate is not among the samples: it was the maximum of many.
    assert results["a"]["samples"] == [3.0, 5.0]
    assert results["a"]["rate"] == 4.0
    assert results["b"]["config"] == {"n": "b"}
    assert results["b"]["sweep"] == [{"n": "b", "rate": 1.0}]
    assert results["a"]["jit_seconds"] == 2.0


def test_a_missing_contender_is_not_asked_again(monkeypatch):
    def answers(name, request, number):
        return {"missing": "b"} if name == "b" else {"rate": 7.0, "config": {}, "tried": []}

    results, calls = _run(monkeypatch, answers)
    assert results["b"] == {"missing": "b"}
    assert results["a"]["rate"] == 7.0
    assert [name for name, _ in calls].count("b") == 1
