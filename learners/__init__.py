"""Algorithms, rollouts, schedules, runs and evaluation on top of gpuenvs and PyTorch."""
