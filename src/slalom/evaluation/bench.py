"""A model to how fast it is steered: every figure a ratio of medians, measured side by side in one run."""

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
from slalom.decoding import dab
from slalom.decoding.dab import DAB, PAPER
from slalom.decoding.randomness import Rng
from slalom.decoding.run import decode
from slalom.decoding.sampler import Judge, Problem, Stop
from slalom.evaluation.textbook import Textbook

PROMPT = "The food here is"  # four tokens of the default LM
LENGTH = 20
TABLE_CLASSIFIER = "sentiment-smollm2"  # in the paper's construction, which the textbook needs
DEFAULT_SAMPLER = DAB()
TEXTBOOK = replace(PAPER, norm="centred")
STEPS = 4  # DAB steps per repeat: how much of a draft a step writes anew varies from step to step

Say = Callable[[str], None]


class Settings(NamedTuple):
    """How much to measure."""

    model: str
    engines: tuple[EngineName, ...]
    batches: tuple[int, ...] = (1, 20)
    repeats: int = 5
    scaling: bool = True


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Everything `slalom bench` prints."""
    lms = {engine: load(settings.model, engine=engine) for engine in settings.engines}
    wish = Sentiment("positive")
    bfloat16, _ = load_parts(settings.model, torch.bfloat16)
    found: dict[str, Any] = {"machine": machine(settings.model, lms["torch"])}
    found["milliseconds"] = step_and_generate(settings, lms, bfloat16, wish, say)
    steps, plain = found["milliseconds"]["step"], found["milliseconds"]["generate"]
    found["step_over_generate"] = {
        engine: {batch: round(took / plain["bfloat16"][batch], 3) for batch, took in own.items()}
        for engine, own in steps.items()
    }
    found["step_over_generate_same_dtype"] = {
        batch: round(took / plain[found["machine"]["dtype"]][batch], 3) for batch, took in steps["torch"].items()
    }
    del bfloat16
    say("textbook")
    found |= textbook_over_step(lms["torch"], max(settings.batches), settings.repeats)
    say("time to the asked degree")
    found |= until_over_fixed(lms["torch"], wish, 15 if settings.scaling else 4)
    if settings.scaling:
        say("scaling")
        found["scaling"] = scaling(lms["torch"], wish)
    say("profile")
    found["profile"] = {engine: profile(lm, wish, settings.batches) for engine, lm in lms.items()}
    say("memory and start")
    found |= memory_over_generate(settings.model, max(settings.batches))
    found["seconds"] = start_up(settings)
    return found


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
    settings: Settings, lms: dict[EngineName, SteerableModel], bfloat16: Any, wish: Constraint, say: Say
) -> dict[str, Any]:
    """Median milliseconds of a DAB step on every engine and of stock greedy `generate`, interleaved."""
    own = str(lms["torch"].dtype).removeprefix("torch.")
    plain = {own: lms["torch"].model, "bfloat16": bfloat16}
    steps: dict[str, dict[str, float]] = {engine: {} for engine in lms}
    generate: dict[str, dict[str, float]] = {dtype: {} for dtype in plain}
    for batch in settings.batches:
        say(f"step and generate, batch {batch}")
        contenders: dict[tuple[str, str], Callable[[], None]] = {}
        for engine, lm in lms.items():
            contenders["step", engine] = _Stepper(lm, wish, batch).run
        for dtype, model in plain.items():
            contenders["generate", dtype] = _generator(lms["torch"], model, batch)
        for (kind, name), took in race(contenders, settings.repeats).items():
            target, many = (steps, STEPS) if kind == "step" else (generate, 1)
            target[name][str(batch)] = round(1000 * took / many, 1)
    return {"step": steps, "generate": generate}


def race(contenders: dict[Any, Callable[[], None]], repeats: int) -> dict[Any, float]:
    """Median seconds of each, taking turns; the first turn is not counted."""
    times: dict[Any, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: median(measured[1:]) for name, measured in times.items()}


class _Stepper:
    """The default preset at work: each run takes it some steps further."""

    def __init__(
        self,
        lm: LanguageModel,
        wish: Constraint,
        batch: int,
        length: int = LENGTH,
        sampler: DAB = DEFAULT_SAMPLER,
    ) -> None:
        wish.check(lm.vocabulary, length)
        prompts = lm.read([lm.encode(PROMPT, length)])
        rows = torch.zeros(batch, dtype=torch.long, device=lm.device)
        self.problem = Problem(lm, prompts, rows, Limits(length), wish, Judge(wish))
        self.rng = Rng.from_seeds(list(range(batch)), lm.device)
        self.sampler = sampler
        self.state = sampler.init(self.problem, self.rng.fold(1))

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.state = self.sampler.step(self.problem, self.state, self.rng.fold(2 + self.state.steps))


def _generator(lm: LanguageModel, model: Any, batch: int) -> Callable[[], None]:
    inputs = lm.tokenizer([PROMPT] * batch, return_tensors="pt").to(model.device)
    exactly = {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH, "do_sample": False}
    return lambda: model.generate(**inputs, **exactly, pad_token_id=lm.vocabulary.pad)


def textbook_over_step(lm: SteerableModel, batch: int, repeats: int) -> dict[str, Any]:
    """The textbook's step over ours: with the default preset, and with the textbook's own knobs.

    With its knobs the drafts must be the same; those that are not (a float tie went the other way) are counted.
    """
    wish = classifier(TABLE_CLASSIFIER, "positive")
    if not isinstance(wish, TableClassifier) or wish.lm != lm.name:
        return {}
    default, same = _Stepper(lm, wish, batch), _Stepper(lm, wish, batch, sampler=TEXTBOOK)
    book = Textbook(lm, wish, [lm.encode(PROMPT, LENGTH)] * batch, LENGTH, TEXTBOOK)
    written = [book.first()]

    def textbook() -> None:
        written.append(book.step(written[-1], same.rng.fold(1 + len(written))))

    took = race({"textbook": textbook, "same": lambda: same.run(1), "default": default.run}, repeats)
    alike = int((written[-1].tokens == same.state.latest.tokens).all(-1).sum())
    return {
        "textbook_over_step": round(took["textbook"] * STEPS / took["default"], 2),
        "textbook_over_same_knobs": round(took["textbook"] / took["same"], 2),
        "textbook_milliseconds": round(1000 * took["textbook"], 1),
        "textbook_drafts_alike": f"{alike} of {batch} after {len(written) - 1} steps",
    }


def until_over_fixed(lm: SteerableModel, wish: Constraint, most: int) -> dict[str, Any]:
    """Seconds until every text is satisfied to 0.95, over those of 20 fixed steps: the 15 prompts, four at a time."""
    prompts = (files(__package__) / "data" / "sentiment_prompts.txt").read_text(encoding="utf-8").splitlines()[:most]
    seconds = {"until": 0.0, "fixed": 0.0}
    steps: list[int] = []
    for start in range(0, len(prompts), 4):
        some = [lm.encode(prompt, LENGTH) for prompt in prompts[start : start + 4]]
        rows = torch.arange(len(some), device=lm.device)
        for name, stop in (("until", Stop(0.95)), ("fixed", None)):
            problem = Problem(lm, lm.read(some), rows, Limits(LENGTH), wish, Judge(wish))
            out = decode(problem, DAB(), [0] * len(some), 20, stop)
            seconds[name] += out.seconds
            steps += [row.steps for row in out.rows] if stop else []
    return {
        "until_over_fixed": round(seconds["until"] / seconds["fixed"], 3),
        "until_mean_drafts": round(sum(steps) / len(steps), 1),
        "until_most_drafts": max(steps),
    }


def scaling(lm: LanguageModel, wish: Constraint) -> dict[str, dict[str, float]]:
    """Milliseconds of a step as the length and the batch grow."""
    lengths = {str(length): _Stepper(lm, wish, 4, length) for length in (20, 50, 100)}
    batches = {str(batch): _Stepper(lm, wish, batch) for batch in (1, 4, 16, 64)}
    return {
        kind: {name: round(1000 * took / 2, 1) for name, took in race(_runs(steppers, 2), 2).items()}
        for kind, steppers in (("length, batch 4", lengths), ("batch, length 20", batches))
    }


def _runs(steppers: dict[str, _Stepper], steps: int) -> dict[str, Callable[[], None]]:
    return {name: functools.partial(stepper.run, steps) for name, stepper in steppers.items()}


def profile(lm: SteerableModel, wish: Constraint, batches: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Milliseconds of a step by part. The head is part of the LM's passes and known for the torch engine alone."""
    shares: dict[str, dict[str, float]] = {}
    for batch in batches:
        spent: dict[str, float] = defaultdict(float)
        with contextlib.ExitStack() as watches:
            for owner, name, part in (
                (lm.engine, "prefill", "prefill"),
                (lm.model.get_output_embeddings(), "forward", "of which head"),
                (dab, "bias_vector", "bias"),
                (wish, "candidate_scores", "constraint: gradient"),
                (wish, "score", "constraint: score"),
                (dab, "shortlist", "proposal"),
                (dab, "rollout", "rollout"),
            ):
                watches.enter_context(_watched(owner, name, part, spent))
            stepper = _Stepper(lm, wish, batch)
            spent.clear()
            watches.enter_context(_watched_passes(lm, spent))
            started = time.perf_counter()
            stepper.run(2 * STEPS)
            spent["step"] = time.perf_counter() - started
        spent["rest of the rollout"] = spent.pop("rollout") - spent["LM passes"] - spent["bias"]
        shares[str(batch)] = {part: round(1000 * took / (2 * STEPS), 1) for part, took in spent.items()}
    return shares


