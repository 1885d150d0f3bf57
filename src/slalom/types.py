"""The words every layer shares: padded prompts, drafts, mixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from slalom.backbone.vocabulary import Vocabulary


class Tokens(NamedTuple):
    """A left-padded batch of prompts."""

    ids: torch.Tensor  # [P, m]
    mask: torch.Tensor  # [P, m], 1 on real tokens


class Prompt(NamedTuple):
    """What a row continues: a prompt, and in a long text the blocks already written."""

    text: str  # read before the continuation by constraints; nothing in a chat, where the answer stands alone
    ids: tuple[int, ...]  # what the LM reads
    asked: str | None = None  # in a chat, the last thing said
    untold_ids: tuple[int, ...] | None = None  # what the LM would read if it were told nothing; none if it is not told
    begun: str = ""  # the end of `text` that belongs to the continuation: its earlier blocks
    begun_ids: tuple[int, ...] = ()  # those blocks' tokens, the last ones of `ids`
    skipped: int = 0  # characters of `text` that a constraint on every block leaves out: whole earlier sentences

    @property
    def untold(self) -> Prompt:
        """The same without what the LM is told."""
        return self if self.untold_ids is None else self._replace(ids=self.untold_ids, untold_ids=None)

    @property
    def begins(self) -> int:
        """Where in `text` the continuation begins."""
        return len(self.text) - len(self.begun)


class Draft(NamedTuple):
    """A batch of continuations, with what the LM itself thinks of them."""

    vocabulary: Vocabulary
    prompts: list[Prompt]  # one a row
    tokens: torch.Tensor  # [B, n]; past a row's length, its EOS if the LM wrote one, then padding
    lengths: torch.Tensor  # [B], tokens before the row's EOS
    texts: list[str]  # the continuations alone
    log_probs: torch.Tensor  # [B, n], of the LM without bias or penalty; 0 past a row's length and EOS
    ended: torch.Tensor  # bool [B], whether the LM itself ended the row, by EOS

    @property
    def real(self) -> torch.Tensor:
        """Which positions hold a token of the text: bool [B, n]."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    @property
    def perplexity(self) -> torch.Tensor:
        """exp of the mean negative log-probability of the continuation's tokens, its EOS included, under the LM: [B].

        Infinite for a text without tokens: one that was cut off at once.
        """
        counts = self.lengths + self.ended
        return torch.where(counts > 0, torch.exp(-self.log_probs.sum(-1) / counts.clamp(min=1)), torch.inf)

    def where(self, take: torch.Tensor, other: Draft) -> Draft:
        """This draft's rows where `take` says so, bool [B], the other's elsewhere."""
        return Draft(
            self.vocabulary,
            self.prompts,
            torch.where(take[:, None], self.tokens, other.tokens),
            torch.where(take, self.lengths, other.lengths),
            [own if mine else their for mine, own, their in zip(take.tolist(), self.texts, other.texts, strict=True)],
            torch.where(take[:, None], self.log_probs, other.log_probs),
            torch.where(take, self.ended, other.ended),
        )

    @property
    def wholes(self) -> list[str]:
        """The continuations with the blocks written before them."""
        return [prompt.begun + text for prompt, text in zip(self.prompts, self.texts, strict=True)]

    def trimmed(self, n: int) -> Draft:
        """The first n positions, of rows that have no more."""
        return self._replace(tokens=self.tokens[:, :n], log_probs=self.log_probs[:, :n])

    def join(self, other: Draft) -> Draft:
        """The rows of both, the shorter of the two padded."""
        n = max(self.tokens.shape[1], other.tokens.shape[1])
        pad = self.vocabulary.pad
        return Draft(
            self.vocabulary,
            self.prompts + other.prompts,
            torch.cat([widened(own.tokens, n, pad) for own in (self, other)]),
            torch.cat([self.lengths, other.lengths]),
            self.texts + other.texts,
            torch.cat([widened(own.log_probs, n) for own in (self, other)]),
            torch.cat([self.ended, other.ended]),
        )

    def select(self, rows: list[int] | torch.Tensor) -> Draft:
        """Only these rows, in this order."""
        chosen = torch.as_tensor(rows, device=self.tokens.device, dtype=torch.long)
        listed = chosen.tolist()
        return Draft(
            self.vocabulary,
            [self.prompts[row] for row in listed],
            self.tokens[chosen],
            self.lengths[chosen],
            [self.texts[row] for row in listed],
            self.log_probs[chosen],
            self.ended[chosen],
        )


class Relaxed(NamedTuple):
    """Continuations whose tokens are mixtures, for samplers that move in continuous space."""

    vocabulary: Vocabulary
    prompts: list[Prompt]  # one a row
    mixtures: torch.Tensor  # [B, n, V], one-hot where a token is decided


def widened(tensor: torch.Tensor, columns: int, filling: float = 0) -> torch.Tensor:
    """A tensor [B, n, ...] with so many columns, the new ones filled."""
    new = tensor.new_full((len(tensor), columns - tensor.shape[1], *tensor.shape[2:]), filling)
    return torch.cat([tensor, new], dim=1)
