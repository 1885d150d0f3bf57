"""Try settings of the published samplers on the tuning prompts, and let the judges that report on them choose.

    python examples/17_tuning_the_peers.py cold mucola

The 16 tuning prompts, half of them for each wish, 20 tokens, seed 0, untold. A line a setting: as wished by the
sentiment judge; median perplexity under Gemma; credit, by which settings are compared: a text that is as wished counts
1 if its perplexity is at most twice the unsteered texts' median, and less in proportion if it is higher; drafts;
seconds a text. The best few are written once more with another seed and each prompt's other wish, so that the choice
is not the luck of 16 texts.
"""

from __future__ import annotations

import argparse
import time
from importlib.resources import files
from statistics import fmean, median
from typing import Any, NamedTuple

import slalom
from slalom.api import Text
from slalom.evaluation.judges import Judge, JudgeInput, adapter_judge, embedded_perplexity

SIGNS = {"positive": 1, "negative": -1}
AGAIN = 4  # settings that are written a second time
Setting = dict[str, Any]  # what differs from the first one: options of `steer`, or else knobs

SETTINGS: dict[str, list[Setting]] = {
    "bolt": [
        {},
        {"rate": 0.015},
        {"rate": 0.06},
        {"rate": 0.1},
        {"start": 0.3},
        {"lm_weight": 0.03},
        {"lm_weight": 0.3},
        {"noise": 0.0},
        {"noise": 0.02},
        {"weight": 2.0},
        {"steps": 20},
        {"select": "joint"},
        {"select": "joint", "steps": 20},
    ],
    "cold": [
        {},
        {"weight": 0.5},
        {"weight": 0.8},
        {"weight": 0.9},
        {"top_k": 10},
        {"top_k": 20},
        {"noise": 0.3},
        {"noise": 0.1},
        {"lr": 0.2},
        {"tau": 2.0},
        {"start": "drawn", "temperature": 0.8},
        {"pace": 4.0, "steps": 16},
        {"pace": 4.0, "steps": 16, "weight": 0.9},
    ],
    "mucola": [
        {},
        {"noise": 0.05},
        {"noise": 0.2},
        {"last_noise": 0.02},
        {"goal": 1.0},
        {"goal": 3.0},
        {"lr": 0.1},
        {"lr": 0.5},
        {"growth": 0.3},
        {"always": True},
        {"temperature": 0.8},
        {"steps": 16},
        {"temperature": 0.5},
        {"temperature": 0.8, "last_noise": 0.02},
    ],
    "lm-steer": [
        {},
        {"strength": 1.0},
        {"strength": 2.0},
        {"strength": 3.0},
        {"strength": 8.0},
        {"style": 0.0},
        {"top_p": 0.7},
        {"top_p": 0.5},
        {"temperature": 0.7},
        {"temperature": 0.5},
        {"strength": 3.0, "temperature": 0.7},
        {"strength": 8.0, "temperature": 0.5},
        {"temperature": 0.3},
        {"temperature": 0.5, "style": 0.0},
    ],
    "dab": [
        {},
        {"weight": 1.8},
        {"weight": 2.1},
        {"weight": 2.7},
        {"weight": 3.0},
        {"tau": 0.05},
        {"tau": 0.1},
        {"tau": 0.5},
        {"tau": 1.0},
        {"top_k": 50},
        {"top_k": 100},
        {"steps": 40},
        {"select": "joint"},
        {"select": "joint", "weight": 3.0},
    ],
}
OPTIONS = ("steps", "temperature", "top_p", "select")  # the rest of a setting are knobs

# The settings that all others differ from: the defaults as they were before these trials.
BEFORE: dict[str, Setting] = {
    "cold": {"pace": 8.0, "steps": 6},
    "mucola": {"temperature": 1.0},
    "lm-steer": {"temperature": 1.0},
}


