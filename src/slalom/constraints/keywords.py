"""Tokens to words: keywords that must appear in the continuation, by differentiable BLEU at the one-hots."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.rollout import Forbidden
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import SCALE, Constraint, Likeliest, first
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Relaxed

Mode = Literal["any", "all"]


class Spelling(NamedTuple):
    """One way the LM may write a keyword."""

    word: int  # which keyword
    tokens: tuple[int, ...]


class Keywords(Constraint):
    """The words must appear as whole words in the continuation: any one of them, or all.

    f of a real text is 4 times the share of the words that stand there whole. At mixtures and in gradients a part of
    a word counts for something: its match at a position is the mean of its tokens' (mixture) weights there, BLEU's
    n-gram match; a word is there if it matches at some position in some spelling: 1 - prod(1 - match). f is the mean
    over the words for `all`, and treats their matches as one word's for `any`; times 4.
    """

    kind = "words"

    def __init__(self, words: list[str], mode: Mode = "any") -> None:
        if mode not in ("any", "all"):
            raise SlalomError(f"unknown keyword mode {mode!r}; choose from any, all")
        self.words = [word.strip() for word in words if word.strip()]
        if not self.words:
            raise SlalomError("no keywords given; give at least one word")
        self.mode = mode
        self.name = f"keywords:{mode}({', '.join(self.words)})"
        self._patterns = [re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE) for word in self.words]
        self._spellings: WeakKeyDictionary[Vocabulary, list[Spelling]] = WeakKeyDictionary()
        self._usual_alone: Keywords | None = None

    def score(self, draft: Draft) -> torch.Tensor:
        """f of the real text: 4 times the share of the words that stand there whole; with `any`, 4 if one does."""
        shares = [max(row) if self.mode == "any" else sum(row) / len(row) for row in self._found(draft)]
        return SCALE * torch.tensor(shares, dtype=torch.float, device=draft.tokens.device)

    def match_score(self, draft: Draft) -> torch.Tensor:
        """f as the mixtures have it, at the real tokens: a part of a word counts for something."""
        return self._aggregate(self._matches(draft), self._words(draft.vocabulary))

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """f's gradient at the one-hots, in closed form, at the tokens of the keywords; 0 at all others."""
        spellings = self.spellings(draft.vocabulary)
        matches = self._matches(draft).requires_grad_()
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(self._aggregate(matches, self._words(draft.vocabulary)).sum(), matches)
        scores = torch.zeros(candidates.shape, device=candidates.device)
        tokens = draft.tokens.masked_fill(~draft.real, -1)
        for s, spelling in enumerate(spellings):
            hits = torch.stack([(tokens == token).float() for token in spelling.tokens]).requires_grad_()  # [m, B, n]
            with torch.enable_grad():
                (entries,) = torch.autograd.grad(_prefix_mean(hits), hits, slopes[:, s])
            for entry, token in zip(entries, spelling.tokens, strict=True):
                scores += entry[..., None] * (candidates == token)
        return scores * draft.real[..., None]

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """f of mixtures."""
        spellings = self.spellings(relaxed.vocabulary)
        matches = torch.stack([_match_mixtures(relaxed.mixtures, spelling.tokens) for spelling in spellings], 1)
        return self._aggregate(matches, self._words(relaxed.vocabulary))

    def satisfied(self, draft: Draft) -> torch.Tensor:
        """Whether the words really stand in the continuation, as words, in whatever case."""
        enough = any if self.mode == "any" else all
        return torch.tensor([enough(row) for row in self._found(draft)], device=draft.tokens.device)

    def describe(self, likeliest: Likeliest = first) -> str:
        """One word, or all of them."""
        named = [likeliest(self.words)] if self.mode == "any" else self.words
        return f"has to do with {' and '.join(named)}"

    def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
        """The words that are not there yet, shared out among the blocks to come; with `any`, none once one word is."""
        end = len(prompt.text)  # a word that ends there may yet become a part of a longer one
        there = [
            any(match.end() < end for match in pattern.finditer(prompt.text, prompt.begins))
            for pattern in self._patterns
        ]
        missing = [word for word, found in zip(self.words, there, strict=True) if not found]
        if not missing or (self.mode == "any" and len(missing) < len(self.words)):
            return None
        return self if self.mode == "any" else Keywords(missing[: math.ceil(len(missing) / blocks)], "all")

    def wanted(self, vocabulary: Vocabulary) -> list[int]:
        """The first tokens of the keywords."""
        return list(dict.fromkeys(spelling.tokens[0] for spelling in self.spellings(vocabulary)))

    def missing(self, draft: Draft) -> torch.Tensor:
        """The first tokens of the words that are not there yet; with `any`, none once one word is."""
        if self.mode == "any":
            return super().missing(draft)
        words = [
            {spelling.word for spelling in self.spellings(draft.vocabulary) if spelling.tokens[0] == token}
            for token in self.wanted(draft.vocabulary)
        ]
        found = self._found(draft)
        lacking = [[any(not row[word] for word in own) for own in words] for row in found]
        return torch.tensor(lacking, device=draft.tokens.device)

    def phrases(self, vocabulary: Vocabulary) -> dict[int, tuple[int, ...]]:
        """The keywords of several tokens; of two that begin alike, the one named first."""
        long = [spelling.tokens for spelling in reversed(self.spellings(vocabulary)) if len(spelling.tokens) > 1]
        return {tokens[0]: tokens for tokens in long}

    def spelling_groups(self, vocabulary: Vocabulary) -> list[list[tuple[int, ...]]]:
        """Each word's spellings; with `any`, those of all words as one group."""
        groups: dict[int, list[tuple[int, ...]]] = {}
        for spelling in self.spellings(vocabulary):
            groups.setdefault(spelling.word if self.mode == "all" else 0, []).append(spelling.tokens)
        return list(groups.values())

    def spellings(self, vocabulary: Vocabulary) -> list[Spelling]:
        """Every way the LM may write each word: after a space or not, as given or capitalised."""
        if vocabulary not in self._spellings:
            self._spellings[vocabulary] = [
                spelling for number, word in enumerate(self.words) for spelling in _spell(number, word, vocabulary)
            ]
        return self._spellings[vocabulary]

    def one_spelling(self) -> Keywords:
        """The same words, each only as it stands after a space; always the same object."""
        if self._usual_alone is None:
            self._usual_alone = _UsualKeywords(self.words, self.mode)
        return self._usual_alone

    def check(self, vocabulary: Vocabulary, length: int) -> None:
        """Refuse words the LM cannot write, or not within the length."""
        for number, word in enumerate(self.words):
            own = [spelling.tokens for spelling in self.spellings(vocabulary) if spelling.word == number]
            if not own:
                raise SlalomError(
                    f"the keyword {word!r} cannot be written with this model's tokens; choose another word"
                )
            if (shortest := min(map(len, own))) > length:
                raise SlalomError(
                    f"the keyword {word!r} takes {shortest} tokens but the length is {length}; ask for more"
                )

    def check_allowed(self, vocabulary: Vocabulary, forbidden: Forbidden) -> None:
        """Refuse words that must be there and must not: one is enough for `all`, every one for `any`."""
        nothing = Prompt("", ())
        allowed = {
            spelling.word
            for spelling in self.spellings(vocabulary)
            if not forbidden.written(nothing, list(spelling.tokens))
        }
        refused = [word for number, word in enumerate(self.words) if number not in allowed]
        if refused and (self.mode == "all" or not allowed):
            raise SlalomError(f"{', '.join(refused)} must appear and must not; take it out of one of the two lists")

    def _words(self, vocabulary: Vocabulary) -> list[int]:
        return [spelling.word for spelling in self.spellings(vocabulary)]

    def _matches(self, draft: Draft) -> torch.Tensor:
        """How much of each spelling stands at each position: [B, S, n]."""
        spellings = self.spellings(draft.vocabulary)
        tokens = draft.tokens.masked_fill(~draft.real, -1)
        matches = torch.stack([_match_tokens(tokens, spelling.tokens) for spelling in spellings], 1)
        for row, found in enumerate(self._found(draft)):
            for word, there in enumerate(found):
                own = [s for s, spelling in enumerate(spellings) if spelling.word == word]
                whole = matches[row, own] == 1
                if there and not whole.any():  # written with other tokens than ours
                    matches[row, own[0], 0] = 1.0
                if not there and whole.any():  # only a part of a longer word
                    matches[row, own] = torch.where(whole, 0.5, matches[row, own])
        return matches

    def _found(self, draft: Draft) -> list[list[bool]]:
        """For each row and word, whether it stands in the continuation as a whole word."""
        texts = [(prompt.begins, prompt.text + text) for prompt, text in zip(draft.prompts, draft.texts, strict=True)]
        return [[bool(pattern.search(whole, start)) for pattern in self._patterns] for start, whole in texts]

    def _aggregate(self, matches: torch.Tensor, words: list[int]) -> torch.Tensor:
        """Matches of every spelling at every position, [B, S, n], to f [B]."""
        absent = (1 - matches).prod(-1)  # [B, S]
        groups = words if self.mode == "all" else [0] * len(words)
        own = [absent[:, [s for s, group in enumerate(groups) if group == g]].prod(-1) for g in sorted(set(groups))]
        return SCALE * (1 - torch.stack(own, -1)).mean(-1)


