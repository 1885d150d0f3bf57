"""The LM's tokens as text, as embeddings, and as sets: what may be generated, what may be a candidate."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch

from slalom.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTEXT = 4  # tokens decoded before those of interest: they settle a leading space and a character cut into bytes
BLOCK = 16  # tokens decoded after the same context: a larger block decodes longer prefixes, a smaller one more contexts

LINE_BREAK = re.compile("[\n\r\v\f\x85\u2028\u2029]")

_TEXT_READERS: WeakKeyDictionary[PreTrainedTokenizerBase, PreTrainedTokenizerBase] = WeakKeyDictionary()


def text_reader(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> PreTrainedTokenizerBase:
    """The tokenizer for users' texts: the same, or a copy that tokenizes the names of control tokens as plain text.

    A copy, because passing the option with a call changes the tokenizer's state for all threads that share it.
    """
    names = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    if not any(name in text for text in texts for name in names):
        return tokenizer
    if tokenizer not in _TEXT_READERS:
        reader = copy.deepcopy(tokenizer)
        reader.split_special_tokens = True
        _TEXT_READERS[tokenizer] = reader
    return _TEXT_READERS[tokenizer]


def shareable(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same tokenizer, without the truncation and padding that a saved one may do by itself.

    The first call without them switches them off. Made here, before threads share the tokenizer, it keeps their calls
    from changing its state.
    """
    tokenizer("a")
    return tokenizer


class LaterTable(NamedTuple):
    """An embedding table that is read when it is first asked for."""

    size: int  # V
    device: torch.device
    read: Callable[[], torch.Tensor]  # [V, d]


