"""Drafts and verdicts to which one is better: by score, or by score and fluency together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from slalom.backbone.ending import before_stop
from slalom.backbone.telling import talks_of_task
from slalom.constraints.constraint import Verdict
from slalom.decoding.knobs import knob
from slalom.types import Draft, Prompt


def worthless(prompt: Prompt, text: str, stops: tuple[str, ...] = ()) -> bool:
    """Whether a continuation says nothing at all before any stop string, or talks about what the LM was told."""
    return not text[: before_stop(text, stops)].strip() or talks_of_task(prompt, text)


class Seen(NamedTuple):
    """One row's draft and the verdict on it."""

    draft: Draft  # of one row
    verdict: Verdict
    stops: tuple[str, ...] = ()  # its text will be cut before any of these

    @property
    def worthless(self) -> bool:
        """Whether it says nothing at all, or talks about what the LM was told."""
        return worthless(self.draft.prompts[0], self.draft.texts[0], self.stops)

    @property
    def perplexity(self) -> float:
        """Under the LM as it was told."""
        return self.draft.perplexity.item()


@dataclass(frozen=True)
class Objective:
    """What is wished and fluency, weighed together."""

    enough: float = knob(4.6, "a constraint's score beyond which more is not worth more (4.6: a probability of 0.99)")
    fluency: float = knob(1.0, "weight of the LM's mean log-probability of a token, in units of the score", least=0)

    def value(self, verdict: Verdict, perplexity: float, worthless: bool) -> float:
        """Higher is better. A text that says nothing has none, however sure the LM is that nothing should be said."""
        if worthless or math.isinf(perplexity):
            return -math.inf
        return verdict.capped(self.enough) - self.fluency * math.log(perplexity)

    def of(self, seen: Seen) -> float:
        """The value of one row's draft."""
        return self.value(seen.verdict, seen.perplexity, seen.worthless)


Better = Callable[[Seen, Seen, Objective], bool]  # a new and an old draft → whether the new one is better


def by_score(new: Seen, old: Seen, objective: Objective) -> bool:
    """The paper's choice: the higher f; but anything is better than nothing."""
    return old.worthless if new.worthless != old.worthless else new.verdict.score > old.verdict.score


def jointly(new: Seen, old: Seen, objective: Objective) -> bool:
    """The satisfied one; if both are or none is, the one with the higher objective, f and fluency together."""
    satisfied, before = (seen.verdict.satisfied and not seen.worthless for seen in (new, old))
    return satisfied if satisfied != before else objective.of(new) > objective.of(old)


def latest(new: Seen, old: Seen, objective: Objective) -> bool:
    """No choice at all: the draft written last."""
    return True


CHOICES: dict[str, Better] = {"score": by_score, "joint": jointly, "latest": latest}
