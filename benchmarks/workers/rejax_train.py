"""rejax PPO: every iteration of the run inside one compiled JAX program; compilation is timed apart."""

import time


def measure(request, clock):
    import jax
    from rejax import PPO

    algo = PPO.create(
        env=request["env_id"],
        num_envs=request["num_envs"],
        num_steps=request["num_steps"],
        num_epochs=request["update_epochs"],
        num_minibatches=request["num_minibatches"],
        learning_rate=request["learning_rate"],
        gamma=request["gamma"],
        gae_lambda=request["gae_lambda"],
        clip_eps=request["clip_coef"],
        ent_coef=request["ent_coef"],
        vf_coef=request["vf_coef"],
        max_grad_norm=request["max_grad_norm"],
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        normalize_observations=request["normalize_observations"],
    )
    rows = request["num_envs"] * request["num_steps"]
    state = algo.init_state(jax.random.PRNGKey(request["seed"]))

    def compiled(iterations):
        def iterate(carry, _):
            return algo.train_iteration(carry), None

        program = jax.jit(lambda carry: jax.lax.scan(iterate, carry, None, iterations)[0])
        start = time.perf_counter()
        program = program.lower(state).compile()
        return program, time.perf_counter() - start

    def timed(program):
        start = time.perf_counter()
        jax.block_until_ready(program(state))
        return time.perf_counter() - start

    short, _ = compiled(4)
    timed(short)
    iterations = max(4, int(clock.seconds / (timed(short) / 4)))
    program, compile_seconds = compiled(iterations)
    timed(program)
    return {
        "rate": iterations * rows / timed(program),
        "config": {},
        "tried": [],
        "compile_seconds": compile_seconds,
    }
