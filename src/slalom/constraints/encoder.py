"""Text to any number an encoder gives: the shared half of classifiers and similarity, with the encoder's own tokens."""

from __future__ import annotations

import contextlib
import functools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args
from weakref import WeakKeyDictionary

import torch
from torch.nn.utils.rnn import pad_sequence

from slalom.backbone.engines import has_openvino
from slalom.backbone.hooks import in_this_thread
from slalom.backbone.placement import is_settled, place
from slalom.backbone.progress import say
from slalom.backbone.saved import SavedEncoder, encoder_facts
from slalom.backbone.vocabulary import Vocabulary, shareable, text_reader
from slalom.constraints import alignment
from slalom.constraints.constraint import Constraint, ToRead
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Relaxed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Encoder: TypeAlias = PreTrainedModel | SavedEncoder

Reads = Literal["text", "continuation"]  # the prompt followed by the continuation, or the continuation alone
TOGETHER = 8  # texts read in one pass: more bring nothing but padding, and memory for gradients
FAST_TOGETHER = 32  # the same on OpenVINO
REMEMBERED = 4096  # texts an encoder has read

# Every LM token as an embedding of an encoder, [V, d], by the encoder, the LM's vocabulary and the device.
_TABLES: WeakKeyDictionary[Encoder, WeakKeyDictionary[Vocabulary, dict[torch.device, torch.Tensor]]]
_TABLES = WeakKeyDictionary()
_BUILDING = threading.Lock()

# Encoders as OpenVINO runs them; none where torch is faster.
_FAST: WeakKeyDictionary[Encoder, Callable[[dict[str, torch.Tensor]], torch.Tensor] | None]
_FAST = WeakKeyDictionary()

# What a conversion is tried on: sentences of the length of a draft.
EXAMPLES = [
    "The food was wonderful and we will certainly come back with all of our friends next summer.",
    "Nobody answered the phone for three days, and when they did, they were rude and could not help me at all.",
    "The bridge was built in 1932 and connects the old harbour with the station on the other side of the river.",
    "I opened the box and found that half of the parts were missing, which made me so angry that I sent it back.",
    "She smiled at the children, thanked everybody for the flowers and said it was the best day of her life.",
    "The meeting begins at nine in room twelve; please bring the report and a copy of last year's figures.",
    "It rained all week, the tent leaked, and the only thing we remember of the trip is being cold and hungry.",
    "In the evening he reads the newspaper in the kitchen while the radio plays songs from another time.",
]


class Encoded(NamedTuple):
    """Texts as the encoder reads them."""

    inputs: dict[str, torch.Tensor]  # [B, m] each, right-padded, on the encoder's device
    offsets: list[list[alignment.Span]]  # where each token stands in its text


class Around(NamedTuple):
    """Prompts as the encoder reads them, with open positions after each."""

    inputs: dict[str, torch.Tensor]  # [B, m] each, right-padded, on the encoder's device
    starts: list[int]  # where the open positions begin
    room: int  # how many there are: those asked for, or as many of the last ones as fit


class Readings:
    """What an encoder said of the latest texts, for whoever asks again; safe among threads."""

    def __init__(self) -> None:
        self._rows: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()

    def of(self, texts: list[str]) -> dict[str, torch.Tensor]:
        """What is known of these."""
        with self._lock:
            return {text: self._rows[text] for text in texts if text in self._rows}

    def remember(self, rows: dict[str, torch.Tensor]) -> None:
        """Keep these, and forget the oldest if there are too many."""
        with self._lock:
            for text, row in rows.items():
                self._rows.pop(text, None)
                self._rows[text] = row
            for text in list(self._rows)[: max(0, len(self._rows) - REMEMBERED)]:
                del self._rows[text]


_READINGS: WeakKeyDictionary[Encoder, Readings] = WeakKeyDictionary()


