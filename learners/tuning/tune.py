"""Tuning from its first measurement to its decision.

1. Speeds: collecting over numbers of environments and horizons, updating over batch sizes (on-policy: whole trainings over
   numbers of environments), as far as memory and the budget allow.
2. The model (`learners.tuning.model`) proposes a few settings.
3. Each is trained for the same few seconds, the default too; the first to a common return is trained with a second seed
   against the default, and kept if it is ahead again (`learners.tuning.verdict`).
4. Where sampler and learner may have cores of their own, the fastest split is taken: it changes no setting of learning.

Steps 2 and 3 are functions of what was recorded: `decision_of` makes the same decision from a file's measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuenvs.errors import ConfigError, GpurlError
from gpuenvs.runtime.threads import allowed_cores
from learners import system
from learners.build import RunConfig
from learners.compat import off_policy
from learners.distributed import place
from learners.envs import env_name
from learners.placement import choose, free_memory, require_memory, this_machine
from learners.tuning import file, measure, model, verdict
from learners.tuning.knee import saturated
from learners.tuning.model import DEFAULT, Candidate, Sampling, Training, Updating
from learners.tuning.verdict import Trial

BUDGET_SECONDS = 45.0
LEAST_BUDGET = 10.0
WARM_SECONDS = 0.05
MEASURING, SPLITTING = 0.2, 0.1  # shares of the budget
CHALLENGERS = 2
FASTER = 1.05  # a split of cores must be so much faster than none
TUNED = ("num_envs", "num_steps", "batch_size", "update_to_data")
ENVS, HORIZONS = (16, 64, 256, 1024, 4096), (1, 4, 16, 64)
BATCHES = tuple(32 * 2**k for k in range(11))  # to 32,768
ENVS_OF_PRESET = (0.5, 1, 2, 4, 8, 0.25)
MOST_ROWS = 32_768  # of a horizon; a quarter of the replay where that is less
SEEDS = (1, 2)  # added to the run's own: settings must not be chosen for their luck with it


@dataclass(frozen=True)
class Meters:
    """The measurements; tests give others. Each gets a `RunConfig`."""

    sampling: Callable[[RunConfig], float] = measure.sampling_hz
    updating: Callable[[RunConfig], float] = measure.update_frames_hz
    training: Callable[[RunConfig], float] = measure.training_hz
    train: Callable[[RunConfig, str, float], Trial] = measure.train
    free: Callable[[str], int | None] = free_memory
    cores: Callable[[], int] = allowed_cores
    clock: Callable[[], float] = time.perf_counter


@dataclass
class Tuning:
    """What a tuning has found so far."""

    config: RunConfig
    fixed: tuple[str, ...]
    say: Callable[[str], None]
    meters: Meters
    sampling: list[Sampling] = field(default_factory=list)
    updates: list[Updating] = field(default_factory=list)
    training: list[Training] = field(default_factory=list)
    splits: list[dict[str, float]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    @property
    def default(self) -> dict[str, Any]:
        """The settings that tuning may change, as they are without it."""
        return {name: self.config.settings[name] for name in (*TUNED, "total_steps") if name in self.config.settings}

    def variant(self, settings: Mapping[str, Any], seed: int | None = None, **own: Any) -> RunConfig:
        """The run with other settings, if memory allows.

        Raises:
            ConfigError, DeviceError: they do not fit.
        """
        made = measure.changed(self.config, dict(settings), seed, **own)
        require_memory(made, self.meters.free)
        return made

    def measured(self, what: Callable[[RunConfig], float], settings: Mapping[str, Any]) -> float | None:
        """Its speed; None, with the reason noted, where that is not possible."""
        try:
            return what(self.variant(settings))
        except (GpurlError, RuntimeError, MemoryError) as error:
            if settings.items() <= self.default.items():
                raise  # the default must work
            shown = " ".join(f"{name}={value}" for name, value in settings.items())
            self.skipped.append({"what": shown, "why": " ".join(str(error).split())[:300]})
            return None


def tune(
    config: RunConfig,
    budget: float = BUDGET_SECONDS,
    fixed: Iterable[str] = (),
    free_placement: bool = False,
    say: Callable[[str], None] = lambda line: None,
    meters: Meters | None = None,
) -> dict[str, Any]:
    """The document of a tuning (`learners.tuning.file`): everything measured, and the decision.

    Args:
        config: the run as it would be without tuning.
        budget: seconds that it may take, about; compiling kernels for the first time comes on top.
        fixed: names of settings that the user has decided.
        free_placement: the user left open where to compute.
        say: gets lines for people.

    Raises:
        ConfigError: the run cannot be tuned.
    """
    if place() is not None:
        raise ConfigError("tuning is for one process; tune first, then give its file to all with --tuned")
    if budget < LEAST_BUDGET:
        raise ConfigError(f"--budget must be at least {LEAST_BUDGET:g} seconds, got {budget:g}")
    meters = meters or Meters()
    if free_placement:
        config = _placed(config, meters, say)
    found = Tuning(config, tuple(fixed), say, meters)
    _warm_up(found)
    began = meters.clock()
    if off_policy(config.algo):
        _measure_off_policy(found, began + MEASURING * budget)
    else:
        _measure_on_policy(found, began + MEASURING * budget)
    candidates = propose(config.algo, found.default, found.fixed, found.sampling, found.updates, found.training)
    _say_candidates(found, candidates)
    _try(found, candidates, began + (1 - (SPLITTING if _splits(found) else 0.0)) * budget)
    chosen = _chosen(candidates, verdict.decide(found.trials).chosen)
    _measure_splits(found, chosen.settings, began + budget)
    document: dict[str, Any] = {
        "format": file.FORMAT,
        "env": env_name(config),
        "algo": config.algo,
        "schedule": config.schedule,
        "seed": config.seed,
        "budget_seconds": budget,
        "seconds": round(meters.clock() - began, 2),
        "versions": system.versions(),
        "machine": system.machine(),
        "fixed": sorted(found.fixed),
        "default": found.default,
        "sampling": [asdict(point) for point in found.sampling],
        "updates": [asdict(point) for point in found.updates],
        "training": [asdict(point) for point in found.training],
        "splits": found.splits,
        "skipped": found.skipped,
        "candidates": [candidate.to_dict() for candidate in candidates],
        "trials": [trial.to_dict() for trial in found.trials],
    }
    where = {name: getattr(config, name) for name in file.PLACEMENT}
    document["decision"] = {**decision_of(document), "placement": where}
    say(f"decision: {document['decision']['why']}")
    return document


def propose(
    algo: str,
    default: dict[str, Any],
    fixed: Iterable[str],
    sampling: Sequence[Sampling],
    updates: Sequence[Updating],
    training: Sequence[Training],
) -> list[Candidate]:
    """The default and at most `CHALLENGERS` others, the most promising first."""
    found = (
        model.off_policy(default, sampling, updates, fixed)
        if off_policy(algo)
        else model.on_policy(default, training, fixed)
    )
    return found[: 1 + CHALLENGERS]


def decision_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The decision that a document's measurements lead to, without the placement."""
    candidates = propose(
        document["algo"],
        document["default"],
        document["fixed"],
        [Sampling(**point) for point in document["sampling"]],
        [Updating(**point) for point in document["updates"]],
        [Training(**point) for point in document["training"]],
    )
    found = verdict.decide([Trial.from_dict(trial) for trial in document["trials"]])
    chosen, why = _chosen(candidates, found.chosen), found.why
    own: dict[str, Any] = {}
    cores = best_split(document["splits"])
    if cores:
        own["sampler_cores"] = cores
        why += f"; {cores} of the cores for the sampler: faster, and nothing is learned differently"
    return {
        "chosen": chosen.name,
        "why": why,
        "goal": found.goal,
        "settings": chosen.settings,
        "schedule_settings": own,
    }


