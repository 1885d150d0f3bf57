"""A model to how fast it is steered: ratios of median times, measured in turns in one process."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from slalom.api import SteerableModel, load
from slalom.backbone.engines import EngineName, has_openvino
from slalom.backbone.model import LanguageModel, load_parts
from slalom.backbone.rollout import Limits
from slalom.constraints import Constraint, Sentiment, TableClassifier, classifier
from slalom.decoding import climb
from slalom.decoding.climb import Climb
from slalom.decoding.dab import PAPER
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem, Request, Sampler, Stop
from slalom.decoding.scheduler import decode
from slalom.evaluation.textbook import Textbook

PROMPT = "The food here is"  # four tokens of the default LM
LENGTH = 20
TABLE_CLASSIFIER = "sentiment-smollm2"  # in the paper's construction, which the textbook needs
DEFAULT_SAMPLER = Climb()
TEXTBOOK = replace(PAPER, norm="centred")
STEPS = 4  # steps per repeat: how much of a draft a step writes anew varies from step to step

Log = Callable[[str], None]


class BenchSettings(NamedTuple):
    """How much to measure."""

    model: str
    engines: tuple[EngineName, ...]
    batches: tuple[int, ...] = (1, 20)
    repeats: int = 5
    scaling: bool = True


def measure(settings: BenchSettings, log: Log) -> dict[str, Any]:
    """Everything `slalom bench` prints."""
    lms = {engine: load(settings.model, engine=engine) for engine in settings.engines}
    constraint = Sentiment("positive")
    bfloat16, _ = load_parts(settings.model, torch.bfloat16)
    measured: dict[str, Any] = {"machine": machine(settings.model, lms["torch"])}
    measured["milliseconds"] = step_and_generate(settings, lms, bfloat16, constraint, log)
    steps, plain = measured["milliseconds"]["step"], measured["milliseconds"]["generate"]
    measured["step_over_generate"] = {
        engine: {batch: round(took / plain["bfloat16"][batch], 3) for batch, took in times.items()}
        for engine, times in steps.items()
    }
    measured["step_over_generate_same_dtype"] = {
        batch: round(took / plain[measured["machine"]["dtype"]][batch], 3) for batch, took in steps["torch"].items()
    }
    del bfloat16
    log("textbook")
    measured |= textbook_over_step(lms["torch"], max(settings.batches), settings.repeats)
    log("time to the asked degree")
    measured |= until_over_fixed(lms["torch"], constraint, 15 if settings.scaling else 4)
    if settings.scaling:
        log("scaling")
        measured["scaling"] = scaling(lms["torch"], constraint)
    log("profile")
    measured["profile"] = {engine: profile(lm, constraint, settings.batches) for engine, lm in lms.items()}
    log("memory and start")
    measured |= memory_over_generate(settings.model, max(settings.batches))
    measured["seconds"] = start_up(settings)
    return measured


def machine(model: str, lm: SteerableModel) -> dict[str, Any]:
    """What the figures were measured on."""
    packages = ["slalom", "torch", "transformers", *(["openvino", "nncf"] if has_openvino() else [])]
    return {
        "model": model,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def step_and_generate(
    settings: BenchSettings, lms: dict[EngineName, SteerableModel], bfloat16: Any, constraint: Constraint, log: Log
) -> dict[str, Any]:
    """Median milliseconds of a step of the default sampler and of stock greedy `generate`, in turns."""
    dtype_of_torch = str(lms["torch"].dtype).removeprefix("torch.")
    plain = {dtype_of_torch: lms["torch"].model, "bfloat16": bfloat16}
    steps: dict[str, dict[str, float]] = {engine: {} for engine in lms}
    generate: dict[str, dict[str, float]] = {dtype: {} for dtype in plain}
    for batch in settings.batches:
        log(f"step and generate, batch {batch}")
        calls: dict[tuple[str, str], Callable[[], None]] = {}
        for engine, lm in lms.items():
            calls["step", engine] = _Stepper(lm, constraint, batch).run
        for dtype, model in plain.items():
            calls["generate", dtype] = _generator(lms["torch"], model, batch)
        for (kind, name), took in time_in_turns(calls, settings.repeats).items():
            target, count = (steps, STEPS) if kind == "step" else (generate, 1)
            target[name][str(batch)] = round(1000 * took / count, 1)
    return {"step": steps, "generate": generate}


def time_in_turns(calls: dict[Any, Callable[[], None]], repeats: int) -> dict[Any, float]:
    """Median seconds of each call, taking turns; the first turn is a warm-up and not counted."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, run in calls.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: median(taken[1:]) for name, taken in times.items()}