class EncoderConstraint(Constraint):
    """A constraint whose f is computed by an encoder with a tokenizer of its own. Subclasses give `_outputs` and `_f`.

    A model that is `ours`, loaded here by its name and frozen, may be run by a faster engine than torch, and what it
    says of a text is remembered: one reading serves all constraints that share it. A saved encoder's weights are read
    when torch, or anything else, first asks for `model`.
    """

    def __init__(self, model: Encoder, tokenizer: PreTrainedTokenizerBase, reads: Reads, ours: bool = False) -> None:
        if not tokenizer.is_fast:
            raise SlalomError("the classifier's tokenizer must be a fast one: character offsets are needed to align it")
        self._given = model if isinstance(model, SavedEncoder) else model.eval()
        self.tokenizer = shareable(tokenizer)
        self.reads, self.ours = known_reads(reads), ours
        self.longest = min(tokenizer.model_max_length, encoder_facts(model).window)
        (special,) = tokenizer(["a"], return_special_tokens_mask=True)["special_tokens_mask"]
        self._before_text, self._after_text = _leading(special), _leading(special[::-1])

    @property
    def model(self) -> PreTrainedModel:
        """The encoder itself, in evaluation mode."""
        return self._given.model if isinstance(self._given, SavedEncoder) else self._given

    def _place(self, device: torch.device) -> torch.device:
        """Have the encoder where an LM on this device needs it; where its inputs belong then."""
        given = self._given
        return given.place(device) if isinstance(given, SavedEncoder) else place(given, device)

    @abstractmethod
    def _outputs(self, encoded: dict[str, torch.Tensor]) -> torch.Tensor:
        """What the encoder says of its inputs, differentiable in its word embeddings: [B, k]."""

    @abstractmethod
    def _f(self, outputs: torch.Tensor) -> torch.Tensor:
        """f of what the encoder says: [B]."""

    def score(self, draft: Draft) -> torch.Tensor:
        """f of the real text, read with the encoder's own tokens: each text but once, those of like length together."""
        texts, device = self._texts(draft), draft.tokens.device
        with torch.inference_mode():
            found = self._read(texts, device)
            return self._f(torch.stack([found[text] for text in texts])).to(device)

    def to_read(self, draft: Draft) -> list[ToRead]:
        """All of the texts, if what is said of them is remembered."""
        return [ToRead(self._given, self._read, self._texts(draft))] if self.ours else []

    @torch.inference_mode()
    def _read(self, texts: list[str], device: torch.device) -> dict[str, torch.Tensor]:
        """What the encoder says of texts: [k] each."""
        home = self._place(device)
        readings = _READINGS.setdefault(self._given, Readings()) if self.ours else Readings()
        found = readings.of(texts)
        new = sorted(set(texts) - set(found), key=lambda text: (len(text), text))
        run, together = self._engine(home)
        for start in range(0, len(new), together):
            some = new[start : start + together]
            found.update(zip(some, run(self._encode(some, device).inputs).cpu(), strict=True))
        readings.remember(found)
        return found

    def prepare(self, device: torch.device) -> None:
        """Read the encoder's weights, place it for an LM on this device, and have the engine that will run it."""
        self._engine(place(self.model, device))

    def _engine(self, home: torch.device) -> tuple[Callable[[dict[str, torch.Tensor]], torch.Tensor], int]:
        """What gives the encoder's outputs without gradients, and how many texts it had best read at once."""
        fast = self._fast if home.type == "cpu" else None
        return (self._outputs, TOGETHER) if fast is None else (fast, FAST_TOGETHER)

    @functools.cached_property
    def _fast(self) -> Callable[[dict[str, torch.Tensor]], torch.Tensor] | None:
        """The encoder on OpenVINO, where that is installed, can run it and is faster; shared by all that share it."""
        given = self._given
        if not self.ours or not has_openvino() or (not isinstance(given, SavedEncoder) and is_settled(given)):
            return None
        from slalom.backbone.openvino_encoder import prepare

        known = given.files_fingerprint if isinstance(given, SavedEncoder) else given
        with _BUILDING:
            if given not in _FAST:
                example = self._encode(EXAMPLES, torch.device("cpu")).inputs
                try:
                    _FAST[given] = prepare(known, self._outputs, example)
                except SlalomError as error:
                    say(f"torch is used: {error}")
                    _FAST[given] = None
            return _FAST[given]

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """The collected gradient of each position times each candidate's embedding, a few rows at a time."""
        rows = torch.arange(len(candidates), device=candidates.device).split(TOGETHER)
        return torch.cat([self._candidate_scores(draft.select(some), candidates[some]) for some in rows])

    def _candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        inputs, offsets = self._encode(self._texts(draft), draft.tokens.device)
        watched: list[torch.Tensor] = []

        def watch(embeddings: torch.Tensor) -> torch.Tensor:
            watched.append(embeddings.detach().requires_grad_())
            return watched[-1]

        with torch.enable_grad(), replaced_embeddings(self.model, watch):
            (gradients,) = torch.autograd.grad(self._f(self._outputs(inputs)).sum(), watched)
        rows = [row[:end] for row, end in zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)]
        starts = [len(self._before(prompt)) for prompt in draft.prompts]
        spans = [
            [(start + begin, start + end) for begin, end in row]
            for start, row in zip(starts, draft.vocabulary.spans(draft.prompts, rows), strict=True)
        ]
        collected = alignment.collect(gradients.float(), offsets, spans, candidates.shape[1])
        table = self._table(draft.vocabulary)
        return dot_products(collected, table, candidates.to(table.device)).to(candidates.device)

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """f where each mixture is one position of the encoder: the mixture of its tokens' embeddings."""
        mixtures = relaxed.mixtures
        inputs, starts, count = self._encode_around(relaxed.prompts, mixtures.shape[1], mixtures.device)
        table = self._table(relaxed.vocabulary)
        soft = mixtures[:, mixtures.shape[1] - count :].to(table.device, table.dtype) @ table  # [B, count, d]

        def mixed(embeddings: torch.Tensor) -> torch.Tensor:
            out = embeddings.clone()
            for row, start in enumerate(starts):
                out[row, start : start + count] = soft[row].to(out.dtype)
            return out

        with replaced_embeddings(self.model, mixed):
            return self._f(self._outputs(inputs)).to(mixtures.device)

    def check(self, vocabulary: Vocabulary, length: int) -> None:
        """Refuses nothing, but places the encoder now; the table is built for the samplers that need gradients."""
        self._place(vocabulary.device)

    def _table(self, vocabulary: Vocabulary) -> torch.Tensor:
        """Every LM token as an embedding of the encoder, built once for all constraints that share it: [V, d]."""
        embeddings = self.model.get_input_embeddings().weight.detach()
        with _BUILDING:
            tables = _TABLES.setdefault(self._given, WeakKeyDictionary()).setdefault(vocabulary, {})
            if embeddings.device not in tables:
                with torch.inference_mode(False), torch.no_grad():  # a table is part of graphs later
                    tables[embeddings.device] = alignment.candidate_table(vocabulary, self.tokenizer, embeddings)
            return tables[embeddings.device]

    def _before(self, prompt: Prompt) -> str:
        """What is read before the continuation: the prompt, or in a long text the sentence the block before began."""
        return prompt.text[prompt.skipped if self.reads == "text" else max(prompt.skipped, prompt.begins) :]

    def _texts(self, draft: Draft) -> list[str]:
        """What is read of each row."""
        return [self._before(prompt) + text for prompt, text in zip(draft.prompts, draft.texts, strict=True)]

    def _encode(self, texts: list[str], device: torch.device) -> Encoded:
        """Texts as the encoder's own tokens; of one too long for it, the end is kept."""
        rows = self._tokenize(texts, self.longest)
        offsets = [row.pop("offset_mapping") for row in rows]
        return Encoded(self._padded(rows, device), offsets)

    def _encode_around(self, prompts: list[Prompt], n: int, device: torch.device) -> Around:
        """Prompts with n open positions after each, the last of them if not all fit, and what fits of the prompts."""
        filler = self.tokenizer.unk_token_id if self.tokenizer.unk_token_id is not None else self.tokenizer.pad_token_id
        count = min(n, self.longest - self._before_text - self._after_text)
        rows, starts = [], []
        for row in self._tokenize([self._before(prompt) for prompt in prompts], self.longest - count):
            ids = row["input_ids"]
            starts.append(len(ids) - self._after_text)
            ids[starts[-1] : starts[-1]] = [filler] * count
            rows.append({"input_ids": ids, "attention_mask": [1] * len(ids)})
        return Around(self._padded(rows, device), starts, count)

    def _tokenize(self, texts: list[str], room: int) -> list[dict[str, list[Any]]]:
        """Texts to at most `room` tokens each, with offsets: the special ones, and the last of the text's own.

        Cut and padded here: asked to do it, the tokenizer would change, and other threads use it too.
        """
        encoded = text_reader(self.tokenizer, texts)(texts, return_offsets_mapping=True, verbose=False)
        first = self._before_text
        return [
            {key: values[:first] + values[first + max(0, len(values) - room) :] for key, values in row.items()}
            for row in ({key: rows[i] for key, rows in encoded.items()} for i in range(len(texts)))
        ]

    def _padded(self, rows: list[dict[str, list[int]]], device: torch.device) -> dict[str, torch.Tensor]:
        """Right-padded inputs, and the encoder, on the LM's device; on the encoder's, if that must stay where it is."""
        home = self._place(device)
        filling = {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": self.tokenizer.pad_token_type_id}
        return {
            key: pad_sequence([torch.tensor(row[key]) for row in rows], True, filling.get(key, 0)).to(home)
            for key in rows[0]
        }


def _leading(marks: list[int]) -> int:
    """How many stand before the first 0; none if there is no 0."""
    return marks.index(0) if 0 in marks else 0


def known_reads(reads: str) -> Reads:
    """What to read, if it is one of the choices."""
    for choice in get_args(Reads):
        if reads == choice:
            return choice
    raise SlalomError(f"reads is {reads!r}; choose from {', '.join(get_args(Reads))}")


def dot_products(gradients: torch.Tensor, table: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """gradients [B, n, d] · table[candidates] → [B, n, k], row by row so that [B, n, k, d] never exists."""
    rows = [
        torch.bmm(table[own], gradient[:, :, None])[..., 0] for own, gradient in zip(candidates, gradients, strict=True)
    ]
    return torch.stack(rows)


@contextlib.contextmanager
def replaced_embeddings(model: PreTrainedModel, replace: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """While open, the model reads, in this thread, `replace(its word embeddings)` instead of its word embeddings."""
    changed = in_this_thread(lambda module, args, output: replace(output))
    hook = model.get_input_embeddings().register_forward_hook(changed)
    try:
        yield
    finally:
        hook.remove()
