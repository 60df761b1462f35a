"""Tests that need a CUDA device: `pytest -m gpu`. Skipped where there is none; not yet run on hardware."""
