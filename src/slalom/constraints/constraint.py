"""What a draft should be like: the contract every constraint fulfils, and their weighted sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch

from slalom.backbone.rollout import Forbidden
from slalom.backbone.vocabulary import Vocabulary
from slalom.types import Draft, Prompt, Relaxed

SCALE = 4.0  # f of a fulfilled wish: about the margin of a classifier that is sure, so that sums weigh alike


class Part(NamedTuple):
    """One constraint's verdict on a draft."""

    name: str
    score: torch.Tensor  # [B]
    probability: torch.Tensor | None  # [B], where the constraint has one
    satisfied: torch.Tensor  # bool [B]
    weight: float = 1.0  # in the sum it is a part of


class PartVerdict(NamedTuple):
    """One constraint's verdict on one text."""

    name: str
    score: float
    probability: float | None
    satisfied: bool
    weight: float


class Verdict(NamedTuple):
    """A whole wish's verdict on one text."""

    score: float
    degree: float
    parts: list[PartVerdict]

    @property
    def satisfied(self) -> bool:
        """Whether every part is."""
        return all(part.satisfied for part in self.parts)

    def capped(self, enough: float) -> float:
        """The weighted sum of the parts' scores, each up to `enough`, so that none pays for another."""
        return sum(part.weight * min(part.score, enough) for part in self.parts)


class Judgement(NamedTuple):
    """A whole wish's verdict on a draft."""

    score: torch.Tensor  # [B], the paper's f, higher is better
    degree: torch.Tensor  # [B], in [0, 1]: how far the least satisfied part is
    parts: list[Part]

    @property
    def satisfied(self) -> torch.Tensor:
        """Whether every part is: bool [B]."""
        return torch.stack([part.satisfied for part in self.parts]).all(0)

    def verdicts(self) -> list[Verdict]:
        """One a row."""
        parts = [
            [
                PartVerdict(part.name, score, probability, satisfied, part.weight)
                for score, probability, satisfied in zip(
                    part.score.tolist(),
                    [None] * len(part.score) if part.probability is None else part.probability.tolist(),
                    part.satisfied.tolist(),
                    strict=True,
                )
            ]
            for part in self.parts
        ]
        pairs = zip(self.score.tolist(), self.degree.tolist(), strict=True)
        return [Verdict(score, degree, [part[row] for part in parts]) for row, (score, degree) in enumerate(pairs)]


Likeliest = Callable[[list[str]], str]  # words → the one the LM finds likeliest after the prompt at hand


def first(words: list[str]) -> str:
    """The word named first: a choice without an LM."""
    return words[0]


class ToRead(NamedTuple):
    """Texts for an encoder that remembers what it has read."""

    encoder: object
    read: Callable[[list[str], torch.device], object]  # texts, for an LM on this device
    texts: list[str]


