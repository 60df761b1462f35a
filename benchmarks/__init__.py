"""Benchmarks: cases as data (`cases.py`), one measuring process per contender (`workers/`), tables and JSON lines.

Entry points, also reached as `gpurl bench env|train`:

* `benchmarks.env_bench.run(...)`: environment steps per second, with or without peers;
* `benchmarks.train_bench.run(...)`: training samples per second, with or without peers;
* `python -m benchmarks.presets`: every preset over several seeds, evaluated in Gymnasium's own environments.

Importing this package imports nothing else: the workers also run under interpreters that have only a peer installed.
"""
