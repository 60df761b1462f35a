"""Rollouts from environments in processes of their own: actor threads batch whatever is ready, each env at its own pace.

Results are a function of (seed, env, step) and of the weights alone: not of timing, of the number of executors or actors,
or of which environments happen to be ready together.
"""
