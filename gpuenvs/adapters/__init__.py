"""Other libraries' interfaces over a batch: one Gymnasium environment, Stable-Baselines3's VecEnv, DLPack loops.

Gymnasium's own VectorEnv is `gpuenvs.runtime.gym`. What each copies:

| adapter | copied per step |
|---|---|
| `gymnasium.make_vec("gpuenvs/<id>")` | every output once; nothing with `live_views=True` |
| `single.SingleEnv` | its one row: for debugging |
| `sb3.SB3VecEnv` | every output once (on CUDA: to the host), and the final observations of rows that ended |
| `dlpack.TensorEnv` with torch, cupy or numpy | no output; actions once where their memory order requires it |
| `dlpack.TensorEnv` with JAX | every output once, for JAX's arrays may not change |

Nothing here is imported before it is asked for: Stable-Baselines3 and JAX are not needed otherwise.
"""
