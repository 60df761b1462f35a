"""One module per contender. Each is measured in a fresh process: `python benchmarks/workers '{"worker": ..., ...}'`.

A worker module has one function `measure(request, clock) -> dict`; `clock` is `timing.Clock`. It may import the standard
library, numpy and the contender itself, nothing else: it runs under the interpreter that has the contender installed.
"""