class _Stepper:
    """A sampler on one prompt: each run takes it some steps further."""

    def __init__(
        self,
        lm: LanguageModel,
        constraint: Constraint,
        batch: int,
        length: int = LENGTH,
        sampler: Sampler = DEFAULT_SAMPLER,
    ) -> None:
        constraint.check(lm.vocabulary, length)
        prompt, settings = lm.encode(PROMPT, length), Preset(sampler, steps=1)
        requests = [Request(prompt, seed, constraint, Limits(length), settings) for seed in range(batch)]
        self.problem, self.steps = Problem.of(lm, requests), 0
        self.rng = Rng.from_seeds(list(range(batch)), lm.device)
        self.sampler = sampler
        self.state = sampler.init(self.problem, self.rng.fold(1))

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.state = self.sampler.step(self.problem, self.state, self.rng.fold(2 + self.steps))
            self.steps += 1


def _generator(lm: LanguageModel, model: Any, batch: int) -> Callable[[], None]:
    return lambda: plain_generate(lm, model, [PROMPT] * batch, LENGTH)


def plain_generate(lm: LanguageModel, model: Any, prompts: list[str], length: int) -> None:
    """Transformers' own greedy `generate`, of exactly so many tokens."""
    read = lm.pad([lm.encode(prompt, length).ids for prompt in prompts])
    greedy = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
    model.generate(input_ids=read.ids, attention_mask=read.mask, **greedy, pad_token_id=lm.vocabulary.pad)


def textbook_over_step(lm: SteerableModel, batch: int, repeats: int) -> dict[str, Any]:
    """The textbook's step over ours: with the default preset, and with the textbook's own knobs.

    With the same knobs the drafts must be equal, but for float ties; `textbook_drafts_alike` counts the equal ones.
    """
    constraint = classifier(TABLE_CLASSIFIER, "positive")
    if not isinstance(constraint, TableClassifier) or constraint.lm != lm.name:
        return {}
    default, same = _Stepper(lm, constraint, batch), _Stepper(lm, constraint, batch, sampler=TEXTBOOK)
    book = Textbook(lm, constraint, [lm.encode(PROMPT, LENGTH)] * batch, LENGTH, TEXTBOOK)
    drafts = [book.first()]

    def textbook_step() -> None:
        drafts.append(book.step(drafts[-1], same.rng.fold(1 + len(drafts))))

    took = time_in_turns({"textbook": textbook_step, "same": lambda: same.run(1), "default": default.run}, repeats)
    equal = int((drafts[-1].tokens == same.state.latest.tokens).all(-1).sum())
    return {
        "textbook_over_step": round(took["textbook"] * STEPS / took["default"], 2),
        "textbook_over_same_knobs": round(took["textbook"] / took["same"], 2),
        "textbook_milliseconds": round(1000 * took["textbook"], 1),
        "textbook_drafts_alike": f"{equal} of {batch} after {len(drafts) - 1} steps",
    }


def until_over_fixed(lm: SteerableModel, constraint: Constraint, count: int) -> dict[str, Any]:
    """Seconds until every text is satisfied to 0.95, over those of 20 drafts each: so many prompts, four at a time."""
    prompts = (files(__package__) / "data" / "sentiment_prompts.txt").read_text(encoding="utf-8").splitlines()[:count]
    seconds = {"until": 0.0, "fixed": 0.0}
    steps: list[int] = []
    for start in range(0, len(prompts), 4):
        batch = [lm.encode(prompt, LENGTH) for prompt in prompts[start : start + 4]]
        for name, stop in (("until", Stop(0.95)), ("fixed", None)):
            settings = Preset(DEFAULT_SAMPLER, steps=20, stop=stop)
            started = time.perf_counter()
            ends = decode(lm, [Request(prompt, 0, constraint, Limits(LENGTH), settings) for prompt in batch])
            seconds[name] += time.perf_counter() - started
            steps += [end.drafts for end in ends] if stop else []
    return {
        "until_over_fixed": round(seconds["until"] / seconds["fixed"], 3),
        "until_mean_drafts": round(sum(steps) / len(steps), 1),
        "until_most_drafts": max(steps),
    }


