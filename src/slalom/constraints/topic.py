"""Tokens to nearness: words of a topic, or tokens close to them in the LM's own embedding table."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import SCALE, Constraint, Likeliest, first
from slalom.constraints.keywords import Keywords
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Relaxed

# The paper's topics and their keywords.
TOPICS = {
    "computer": ("router", "Linux", "keyboard", "server"),
    "legal": ("plea", "subpoena", "transcript", "bankrupt"),
    "military": ("torpedo", "headquarters", "infantry", "battlefield"),
    "politics": ("court", "culture", "communism", "capitalism"),
    "religion": ("Bible", "church", "priest", "saint"),
    "science": ("microscope", "mass", "mineral", "scientist"),
    "space": ("meteor", "planet", "satellite", "astronaut"),
}
NEAR = 0.4  # a cosine from which a token counts as much as the word itself
POWER = 4  # how fast it counts less below that
COMMON = 3  # directions of the table that all frequent tokens share, left out of the cosines
LETTERS = 3  # a token shorter than that is near to nothing


class Topic(Constraint):
    """Soft keywords: one of a topic's words must appear, or a token close to one in the LM's embedding table.

    `topic` is one of the paper's seven by name, words with commas between them, or a list of words. With a token's
    nearness (cosine / 0.4, at most 1) to the power of 4, f is 4 (1 - prod(1 - nearness) (1 - keyword match)).
    """

    def __init__(self, topic: str | list[str]) -> None:
        words = topic.split(",") if isinstance(topic, str) else topic
        words = [word.strip() for word in words if word.strip()]
        if not words:
            raise SlalomError(f"no topic given; give words, or choose from {', '.join(TOPICS)}")
        self.name = f"topic:{', '.join(words)}"
        self.about = words[0] if len(words) == 1 else None
        self.keywords = Keywords(list(TOPICS.get(words[0].lower(), words)) if len(words) == 1 else words)
        self._nearness: WeakKeyDictionary[Vocabulary, torch.Tensor] = WeakKeyDictionary()
        self._usual_alone: Topic | None = None

    def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
        """Nothing once one of the words is there."""
        return None if self.keywords.remaining(prompt, blocks) is None else self

    def score(self, draft: Draft) -> torch.Tensor:
        """f at the real tokens."""
        absent = (1 - self._at(draft)).prod(-1)
        return SCALE - (SCALE - self.keywords.score(draft)) * absent

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """f's gradient at the one-hots, in closed form: the words' own, and each token's nearness times a slope."""
        near = self._at(draft).requires_grad_()
        with torch.enable_grad():
            absent = (1 - near).prod(-1)
            (slopes,) = torch.autograd.grad(-absent.sum(), near)
        missing = (SCALE - self.keywords.match_score(draft))[:, None] * slopes * draft.real  # [B, n]
        soft = missing[..., None] * self.nearness(draft.vocabulary)[candidates]
        return absent.detach()[:, None, None] * self.keywords.candidate_scores(draft, candidates) + soft

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """f of mixtures."""
        near = relaxed.mixtures @ self.nearness(relaxed.vocabulary).to(relaxed.mixtures.dtype)  # [B, n]
        return SCALE - (SCALE - self.keywords.relaxed_score(relaxed)) * (1 - near).prod(-1)

    def satisfied(self, draft: Draft) -> torch.Tensor:
        """Whether a word of the topic, or a token near enough, stands in the continuation."""
        return self.keywords.satisfied(draft) | (self._at(draft) == 1).any(-1)

    def describe(self, likeliest: Likeliest = first) -> str:
        """The topic by its name, or the likeliest of its words."""
        return f"is about {self.about or likeliest(self.keywords.words)}"

    def phrases(self, vocabulary: Vocabulary) -> dict[int, tuple[int, ...]]:
        """Its words of several tokens."""
        return self.keywords.phrases(vocabulary)

    def wanted(self, vocabulary: Vocabulary) -> list[int]:
        """The words' own tokens, and all that are near enough."""
        near = (self.nearness(vocabulary) == 1) & ~vocabulary.never_candidates
        return list(dict.fromkeys([*self.keywords.wanted(vocabulary), *near.nonzero()[:, 0].tolist()]))

    def one_spelling(self) -> Topic:
        """The same words, each only as it stands after a space, and what is near to that; always the same object."""
        if self._usual_alone is None:
            usual = copy.copy(self)
            usual.keywords, usual._nearness = self.keywords.one_spelling(), WeakKeyDictionary()
            self._usual_alone = usual._usual_alone = usual
        return self._usual_alone

    def check(self, vocabulary: Vocabulary, length: int) -> None:
        """Refuse words of which the LM can write none within the length."""
        if not any(len(spelling.tokens) <= length for spelling in self.keywords.spellings(vocabulary)):
            raise SlalomError(
                f"none of the words {', '.join(self.keywords.words)} can be written with this model's tokens "
                f"in a text of length {length}; choose others, or ask for more"
            )

    def nearness(self, vocabulary: Vocabulary) -> torch.Tensor:
        """How near every token is to the nearest word that is a token itself, from 0 to 1: [V]."""
        if vocabulary not in self._nearness:
            spellings = self.keywords.spellings(vocabulary)
            words = [spelling.tokens[0] for spelling in spellings if len(spelling.tokens) == 1]
            self._nearness[vocabulary] = _nearness(vocabulary, words)
        return self._nearness[vocabulary]

    def _at(self, draft: Draft) -> torch.Tensor:
        """Nearness at each position of the real text: [B, n]."""
        return self.nearness(draft.vocabulary)[draft.tokens] * draft.real


def _nearness(vocabulary: Vocabulary, words: list[int]) -> torch.Tensor:
    """Sharpened cosines to the nearest of some tokens, 0 for what is no word: [V]."""
    table = vocabulary.embeddings.float()
    if not words:
        return torch.zeros(len(table), device=table.device)
    table = table - table.mean(0)
    common = _common_directions(table)
    table = torch.nn.functional.normalize(table - (table @ common) @ common.T, dim=-1)
    cosines = (table @ table[words].T).amax(-1)
    stripped = [text.strip() for text in vocabulary.texts]
    wordy = torch.tensor([text.isalpha() and len(text) >= LETTERS for text in stripped], device=table.device)
    nearness = (cosines / NEAR).clamp(0, 1) ** POWER * wordy
    nearness[words] = 1.0
    return nearness


def _common_directions(table: torch.Tensor) -> torch.Tensor:
    """The table's first principal directions, by orthogonal iteration: [d, COMMON].

    Every frequent token leans that way, so that "the" would be near to every frequent word.
    """
    directions = torch.eye(table.shape[1], COMMON, device=table.device)
    for _ in range(5):
        directions = torch.linalg.qr(table.T @ (table @ directions)).Q
    return directions