@contextlib.contextmanager
def _watched(owner: Any, name: str, part: str, spent: dict[str, float]) -> Iterator[None]:
    """While open, calls of owner.name are timed."""
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - started

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _watched_passes(lm: LanguageModel, spent: dict[str, float]) -> Iterator[None]:
    """While open, every pass of the engine is timed."""
    begin = lm.engine.start

    def start(*args: Any) -> Any:
        run = begin(*args)
        passes.enter_context(_watched(run, "read", "LM passes", spent))
        return run

    with contextlib.ExitStack() as passes:
        setattr(lm.engine, "start", start)  # noqa: B010
        try:
            yield
        finally:
            setattr(lm.engine, "start", begin)  # noqa: B010


def memory_over_generate(model: str, batch: int) -> dict[str, Any]:
    """Peak memory of a process that steers, over that of one that generates: each in a process of its own."""
    peaks = {what: _peak(what, model, batch) for what in ("generate", "steer")}
    return {"memory_over_generate": round(peaks["steer"] / peaks["generate"], 3), "peak_megabytes": peaks}


def _peak(what: str, model: str, batch: int) -> int:
    command = [sys.executable, "-c", f"from {__name__} import run_alone; run_alone({what!r}, {model!r}, {batch})"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def run_alone(what: str, model: str, batch: int) -> None:
    """Load, steer or generate, and print the peak memory of this process in megabytes."""
    lm = load(model, engine="torch")
    if what == "steer":
        _Stepper(lm, Sentiment("positive"), batch).run()
    else:
        _generator(lm, lm.model, batch)()
    print(_peak_memory())


def _peak_memory() -> int:
    """Megabytes. Linux hands a parent's peak down in rusage, so its own file is read there."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) >> 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)


def start_up(settings: Settings) -> dict[str, float]:
    """Seconds of `slalom --help`, and of loading the model on each engine once it is in the cache."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "slalom.frontends.cli", "--help"], capture_output=True, check=True)
    took = {"slalom --help": round(time.perf_counter() - started, 2)}
    for engine in settings.engines:
        started = time.perf_counter()
        load(settings.model, engine=engine)
        took[f"load, {engine}"] = round(time.perf_counter() - started, 2)
    return took


def draw(found: dict[str, Any], path: Path) -> None:
    """The ratios and the profile as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4))
    engines = list(found["step_over_generate"])
    for number, engine in enumerate(engines):
        ratios = found["step_over_generate"][engine]
        places = [i + 0.8 * (number + 0.5) / len(engines) - 0.4 for i in range(len(ratios))]
        bars = left.bar(places, list(ratios.values()), 0.8 / len(engines), label=engine)
        left.bar_label(bars, fmt="%.2f")
        left.set_xticks(range(len(ratios)), [f"batch {batch}" for batch in ratios])
    left.axhline(1, color="grey", lw=0.8)
    left.set_title("a DAB step over stock generate (bfloat16)")
    left.legend()
    for kind, times in found.get("scaling", {}).items():
        sizes = [int(size) for size in times]
        middle.loglog(sizes, list(times.values()), "o-", label=kind)
        middle.loglog(sizes, [times[str(sizes[0])] * size / sizes[0] for size in sizes], ":", color="grey")
    middle.set_title("milliseconds of a step; dotted: linear")
    if "scaling" in found:
        middle.legend()
    batch = list(found["profile"]["torch"])[-1]
    steps = [own[batch] for own in found["profile"].values()]
    parts = sorted({part for step in steps for part in step} - {"step", "of which head"})
    tops = [0.0] * len(steps)
    for colour, part in enumerate(parts):
        having = [number for number, step in enumerate(steps) if part in step]
        took = [steps[number][part] for number in having]
        right.bar(having, took, bottom=[tops[number] for number in having], color=f"C{colour}", label=part)
        for number in having:
            tops[number] += steps[number][part]
    right.set_xticks(range(len(found["profile"])), list(found["profile"]))
    right.set_title(f"milliseconds of a step by part, batch {batch}")
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo", encoding="utf-8"):  # noqa: SIM115
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