def scaling(lm: LanguageModel, constraint: Constraint) -> dict[str, dict[str, float]]:
    """Milliseconds of a step as the length and the batch grow."""
    lengths = {str(length): _Stepper(lm, constraint, 4, length) for length in (20, 50, 100)}
    batches = {str(batch): _Stepper(lm, constraint, batch) for batch in (1, 4, 16, 64)}
    return {
        kind: {name: round(1000 * took / 2, 1) for name, took in time_in_turns(_runs(steppers, 2), 2).items()}
        for kind, steppers in (("length, batch 4", lengths), ("batch, length 20", batches))
    }


def _runs(steppers: dict[str, _Stepper], steps: int) -> dict[str, Callable[[], None]]:
    return {name: functools.partial(stepper.run, steps) for name, stepper in steppers.items()}


def profile(lm: SteerableModel, constraint: Constraint, batches: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Milliseconds of a step by part. The head is part of the LM's passes and known for the torch engine alone.

    Calls are timed in place: torch's profiler would need the same patches and slows the step it measures.
    """
    milliseconds: dict[str, dict[str, float]] = {}
    for batch in batches:
        seconds: dict[str, float] = defaultdict(float)
        with contextlib.ExitStack() as timers:
            for owner, name, part in (
                (lm.engine, "prefill", "prefill"),
                (lm.model.get_output_embeddings(), "forward", "of which head"),
                (constraint, "score", "constraint"),
                (climb, "shortlist", "shortlist"),
                (climb, "rollout", "rollout"),
            ):
                timers.enter_context(_timed_calls(owner, name, part, seconds))
            stepper = _Stepper(lm, constraint, batch)
            seconds.clear()
            timers.enter_context(_timed_passes(lm, seconds))
            started = time.perf_counter()
            stepper.run(2 * STEPS)
            seconds["step"] = time.perf_counter() - started
        seconds["rest of the rollout"] = seconds.pop("rollout") - seconds["LM passes"]
        milliseconds[str(batch)] = {part: round(1000 * took / (2 * STEPS), 1) for part, took in seconds.items()}
    return milliseconds


@contextlib.contextmanager
def _timed_calls(owner: Any, name: str, part: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the time of every call of owner.name to seconds[part], inside a `with` block."""
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds[part] += time.perf_counter() - started

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _timed_passes(lm: LanguageModel, seconds: dict[str, float]) -> Iterator[None]:
    """The same for every forward pass of the engine; a rollout has an object of its own."""
    original = lm.engine.start

    def start(*args: Any) -> Any:
        rollout_pass = original(*args)
        passes.enter_context(_timed_calls(rollout_pass, "read", "LM passes", seconds))
        return rollout_pass

    with contextlib.ExitStack() as passes:
        setattr(lm.engine, "start", start)  # noqa: B010
        try:
            yield
        finally:
            setattr(lm.engine, "start", original)  # noqa: B010


def memory_over_generate(model: str, batch: int) -> dict[str, Any]:
    """Peak memory of a process that steers, over that of one that generates: each in a process of its own."""
    peaks = {what: _peak(what, model, batch) for what in ("generate", "steer")}
    return {"memory_over_generate": round(peaks["steer"] / peaks["generate"], 3), "peak_megabytes": peaks}


def _peak(what: str, model: str, batch: int) -> int:
    code = f"import {__name__} as bench; bench.print_peak_memory({what!r}, {model!r}, {batch})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(run.stdout.split()[-1])


def print_peak_memory(what: str, model: str, batch: int) -> None:
    """Load the model, steer or generate, and print this process's peak memory in megabytes."""
    lm = load(model, engine="torch")
    if what == "steer":
        _Stepper(lm, Sentiment("positive"), batch).run()
    else:
        _generator(lm, lm.model, batch)()
    print(_peak_memory())


def _peak_memory() -> int:
    """Megabytes. On Linux rusage inherits the parent's peak, so /proc is read instead."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) >> 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)


def start_up(settings: BenchSettings) -> dict[str, float]:
    """Seconds of `slalom --help`, and of loading the model on each engine once it is in the cache."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "slalom.frontends.cli", "--help"], capture_output=True, check=True)
    took = {"slalom --help": round(time.perf_counter() - started, 2)}
    for engine in settings.engines:
        started = time.perf_counter()
        load(settings.model, engine=engine)
        took[f"load, {engine}"] = round(time.perf_counter() - started, 2)
    return took


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo", encoding="utf-8"):  # noqa: SIM115
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