class Constraint(ABC):
    """Something a text can be more or less. Subclasses give a name and the four abstract methods."""

    name: str
    kind: str = "style"  # what samplers have presets for: style, words, detoxification; a sum of several kinds: several
    sure: float = 0.98  # the degree at which a text is taken to fulfil the wish, and a search may end
    full_score: float = SCALE  # f of a text that fulfils the wish: how far another falls short is measured by it
    label_name: str | None = None  # the label it asks a classifier for, which steers trained on such labels know too
    steer_name: str | None = None  # LM-Steer's name for what it asks for, if a steer is shipped for that

    @abstractmethod
    def score(self, draft: Draft) -> torch.Tensor:
        """f of the real text, higher is better: [B]."""

    def to_read(self, draft: Draft) -> list[ToRead]:
        """What `score` will have encoders read of these texts, so that those of other rows can be read beside them."""
        return []

    @abstractmethod
    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """Entries of f's gradient at the draft's one-hots, for candidate tokens [B, n, k] only: [B, n, k].

        To first order, putting candidate j at a position changes f by its entry minus the current token's.
        """

    @abstractmethod
    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """f of mixtures of tokens, differentiable in them: [B]."""

    @abstractmethod
    def satisfied(self, draft: Draft) -> torch.Tensor:
        """Whether the text fulfils the wish: bool [B]."""

    def describe(self, likeliest: Likeliest = first) -> str | None:
        """The wish in words that go on from "a text that", as an LM understands them; none if there are none.

        Where any of several words would do, the `likeliest` is named: a choice between words leaks into the text.
        """
        return None

    def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
        """What is left to ask of the next block of a long text, with so many blocks to come; none if nothing is.

        Every block should be as wished, unless the wish is about the text as a whole.
        """
        return self

    def prefix_score(self, draft: Draft) -> torch.Tensor:
        """What the beginning of a text promises: its score, unless a cut-off text cannot be judged: [B]."""
        return self.score(draft)

    def probability(self, score: torch.Tensor) -> torch.Tensor | None:
        """The probability that goes with a score, for constraints that have one: [B]."""
        return None

    def phrases(self, vocabulary: Vocabulary) -> dict[int, tuple[int, ...]]:
        """Wanted tokens that only begin a word, each with all of the word's tokens: they are pushed together."""
        return {}

    def spelling_groups(self, vocabulary: Vocabulary) -> list[list[tuple[int, ...]]]:
        """Token sequences the text should hold, one of every group; no groups unless the wish is for words."""
        return []

    def wanted(self, vocabulary: Vocabulary) -> list[int]:
        """Tokens that are always worth proposing, however unlikely the LM finds them."""
        return []

    def missing(self, draft: Draft) -> torch.Tensor:
        """Which of the wanted tokens a draft still lacks, all of them until it is satisfied: bool [B, wanted]."""
        return ~self.satisfied(draft)[:, None].expand(-1, len(self.wanted(draft.vocabulary)))

    def one_spelling(self) -> Constraint:
        """The same wish with one spelling a word, the usual one: what samplers that follow gradients go by.

        Rare spellings are made of pieces ("B", "ible"), whose gradient leads to the pieces rather than to the word.
        """
        return self

    def forbids(self, vocabulary: Vocabulary) -> Forbidden | None:
        """What no draft may ever hold, if there is such a thing."""
        return None

    def check(self, vocabulary: Vocabulary, length: int) -> None:  # noqa: B027 (most constraints refuse nothing)
        """Refuse, with a SlalomError, a wish this LM cannot fulfil within the length."""

    def check_allowed(self, vocabulary: Vocabulary, forbidden: Forbidden) -> None:  # noqa: B027
        """Refuse, with a SlalomError, a wish that another part of a sum forbids."""

    def judge(self, draft: Draft) -> Judgement:
        """Score, degree and satisfaction of a draft, computed once."""
        score, satisfied = self.score(draft), self.satisfied(draft)
        probability = self.probability(score)
        degree = satisfied.float() if probability is None else probability
        return Judgement(score, degree, [Part(self.name, score, probability, satisfied)])

    def terms(self) -> list[tuple[float, Constraint]]:
        """The weighted parts this is the sum of: itself, unless it is a sum."""
        return [(1.0, self)]

    def __add__(self, other: Constraint) -> Constraint:
        return WeightedSum([*self.terms(), *other.terms()])

    def __mul__(self, weight: float) -> Constraint:
        return WeightedSum([(weight * own, part) for own, part in self.terms()])

    __rmul__ = __mul__


