"""A language model to the bias weight of dab that suits it: control and perplexity of several are measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Limits
from slalom.constraints.constraint import Constraint
from slalom.decoding.dab import DAB
from slalom.decoding.recorded import record_weight
from slalom.decoding.sampler import Preset, Request
from slalom.decoding.scheduler import decode

GRID = (0.6, 1.0, 1.4, 1.9, 2.4, 3.0, 4.0)
PROMPTS = ("The book", "The weather", "My neighbour", "The new restaurant", "Last summer", "The train", "This phone")
STEPS, LENGTH = 8, 20
ENOUGH = 0.01  # a larger weight must bring at least this much more control


class Trial(NamedTuple):
    """What one weight gave."""

    weight: float
    degree: float  # mean degree of satisfaction of the best drafts
    perplexity_ratio: float  # their mean perplexity over the unsteered drafts'


class Calibration(NamedTuple):
    """The weight found and all that were tried."""

    weight: float
    tried: list[Trial]


def calibrate(
    lm: LanguageModel, constraint: Constraint, prompts: int, most: float, say: Callable[[str], None]
) -> Calibration:
    """The weight with the best control among those whose perplexity stays below `most` times the unsteered text's."""
    tried: list[Trial] = []
    for weight in GRID:
        tried.append(_try(lm, constraint, PROMPTS[:prompts], weight))
        last = tried[-1]
        say(f"weight {weight:<5g} control {last.degree:.3f}  perplexity x {last.perplexity_ratio:.2f}")
        if last.perplexity_ratio > 2 * most:
            break
    return Calibration(best_trial(tried, most).weight, tried)


def best_trial(tried: list[Trial], most: float) -> Trial:
    """The best control within the limit, the smaller weight of two alike; if all exceed it, the most fluent."""
    fluent = [trial for trial in tried if trial.perplexity_ratio <= most]
    if not fluent:
        return min(tried, key=lambda trial: trial.perplexity_ratio)
    best = max(trial.degree for trial in fluent)
    return min((trial for trial in fluent if trial.degree >= best - ENOUGH), key=lambda trial: trial.weight)


def remember(lm: str, found: Calibration) -> Path:
    """Write a calibration where later runs find it."""
    return record_weight(lm, found.weight, [trial._asdict() for trial in found.tried])


def _try(lm: LanguageModel, constraint: Constraint, prompts: tuple[str, ...], weight: float) -> Trial:
    settings = Preset(DAB(weight=weight), STEPS, choice="joint")
    requests = [Request(lm.encode(prompt, LENGTH), 0, constraint, Limits(LENGTH), settings) for prompt in prompts]
    ends = decode(lm, requests)
    bests, firsts = ([seen for end in ends if (seen := getattr(end, name))] for name in ("best", "first"))
    ratio = fmean(seen.perplexity for seen in bests) / fmean(seen.perplexity for seen in firsts)
    return Trial(weight, fmean(seen.verdict.degree for seen in bests), ratio)
