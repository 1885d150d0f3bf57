"""Ablate the default sampler: what becomes of its texts without each of its parts.

    python examples/14_ablation_of_climb.py --wish negative --untold

The 16 tuning prompts, 20 tokens, three seeds a prompt. A line a setting: texts satisfied by the guide, as wished by
the judge, mean drafts, median perplexity under the LM told nothing, seconds a text; and, paired by prompt, how far each
is from the default, with 95 % bootstrap intervals. Settings: no climbing (every move from the first text), the best
draft by the guide's score alone, fewer and more looks, fewer and more drafts side by side.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from importlib.resources import files
from statistics import fmean, median
from typing import NamedTuple

import torch

import slalom
from slalom.api import Text
from slalom.decoding import SAMPLERS, Climb
from slalom.decoding.climb import ClimbState
from slalom.decoding.objective import Objective
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem
from slalom.evaluation.estimates import Case, Values, paired_difference
from slalom.evaluation.judges import JudgeInput, adapter_judge


class WithoutClimbing(Climb):
    """Every move is made from the first text; the best of all drafts is kept."""

    def step(self, problem: Problem, state: ClimbState, rng: Rng) -> ClimbState:
        """No draft is better than an infinitely good one."""
        unbeatable = torch.full_like(state.objective, torch.inf)
        after = super().step(problem, state._replace(objective=unbeatable), rng)
        return after._replace(objective=state.objective)


class ByScore(Climb):
    """The best draft is that with the highest score, however fluent."""

    @classmethod
    def presets(cls, constraint: slalom.Constraint) -> dict[str, Preset]:
        """The same settings, but fluency counts for nothing."""
        default = super().presets(constraint)["default"]
        return {"default": replace(default, choice="score", objective=Objective(fluency=0.0))}


class Setting(NamedTuple):
    """One way to run it."""

    sampler: str = "climb"
    knobs: dict[str, int] | None = None


SETTINGS = {
    "default": Setting(),
    "without climbing": Setting("without-climbing"),
    "by score": Setting("by-score"),
    "looks 1": Setting(knobs={"looks": 1}),
    "looks 4": Setting(knobs={"looks": 4}),
    "looks 64": Setting(knobs={"looks": 64}),
    "width 1": Setting(knobs={"width": 1}),
    "width 2": Setting(knobs={"width": 2}),
    "width 8": Setting(knobs={"width": 8}),
}


def main() -> None:
    """Write every prompt by every setting and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wish", default="negative", choices=["negative", "positive", "neutral"])
    parser.add_argument("--untold", action="store_true", help="do not tell the LM the wish")
    parser.add_argument("--quick", action="store_true", help="one prompt, one seed, two settings, no judge")
    args = parser.parse_args()
    listed = (files("slalom.evaluation") / "data" / "tuning_prompts.txt").read_text(encoding="utf-8").splitlines()
    prompts, seeds, names = (listed[:1], [0], list(SETTINGS)[:2]) if args.quick else (listed, [0, 1, 2], list(SETTINGS))
    SAMPLERS.update({"without-climbing": WithoutClimbing, "by-score": ByScore})

    lm, wish = slalom.load(), slalom.Sentiment(args.wish)
    judge = None if args.quick else adapter_judge("sentiment")
    found: dict[str, dict[str, Values]] = {}
    for name in names:
        sampler, knobs = SETTINGS[name]
        texts: list[tuple[str, Text]] = []
        started = time.perf_counter()
        for seed in seeds:
            options = {"seed": seed, "sampler": sampler, "knobs": knobs, "tell": False if args.untold else "auto"}
            texts += zip(prompts, lm.steer(prompts, wish, length=20, **options).rows, strict=True)
        seconds = (time.perf_counter() - started) / len(texts)
        wished = [float(row.satisfied) for _, row in texts]
        if judge is not None:
            tones = judge.score([JudgeInput(prompt, row.text, []) for prompt, row in texts], "text")
            sign = {"negative": -1, "positive": 1, "neutral": 0}[args.wish]
            wished = [float(tone is not None and (tone > 0) - (tone < 0) == sign) for tone in tones]
        columns = {
            "satisfied": [float(row.satisfied) for _, row in texts],
            "as wished": wished,
            "drafts": [float(row.steps) for _, row in texts],
            "perplexity": [row.perplexity for _, row in texts],
        }
        means = {key: median(values) if key == "perplexity" else fmean(values) for key, values in columns.items()}
        found[name] = {key: _by_case(texts, values, args.wish) for key, values in columns.items()}
        line = "; ".join(f"{key} {value:.2f}" for key, value in means.items())
        print(f"{name} (n {len(texts)}): {line}; {seconds:.2f} s a text", flush=True)
        if name != "default":
            print("   less the default:", "; ".join(_difference(found, name, key) for key in columns), flush=True)


def _by_case(texts: list[tuple[str, Text]], values: list[float], wish: str) -> Values:
    cases: Values = {}
    for (prompt, _), value in zip(texts, values, strict=True):
        cases.setdefault(Case(prompt, wish, 20), []).append(value)
    return cases


def _difference(found: dict[str, dict[str, Values]], name: str, key: str) -> str:
    apart = paired_difference(found[name][key], found["default"][key])
    return "" if apart is None else f"{key} {apart.mean:+.2f} ({apart.low:+.2f} to {apart.high:+.2f})"


if __name__ == "__main__":
    main()
