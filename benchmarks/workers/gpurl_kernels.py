"""Each kernel of one environment on one device, and what the device does at best, one after the other in this process."""

import contextlib
import time
from typing import Any

STEPS = 32  # of a rollout, and of a kernel that does many steps


def measure(request, clock):
    if request["device"] == "cpu":
        return on_cpu(request, clock)
    return on_cuda(request, clock)


def make_env(request):
    import gpuenvs

    options = {"threads": request["threads"]} if request["device"] == "cpu" else {}
    env = gpuenvs.make(request["env_id"], request["num_envs"], device=request["device"], seed=0, **options)
    env.reset(seed=0)
    return env


def attempt(name, work):
    """A row of the answer; one that cannot be had says why and leaves the others alone."""
    from gpuenvs.errors import GpurlError

    try:
        return {"kernel": name, **work()}
    except (GpurlError, ImportError) as error:
        return {"kernel": name, "skipped": str(error)}
    except Exception as error:
        return {"kernel": name, "error": f"{type(error).__name__}: {error}"}


def rollout_parts(env: Any, device: str) -> tuple[Any, Any, Any]:
    """(policy, rollout, collector) of the fused rollout under the learners' default network."""
    from learners.collector import Collector
    from learners.networks import Policy
    from learners.rollout import Rollout

    policy = Policy(env.single_observation_space, env.single_action_space, device=device)
    rollout = Rollout(STEPS, env.num_envs, env.single_observation_space, env.single_action_space, device)
    return policy, rollout, Collector(env, device, collector="fused", check=False)


def best(clock, work, units):
    """Units per second in the best of three windows, as the device's own rates are taken."""
    return max(clock.rate(work, units, clock.seconds / 3) for _ in range(3))


# --- CPU -------------------------------------------------------------------------------------------------------------


def on_cpu(request, clock):
    import machine_floor  # type: ignore[import-not-found]
    import numpy as np
    from actions import batches

    from benchmarks.kernel_costs import kernel_bytes, policy_flops, rollout_bytes

    threads, seconds = request["threads"], min(clock.seconds, 0.3)
    env = make_env(request)
    backend, n = env.backend, env.num_envs
    action_dtype = "int32" if env.spec.discrete else "float32"
    # Rows of the action buffer are (k, n).
    drawn = [np.ascontiguousarray(a.reshape(n, -1).T) for a in batches(request["action"], n, action_dtype)]
    turn, every = iter(range(10**12)), np.arange(n)
    kernels = {
        "step_kernel": lambda: backend.step(drawn[next(turn) % len(drawn)]),
        "begin_kernel": lambda: backend.begin(every),
        "observe_kernel": lambda: backend.observe(every),
    }

    def timed(name):
        rate = best(clock, kernels[name], n)
        moved = kernel_bytes(backend.layout, backend.real, name)
        used = backend._threads.count if name == "step_kernel" else 1  # as many as paid
        copy = machine_floor.copy_rate(used, seconds, moved * n)
        return {"steps_per_second": rate, "bytes_per_step": moved, "threads": used, "copy_bytes_per_second": copy}

    def rollout():
        policy, storage, collector = rollout_parts(env, "cpu")
        rate = best(clock, lambda: collector.collect(policy, storage), storage.rows)
        moved = rollout_bytes(storage.fields, STEPS, n, more=("value",))
        copy = machine_floor.copy_rate(threads, seconds, int(moved * storage.rows))
        flops = policy_flops(policy.actor.sizes, policy.critic.sizes)
        found = {"steps_per_second": rate, "bytes_per_step": moved, "threads": threads, "copy_bytes_per_second": copy}
        return {**found, "policy_flops_per_step": flops}

    rows = [attempt(name, lambda name=name: timed(name)) for name in kernels]
    rows.append(attempt("rollout", rollout))
    env.close()
    rates = machine_floor.measure({"threads": threads, "working_set": 2**20}, clock)
    rates["sgemm_flops_per_second"] = machine_floor.sgemm_rate(threads, seconds)
    return {"kernels": rows, "rates": rates}


# --- CUDA ------------------------------------------------------------------------------------------------------------


class Stopwatch:
    """Times work on one stream by events, many launches at a time, recorded in a graph where that is possible."""

    LAUNCHES = 16  # of one graph: reading the clock and launching cost nothing beside it

    def __init__(self, seconds):
        import cupy

        self.cupy, self.seconds = cupy, seconds
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def seconds_per_call(self, work):
        """(seconds of one call of `work`, which launches and returns; whether calls came from a graph)."""
        with self.stream:
            work()  # compiles
            work()
            self.stream.synchronize()
            try:
                self.stream.begin_capture()
                try:
                    for _ in range(self.LAUNCHES):
                        work()
                finally:
                    graph = self.stream.end_capture()
                return self._time(lambda: graph.launch(self.stream)) / self.LAUNCHES, True
            except Exception:  # something in the launch cannot be recorded: time it as it is
                self.stream.synchronize()
                return self._time(work), False

    def _time(self, work):
        """The least over three windows of this watch's seconds."""
        calls, elapsed = 1, 0.0
        while elapsed < self.seconds / 5:
            calls *= 2
            elapsed = self._window(work, calls)
        calls = max(1, int(calls * self.seconds / elapsed))
        return min(self._window(work, calls) for _ in range(3)) / calls

    def _window(self, work, calls):
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record(self.stream)
        for _ in range(calls):
            work()
        end.record(self.stream)
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(begin, end) / 1e3