class Trial(NamedTuple):
    """A text, the wish it was written for, and what the judges say of it."""

    wish: str
    row: Text
    tone: float | None
    perplexity: float | None

    @property
    def as_wished(self) -> bool:
        """Whether the likeliest tone is the one asked for."""
        return self.tone is not None and self.tone * SIGNS[self.wish] > 0

    def credit(self, usual: float) -> float:
        """1 for a text that is as wished and fluent enough, less the higher its perplexity, 0 for any other."""
        return 0.0 if not self.as_wished or self.perplexity is None else min(1.0, 2 * usual / self.perplexity)


class Trials:
    """The LM, the wishes and the judges."""

    def __init__(self, prompts: list[str]) -> None:
        self.lm, self.prompts = slalom.load(), prompts
        self.wishes = {label: slalom.Sentiment(label) for label in SIGNS}
        self.judges: tuple[Judge, Judge] = (adapter_judge("sentiment"), embedded_perplexity())
        self.usual = median(one.perplexity or 0.0 for one in self.write("none", {}, 0))

    def write(self, sampler: str, setting: Setting, turn: int) -> list[Trial]:
        """Every prompt once: with one wish in the first turn, with the other wish and another seed in the second."""
        whole = BEFORE.get(sampler, {}) | setting
        options = {name: value for name, value in whole.items() if name in OPTIONS}
        knobs = {name: value for name, value in whole.items() if name not in OPTIONS}
        trials = list[Trial]()
        for number, (label, wish) in enumerate(self.wishes.items()):
            prompts = self.prompts[(number + turn) % 2 :: 2]
            if not prompts:
                continue
            rows = self.lm.steer(
                prompts, wish, length=20, seed=turn, sampler=sampler, tell=False, knobs=knobs, **options
            ).rows
            shown = [JudgeInput(prompt, row.text, []) for prompt, row in zip(prompts, rows, strict=True)]
            scores = [judge.score(shown, "text") for judge in self.judges]
            trials += [Trial(label, *rest) for rest in zip(rows, *scores, strict=True)]
        return trials


def main() -> None:
    """Try every setting of the samplers named, then the best ones again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samplers", nargs="*", help=f"of {', '.join(SETTINGS)} (left out: all)")
    parser.add_argument("--quick", action="store_true", help="one prompt, one setting of LM-Steer")
    args = parser.parse_args()
    if unknown := [name for name in args.samplers if name not in SETTINGS]:
        parser.error(f"unknown sampler {unknown[0]!r}; choose from {', '.join(SETTINGS)}")
    prompts = (files("slalom.evaluation") / "data" / "tuning_prompts.txt").read_text(encoding="utf-8").splitlines()
    ours = Trials(prompts[:1] if args.quick else prompts)
    print(f"unsteered: median perplexity {ours.usual:.1f}", flush=True)
    for sampler in ["lm-steer"] if args.quick else args.samplers or list(SETTINGS):
        settings = SETTINGS[sampler][:1] if args.quick else SETTINGS[sampler]
        found = [tried(ours, sampler, setting, 0, []) for setting in settings]
        best = sorted(range(len(settings)), key=lambda i: -credit(found[i], ours.usual))[:AGAIN]
        for i in sorted({0, *best}):  # the first with them
            tried(ours, sampler, settings[i], 1, found[i])


def tried(ours: Trials, sampler: str, setting: Setting, turn: int, before: list[Trial]) -> list[Trial]:
    """The texts of a setting, printed as a line together with those of the turn before."""
    started = time.perf_counter()
    new = ours.write(sampler, setting, turn)
    seconds = (time.perf_counter() - started) / len(new)
    trials = [*before, *new]
    told = ", ".join(f"{name} {value}" for name, value in setting.items()) or "as before"
    print(
        f"{sampler}, {told} (n {len(trials)}): as wished {fmean(one.as_wished for one in trials):.2f}; "
        f"median perplexity {median(one.perplexity or 0.0 for one in trials):.1f}; "
        f"credit {credit(trials, ours.usual):.2f}; "
        f"drafts {fmean(one.row.steps for one in trials):.1f}; {seconds:.1f} s a text",
        flush=True,
    )
    return trials


def credit(trials: list[Trial], usual: float) -> float:
    """Of a text, on average."""
    return fmean(one.credit(usual) for one in trials)


if __name__ == "__main__":
    main()