class WeightedSum(Constraint):
    """Several wishes at once: f is the weighted sum of theirs; satisfied when all of them are."""

    def __init__(self, terms: list[tuple[float, Constraint]]) -> None:
        self._terms = terms
        self.sure = min(part.sure for _, part in terms)
        kinds = {part.kind for _, part in terms}
        self.kind = kinds.pop() if len(terms) == 1 or kinds == {"words"} else "several"
        self.name = " + ".join(part.name if weight == 1 else f"{weight:g} * {part.name}" for weight, part in terms)

    def terms(self) -> list[tuple[float, Constraint]]:
        """The weighted parts."""
        return self._terms

    def score(self, draft: Draft) -> torch.Tensor:
        """The weighted sum of the parts' scores."""
        return torch.stack([weight * part.score(draft) for weight, part in self._terms]).sum(0)

    def to_read(self, draft: Draft) -> list[ToRead]:
        """What the parts will have read."""
        return [one for _, part in self._terms for one in part.to_read(draft)]

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the parts' entries."""
        return torch.stack([weight * part.candidate_scores(draft, candidates) for weight, part in self._terms]).sum(0)

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """The weighted sum of the parts' relaxed scores."""
        return torch.stack([weight * part.relaxed_score(relaxed) for weight, part in self._terms]).sum(0)

    def describe(self, likeliest: Likeliest = first) -> str | None:
        """What the parts say of themselves, joined; what is not wished for is not mentioned."""
        said = [part.describe(likeliest) for weight, part in self._terms if weight > 0]
        return " and ".join(words for words in said if words) or None

    def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
        """What is left of the parts."""
        left = [(weight, own) for weight, part in self._terms if (own := part.remaining(prompt, blocks)) is not None]
        return WeightedSum(left) if left else None

    def satisfied(self, draft: Draft) -> torch.Tensor:
        """All parts satisfied."""
        return torch.stack([part.satisfied(draft) for _, part in self._terms]).all(0)

    def prefix_score(self, draft: Draft) -> torch.Tensor:
        """The weighted sum of what the parts see in it."""
        return torch.stack([weight * part.prefix_score(draft) for weight, part in self._terms]).sum(0)

    def phrases(self, vocabulary: Vocabulary) -> dict[int, tuple[int, ...]]:
        """All parts' phrases."""
        return {first: whole for _, part in self._terms for first, whole in part.phrases(vocabulary).items()}

    def spelling_groups(self, vocabulary: Vocabulary) -> list[list[tuple[int, ...]]]:
        """All parts' groups."""
        return [group for _, part in self._terms for group in part.spelling_groups(vocabulary)]

    def wanted(self, vocabulary: Vocabulary) -> list[int]:
        """Everything a part wants."""
        return list(dict.fromkeys(token for _, part in self._terms for token in part.wanted(vocabulary)))

    def missing(self, draft: Draft) -> torch.Tensor:
        """What some part lacks: one that has its word does not ask for it again because another likes it."""
        order = {token: number for number, token in enumerate(self.wanted(draft.vocabulary))}
        lacking = torch.zeros(len(draft.tokens), len(order), dtype=torch.bool, device=draft.tokens.device)
        for _, part in self._terms:
            own = [order[token] for token in part.wanted(draft.vocabulary)]
            if own:
                lacking[:, own] |= part.missing(draft)
        return lacking

    def one_spelling(self) -> Constraint:
        """All parts with one spelling a word."""
        parts = [(weight, part.one_spelling()) for weight, part in self._terms]
        return (
            self
            if all(new is old for (_, new), (_, old) in zip(parts, self._terms, strict=True))
            else WeightedSum(parts)
        )

    def forbids(self, vocabulary: Vocabulary) -> Forbidden | None:
        """Everything a part forbids."""
        found = [own for _, part in self._terms if (own := part.forbids(vocabulary)) is not None]
        if not found:
            return None
        tokens = torch.stack([own.tokens for own in found]).any(0)
        return Forbidden(tokens, lambda prompt, written: any(own.written(prompt, written) for own in found))

    def check(self, vocabulary: Vocabulary, length: int) -> None:
        """Every part must be possible, by itself and with the others."""
        forbidden = self.forbids(vocabulary)
        for _, part in self._terms:
            part.check(vocabulary, length)
            if forbidden is not None:
                part.check_allowed(vocabulary, forbidden)

    def judge(self, draft: Draft) -> Judgement:
        """Every part judged once; the degree is the lowest of theirs."""
        judged = [(weight, part.judge(draft)) for weight, part in self._terms]
        return Judgement(
            torch.stack([weight * one.score for weight, one in judged]).sum(0),
            torch.stack([one.degree for _, one in judged]).amin(0),
            [part._replace(weight=weight * part.weight) for weight, one in judged for part in one.parts],
        )