class _UsualKeywords(Keywords):
    """Keywords with one spelling a word: the first that the LM can write, after a space and as given if it can."""

    def spellings(self, vocabulary: Vocabulary) -> list[Spelling]:
        """The first of each word's."""
        return list({spelling.word: spelling for spelling in reversed(super().spellings(vocabulary))}.values())[::-1]

    def one_spelling(self) -> Keywords:
        """These."""
        return self


def _match_tokens(tokens: torch.Tensor, spelling: tuple[int, ...]) -> torch.Tensor:
    """Share of a spelling's tokens that stand at each starting position: [B, n], 0 where it does not fit."""
    hits = torch.stack([(tokens == token).float() for token in spelling])  # [m, B, n]
    return _prefix_mean(hits)


def _match_mixtures(mixtures: torch.Tensor, spelling: tuple[int, ...]) -> torch.Tensor:
    """The same for mixtures [B, n, V]."""
    return _prefix_mean(mixtures[..., list(spelling)].permute(2, 0, 1))


def _prefix_mean(weights: torch.Tensor) -> torch.Tensor:
    """Mean over k of the product of weights[:k, :, start:], along the diagonal: BLEU's 1- to m-gram matches."""
    m, batch, n = weights.shape
    starts = max(0, n - m + 1)
    diagonal = torch.stack([weights[k, :, k : k + starts] for k in range(m)])  # [m, B, starts]
    inside = diagonal.cumprod(0).mean(0)
    return torch.cat([inside, weights.new_zeros(batch, n - starts)], dim=-1)


def _spell(number: int, word: str, vocabulary: Vocabulary) -> list[Spelling]:
    """A word's spellings whose tokens may be generated and read back as the word."""
    cases = dict.fromkeys((word, word.lower(), word[:1].upper() + word[1:]))
    variants = [space + case for case in cases for space in (" ", "")]
    spellings = dict.fromkeys(Spelling(number, tuple(vocabulary.pieces(text))) for text in variants)
    bad = vocabulary.banned_fixed.tolist()
    return [
        spelling
        for spelling in spellings
        if spelling.tokens
        and not any(bad[token] for token in spelling.tokens)
        and vocabulary.decode([list(spelling.tokens)])[0].strip().lower() == word.lower()
    ]