class Vocabulary:
    """A tokenizer and the embedding table that goes with it."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, embeddings: torch.Tensor | LaterTable, eos: tuple[int, ...]
    ) -> None:
        self.tokenizer = shareable(tokenizer)
        self._table = embeddings
        self.eos = eos
        self.pad = next(
            token for token in (tokenizer.pad_token_id, *eos, tokenizer.bos_token_id, 0) if token is not None
        )

    @property
    def embeddings(self) -> torch.Tensor:
        """The LM's input table, [V, d]; V may exceed the tokenizer's size."""
        return self._table.read() if isinstance(self._table, LaterTable) else self._table

    @property
    def size(self) -> int:
        """V, the number of logits."""
        return self._table.size if isinstance(self._table, LaterTable) else len(self._table)

    @property
    def device(self) -> torch.device:
        """Where the LM's inputs belong."""
        return self._table.device

    def pieces(self, text: str) -> list[int]:
        """A text's tokens and nothing else: no control token, whatever the text spells."""
        return text_reader(self.tokenizer, [text])(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Texts of token lists, special tokens left out."""
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def continuations(self, prompts: list[Prompt], tokens: list[list[int]]) -> list[str]:
        """The text each token list adds after its prompt."""
        before = [list(prompt.ids[-CONTEXT:]) for prompt in prompts]
        heads = self.decode(before)
        wholes = self.decode([head + row for head, row in zip(before, tokens, strict=True)])
        return [whole[len(head) :] for head, whole in zip(heads, wholes, strict=True)]

    def spans(self, prompts: list[Prompt], tokens: list[list[int]]) -> list[list[tuple[int, int]]]:
        """Where each token's characters stand in its row's continuation: (start, end) pairs.

        A token that completes no character of its own (a byte of an emoji) shares the one it belongs to.
        """
        spans = []
        for prompt, row in zip(prompts, tokens, strict=True):
            pairs = itertools.pairwise(itertools.accumulate([0, *self._prefix_lengths(prompt, row)], max))
            spans.append([(start, end) if end > start else (max(0, start - 1), end) for start, end in pairs])
        return spans

    def _prefix_lengths(self, prompt: Prompt, row: list[int]) -> list[int]:
        """How many characters of its continuation each prefix of a row writes, [n].

        Linear in n, long runs of byte tokens aside: the row is decoded in blocks, each after a few tokens of context.
        """
        head = [token for token in prompt.ids[-CONTEXT:] if token not in self._unwritten]
        ids = head + [token for token in row if token not in self._unwritten]
        ends = [0]  # of ids[len(head):], prefix by prefix
        start = len(head)
        while start < len(ids):
            stop = self._block_end(ids, start)
            context = max(0, start - CONTEXT)
            before, *after = map(len, self.decode([ids[context:end] for end in range(start, stop + 1)]))
            ends += [ends[-1] + length - before for length in after]
            start = stop
        if ends[-1] != len(self.decode([ids])[0]) - len(self.decode([head])[0]):  # a decoder that needs the whole row
            prefixes = [row[:end] for end in range(1, len(row) + 1)]
            return [len(text) for text in self.continuations([prompt] * len(row), prefixes)]
        return [ends[count] for count in itertools.accumulate(token not in self._unwritten for token in row)]

    def _block_end(self, ids: list[int], start: int) -> int:
        """Where a block of tokens ends: not inside a run of byte tokens, whose text depends on the whole run."""
        stop = min(start + BLOCK, len(ids))
        while stop < len(ids) and ids[stop - 1] in self.byte_tokens:
            stop += 1
        return stop

    @cached_property
    def texts(self) -> list[str]:
        """Each token's own text, [V]; empty for special and unused ids."""
        listed = [[token] for token in range(min(self.size, len(self.tokenizer)))]
        if self.tokenizer.is_fast:  # the same without transformers' own handling of every list
            known = self.tokenizer.backend_tokenizer.decode_batch(listed, skip_special_tokens=True)
        else:
            known = self.decode(listed)
        return known + [""] * (self.size - len(known))

    def make_tables(self) -> None:
        """Make what every rollout asks for, while an engine may still be getting ready."""
        _ = self.never_candidates, self.banned_fixed

    @cached_property
    def special(self) -> torch.Tensor:
        """bool [V]: control tokens, and rows of the table no token uses."""
        special = torch.zeros(self.size, dtype=torch.bool)
        special[[token for token in (*self.tokenizer.all_special_ids, *self.eos) if token < self.size]] = True
        special[[token for token in self.tokenizer.added_tokens_decoder if token < self.size]] = True
        special[len(self.tokenizer) :] = True
        return special.to(self.device)

    @cached_property
    def byte_tokens(self) -> frozenset[int]:
        """Tokens that stand for one byte by its number, `<0xE2>`. A decoder reads a run of them as a whole.

        An incomplete character anywhere in the run turns all of it into replacement characters, one a byte.
        """
        named = self.tokenizer.get_vocab().items()
        return frozenset(number for token, number in named if re.fullmatch("<0x[0-9A-Fa-f]{2}>", token))

    @cached_property
    def _unwritten(self) -> frozenset[int]:
        """Tokens that decoding leaves out: control tokens, and rows of the table no token uses."""
        added = self.tokenizer.added_tokens_decoder.items()
        control = {number for number, token in added if token.special} | set(self.tokenizer.all_special_ids)
        return frozenset(control | set(range(len(self.tokenizer), self.size)))

    @cached_property
    def newline(self) -> torch.Tensor:
        """bool [V]: tokens with a line break in them."""
        return torch.tensor([LINE_BREAK.search(text) is not None for text in self.texts], device=self.device)

    @cached_property
    def incomplete(self) -> torch.Tensor:
        """bool [V]: tokens that are no text of their own (half a character, nothing at all)."""
        return torch.tensor([not text or "\ufffd" in text for text in self.texts], device=self.device)

    @cached_property
    def banned_fixed(self) -> torch.Tensor:
        """bool [V]: never generated in fixed-length mode."""
        return self.special | self.newline

    @cached_property
    def banned_free(self) -> torch.Tensor:
        """bool [V]: never generated in free-length mode, where EOS ends a row."""
        banned = self.special.clone()
        banned[list(self.eos)] = False
        return banned

    @cached_property
    def never_candidates(self) -> torch.Tensor:
        """bool [V]: never proposed as a bias token."""
        return self.special | self.newline | self.incomplete