def on_cuda(request, clock):
    import cuda_floor  # type: ignore[import-not-found]
    import cupy
    import numpy as np
    from actions import batches

    from benchmarks.kernel_costs import kernel_bytes, steps_bytes

    index = int(request["device"].partition(":")[2] or 0)
    with cupy.cuda.Device(index), contextlib.ExitStack() as closing:
        watch = Stopwatch(min(clock.seconds, 0.3))
        env = closing.enter_context(make_env(request))
        backend, n, spec = env.backend, env.num_envs, env.spec
        drawn = batches(request["action"], n, "int32" if spec.discrete else "float32")[:4]
        actions = [cupy.asarray(np.ascontiguousarray(a.reshape(n, -1).T)) for a in drawn]
        turn, every = iter(range(10**12)), cupy.arange(n)
        cupy.cuda.Device(index).synchronize()  # the watch's stream waits for no other

        def over_rows(name):
            if spec.traced:
                return lambda: backend._run(name, n, backend.arrays["action"], every)
            listed = backend._view(every)
            return lambda: backend._launch(name, n, listed)

        kernels = {"step_kernel": lambda: backend.step(actions[next(turn) % 4])}
        kernels |= {name: over_rows(name) for name in ("begin_kernel", "observe_kernel")}

        def timed(name):
            with backend.on_device():
                seconds, graph = watch.seconds_per_call(kernels[name])
            moved = kernel_bytes(backend.layout, backend.real, name)
            copy = cuda_floor.copy_rate(watch, moved * n)
            found = {"steps_per_second": n / seconds, "bytes_per_step": moved, "copy_bytes_per_second": copy}
            return {**found, "graph": graph, **usage(own_kernel(backend, name), index, n)}

        def steps():
            from gpuenvs.runtime.cuda_rollout import StepsKernel

            kernel = StepsKernel(backend, "random")
            seconds, graph = watch.seconds_per_call(lambda: kernel.launch(STEPS))
            moved = steps_bytes(backend.layout, backend.real, STEPS)
            found = {"steps_per_second": n * STEPS / seconds, "bytes_per_step": moved, "graph": graph}
            return {**found, **usage(kernel._kernel, index, n)}

        rows = [attempt(name, lambda name=name: timed(name)) for name in kernels]
        rows.append(attempt(f"{STEPS} steps, random actions", steps))
        rows.append(attempt("rollout", lambda: cuda_rollout(env, watch, request["device"], index)))
        return {"kernels": rows, "rates": cuda_floor.rates(watch, request["device"])}


def cuda_rollout(env, watch, device, index):
    """The fused rollout: whole horizons in one launch each."""
    from benchmarks.kernel_costs import policy_flops, rollout_bytes

    policy, storage, collector = rollout_parts(env, device)
    import torch

    seconds, done = 0.0, 0
    collector.collect(policy, storage)
    collector.collect(policy, storage)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    while seconds < watch.seconds:
        for _ in range(4):
            collector.collect(policy, storage)
            done += storage.rows
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
    found = {
        "steps_per_second": done / seconds,
        "bytes_per_step": rollout_bytes(storage.fields, STEPS, env.num_envs),
        "policy_flops_per_step": policy_flops(policy.actor.sizes),
    }
    from learners.collectors.fused_cuda import FusedCudaRollout

    kernel = FusedCudaRollout(env, policy, collector._noise)._kernel._kernel  # the same one: kernels are kept
    return {**found, **usage(kernel, index, env.num_envs)}


def own_kernel(backend, name):
    """What was compiled for `step_kernel` and the others."""
    if backend.layout.spec.traced:
        return backend.kernel(name)
    from gpuenvs.runtime.cuda import _compiled

    return _compiled(backend.layout, backend.real.name, name)


def usage(kernel, index, rows):
    """Registers, local and shared bytes, threads of a block and occupancy of a numba-cuda dispatcher or a cupy function."""
    from cuda_floor import limits  # type: ignore[import-not-found]

    from benchmarks.kernel_costs import occupancy
    from gpuenvs.runtime.cuda import THREADS_PER_BLOCK

    threads, bounds = THREADS_PER_BLOCK, limits(index)
    if hasattr(kernel, "overloads"):
        compiled = list(kernel.overloads.values())[-1]
        registers, local = compiled.regs_per_thread, compiled.local_mem_per_thread
        shared = compiled.shared_mem_per_block
    else:
        from cupy.cuda import driver

        from gpuenvs.runtime.traced_cuda import threads_per_block

        registers, local, shared = (
            driver.funcGetAttribute(attribute, kernel.ptr)
            for attribute in (
                driver.CU_FUNC_ATTRIBUTE_NUM_REGS,
                driver.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            )
        )
        threads = threads_per_block(rows, bounds["processors"])
    return {
        "registers": registers,
        "local_bytes": local,
        "shared_bytes": shared,
        "threads_per_block": threads,
        "occupancy": occupancy(registers, threads, shared, bounds),
    }