def best_split(splits: Sequence[Mapping[str, float]]) -> int:
    """Cores for the sampler alone; 0, all for all, unless a split is `FASTER`."""
    whole = next((split["hz"] for split in splits if split["sampler_cores"] == 0), None)
    if whole is None:
        return 0
    best = max(splits, key=lambda split: split["hz"])
    return int(best["sampler_cores"]) if best["hz"] >= FASTER * whole else 0


def _chosen(candidates: Sequence[Candidate], name: str) -> Candidate:
    return next(candidate for candidate in candidates if candidate.name == name)


def _placed(config: RunConfig, meters: Meters, say: Callable[[str], None]) -> RunConfig:
    """The run in the fastest placement there is; with one that is possible nothing is measured."""
    placement, lines = choose(this_machine(), lambda p: meters.training(config.placed(p)))
    for line in (f"placement {placement.describe()}", *lines):
        say(line)
    return config.placed(placement)


def _warm_up(found: Tuning) -> None:
    """Load or compile every kernel before the clock runs; raises what the default itself raises."""
    found.meters.training(found.variant({}))
    if off_policy(found.config.algo):
        found.meters.sampling(found.variant({}))
    found.meters.train(found.variant({}), DEFAULT, WARM_SECONDS)


def _measure_off_policy(found: Tuning, until: float) -> None:
    default, meters, began = found.default, found.meters, found.meters.clock()
    middle = (began + until) / 2
    sizes = sorted({default["batch_size"], *BATCHES}) if "batch_size" not in found.fixed else [default["batch_size"]]
    # The default first, then smaller ones downwards, then larger ones until more is of no use.
    own = sizes.index(default["batch_size"])
    larger: list[tuple[int, float]] = []
    for size in [*sizes[own::-1][:3], *sizes[own + 1 :]]:
        if found.updates and (meters.clock() > middle or saturated(larger)):
            break
        rate = found.measured(meters.updating, {"batch_size": size})
        if rate is None:
            continue
        found.updates.append(Updating(size, rate))
        found.say(f"  batch_size {size:<22} {rate:>14,.0f} update frames/s")
        if size >= default["batch_size"]:
            larger.append((size, rate))
    found.updates.sort(key=lambda point: point.batch_size)
    most = min(MOST_ROWS, found.config.settings["buffer_size"] // 4, model.most_rows(default))
    pairs = [(default["num_envs"], default["num_steps"])]
    pairs += sorted(((n, t) for n in ENVS for t in HORIZONS if n * t <= most), key=lambda p: (p[0] * p[1], p[0]))
    for envs, steps in dict.fromkeys(pairs):
        settings = {"num_envs": envs, "num_steps": steps}
        if any(name in found.fixed and settings[name] != default[name] for name in settings):
            continue
        if found.sampling and meters.clock() > until:
            break
        rate = found.measured(meters.sampling, settings)
        if rate is not None:
            found.sampling.append(Sampling(envs, steps, rate))
            found.say(f"  num_envs {envs:<5} num_steps {steps:<8} {rate:>14,.0f} steps/s sampled")


def _measure_on_policy(found: Tuning, until: float) -> None:
    default = found.default
    counts = dict.fromkeys([default["num_envs"], *(int(default["num_envs"] * k) for k in ENVS_OF_PRESET)])
    for envs in [*counts, default["num_envs"]]:  # the default once more: all others are compared with it
        if envs < 1 or (envs != default["num_envs"] and "num_envs" in found.fixed):
            continue
        if found.training and found.meters.clock() > until:
            break
        rate = found.measured(found.meters.training, {"num_envs": envs, "num_steps": default["num_steps"]})
        if rate is not None:
            again = [point.hz for point in found.training if point.num_envs == envs]
            found.training = [point for point in found.training if point.num_envs != envs]
            found.training.append(Training(envs, default["num_steps"], max([rate, *again])))
            found.say(f"  num_envs {envs:<24} {rate:>14,.0f} steps/s trained")


def _try(found: Tuning, candidates: Sequence[Candidate], until: float) -> None:
    """Train the candidates, and whoever is ahead against the default once more."""
    clock = found.meters.clock
    count = len(candidates) + 2  # the last two: the default and the best with another seed
    seconds = (until - clock()) / (count * (1 + measure.EVALUATION_SHARE))
    if len(candidates) < 2 or seconds <= 0:
        return
    seeds = [(found.config.seed + more) % 2**63 for more in SEEDS]
    for candidate in candidates:
        _train(found, candidate, seeds[0], seconds)
    decided = verdict.decide(found.trials)
    if decided.confirm:
        rest = max(1, until - clock()) / (2 * (1 + measure.EVALUATION_SHARE))
        for name in (decided.chosen, DEFAULT):
            _train(found, _chosen(candidates, name), seeds[1], max(seconds, rest))


def _train(found: Tuning, candidate: Candidate, seed: int, seconds: float) -> None:
    trial = found.meters.train(found.variant(candidate.settings, seed), candidate.name, seconds)
    found.trials.append(trial)
    found.say(f"  trained {trial.seconds:.1f} s, seed {seed}: return {trial.last:>10.1f}  {candidate.name}")


def _splits(found: Tuning) -> list[int]:
    """Numbers of cores that the sampler may have alone; none where there is nothing to split."""
    config = found.config
    own = config.schedule_settings
    if "sampler_cores" in found.fixed or "sampler_cores" not in own or own.get("deterministic"):
        return []
    if config.env_device != "cpu" or config.env_backend != "device":
        return []
    if not found.default.get("update_to_data"):
        return []  # steps per second say nothing of learning where no ratio ties the two
    cores = found.meters.cores()
    return sorted({n for n in (1, cores // 2, cores - 1) if 0 < n < cores})


def _measure_splits(found: Tuning, settings: Mapping[str, Any], until: float) -> None:
    possible = _splits(found)
    for cores in [0, *possible] if possible else []:
        if len(found.splits) > 1 and found.meters.clock() > until:
            break
        rate = found.meters.training(found.variant(settings, None, sampler_cores=cores))
        found.splits.append({"sampler_cores": cores, "hz": rate})
        found.say(f"  sampler_cores {cores:<19} {rate:>14,.0f} steps/s trained")


def _say_candidates(found: Tuning, candidates: Sequence[Candidate]) -> None:
    for candidate in candidates[1:]:
        found.say(f"candidate {candidate.name}: {candidate.speedup:.2f} times as fast to a return by the model")
    if len(candidates) < 2:
        found.say("the model has nothing better than the default")
