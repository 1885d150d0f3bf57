"""Text to class margin: any Hugging Face sequence classifier, with its own tokenizer, as a constraint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints import alignment
from slalom.constraints.constraint import Constraint, Judgement, Part
from slalom.constraints.loading import load_classifier
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Relaxed

TOGETHER = 32  # texts scored in one pass: more bring nothing but padding


class MarginConstraint(Constraint):
    """A constraint whose f is a label's margin: its probability is the margin's sigmoid."""

    def satisfied(self, draft: Draft) -> torch.Tensor:
        """Whether the label is likelier than all others together."""
        return self.score(draft) > 0

    def probability(self, score: torch.Tensor) -> torch.Tensor:
        """The label's probability, which the margin gives exactly."""
        return score.sigmoid()

    def judge(self, draft: Draft) -> Judgement:
        """One reading of the text for score, probability and satisfaction."""
        score = self.score(draft)
        return Judgement(score, score.sigmoid(), [Part(self.name, score, score.sigmoid(), score > 0)])


class Classifier(MarginConstraint):
    """A classifier's label as a wish: f is its logit minus the log-sum-exp of the other labels'.

    `model` is a hub name, a folder (a saved model, or an adapter made by `slalom train classifier`) or a model object,
    which then needs its `tokenizer`. The text read is the prompt followed by the continuation.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        label: str | int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(model, str):
            model, tokenizer = load_classifier(model)
        elif tokenizer is None:
            raise SlalomError("a classifier given as a model object needs its tokenizer too")
        if not tokenizer.is_fast:
            raise SlalomError("the classifier's tokenizer must be a fast one: character offsets are needed to align it")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.label = label_index(model.config, label)
        self.name = name or f"classifier:{model.config.id2label[self.label]}"
        self._tables: WeakKeyDictionary[Vocabulary, torch.Tensor] = WeakKeyDictionary()

    def score(self, draft: Draft) -> torch.Tensor:
        """The margin of the real text, read with the classifier's own tokens, texts of like length together."""
        order = sorted(range(len(draft.texts)), key=lambda row: len(draft.prompts[row].text + draft.texts[row]))
        scores = torch.empty(len(order), device=draft.tokens.device)
        for start in range(0, len(order), TOGETHER):
            some = order[start : start + TOGETHER]
            with torch.inference_mode():
                encoded, _ = self._encode(draft.select(some))
                scores[some] = margin(self.model(**encoded).logits, self.label).to(scores.dtype)
        return scores

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """The collected gradient of each position times each candidate's embedding."""
        encoded, offsets = self._encode(draft)
        watched: list[torch.Tensor] = []

        def watch(embeddings: torch.Tensor) -> torch.Tensor:
            watched.append(embeddings.detach().requires_grad_())
            return watched[-1]

        with torch.enable_grad(), replaced_embeddings(self.model, watch):
            f = margin(self.model(**encoded).logits, self.label)
            (gradients,) = torch.autograd.grad(f.sum(), watched)
        rows = [row[:end] for row, end in zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)]
        starts = [len(prompt.text) for prompt in draft.prompts]
        spans = [
            [(start + begin, start + end) for begin, end in row]
            for start, row in zip(starts, draft.vocabulary.spans(draft.prompts, rows), strict=True)
        ]
        collected = alignment.collect(gradients.float(), offsets, spans, candidates.shape[1])
        return dot_products(collected, self._table(draft.vocabulary), candidates)

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """The margin where each mixture is one position of the classifier: the mixture of its tokens' embeddings."""
        n = relaxed.mixtures.shape[1]
        encoded, starts = self._encode_around(relaxed.prompts, n, relaxed.mixtures.device)
        soft = relaxed.mixtures.float() @ self._table(relaxed.vocabulary)  # [B, n, d]

        def mixed(embeddings: torch.Tensor) -> torch.Tensor:
            out = embeddings.clone()
            for row, start in enumerate(starts):
                out[row, start : start + n] = soft[row].to(out.dtype)
            return out

        with replaced_embeddings(self.model, mixed):
            return margin(self.model(**encoded).logits, self.label)

    def _table(self, vocabulary: Vocabulary) -> torch.Tensor:
        """Every LM token as an embedding of the classifier, built once per LM: [V, d]."""
        if vocabulary not in self._tables:
            embeddings = self.model.get_input_embeddings().weight.detach()
            self._tables[vocabulary] = alignment.candidate_table(vocabulary, self.tokenizer, embeddings)
        return self._tables[vocabulary]

    def _encode(self, draft: Draft) -> tuple[dict[str, torch.Tensor], list[list[alignment.Span]]]:
        """Prompts and continuations as the classifier's own tokens, and where each stands in the text."""
        texts = [prompt.text + text for prompt, text in zip(draft.prompts, draft.texts, strict=True)]
        encoded = self._tokenize(texts, padding=True, return_tensors="pt")
        offsets = [[(start, end) for start, end in row] for row in encoded.pop("offset_mapping").tolist()]
        return self._placed(encoded, draft.tokens.device), offsets

    def _encode_around(
        self, prompts: list[Prompt], n: int, device: torch.device
    ) -> tuple[dict[str, torch.Tensor], list[int]]:
        """Prompts with n open positions after each, and where those start."""
        filler = self.tokenizer.unk_token_id if self.tokenizer.unk_token_id is not None else self.tokenizer.pad_token_id
        rows, starts = [], []
        encoded = self._tokenize([prompt.text for prompt in prompts])
        for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            start = max((i + 1 for i, (begin, end) in enumerate(offsets) if end > begin), default=len(ids))
            rows.append(ids[:start] + [filler] * n + ids[start:])
            starts.append(start)
        padded = self.tokenizer.pad({"input_ids": rows}, padding_side="right", return_tensors="pt")
        return self._placed(padded, device), starts

    def _tokenize(self, texts: list[str], **how: Any) -> Any:
        """Texts to tokens with offsets; of one too long for the classifier, the end is kept."""
        self.tokenizer.truncation_side, self.tokenizer.padding_side = "left", "right"
        longest = min(self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", 512))
        return self.tokenizer(texts, truncation=True, max_length=longest, return_offsets_mapping=True, **how)

    def _placed(self, encoded: Any, device: torch.device) -> dict[str, torch.Tensor]:
        """The inputs on the LM's device, and the classifier with them."""
        if self.model.device != device:
            self.model.to(device)
        return {key: value.to(device) for key, value in encoded.items()}


def margin(logits: torch.Tensor, label: int) -> torch.Tensor:
    """The paper's f: a label's logit minus the (log-sum-exp of the) others'; one logit alone is its own margin."""
    if logits.shape[-1] == 1:
        return logits[:, 0].float()
    others = torch.arange(logits.shape[-1], device=logits.device) != label
    return logits[:, label].float() - logits[:, others].float().logsumexp(-1)


def label_index(config: PretrainedConfig, label: str | int) -> int:
    """A label's number, from its name (in any case) or its number."""
    names = {number: str(name) for number, name in config.id2label.items()}
    for number, name in names.items():
        if str(label).lower() in (name.lower(), str(number)):
            return number
    raise SlalomError(f"the classifier has no label {label!r}; choose from {', '.join(names.values())}")


def dot_products(gradients: torch.Tensor, table: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """gradients [B, n, d] · table[candidates] → [B, n, k], row by row so that [B, n, k, d] never exists."""
    rows = [
        torch.bmm(table[own], gradient[:, :, None])[..., 0] for own, gradient in zip(candidates, gradients, strict=True)
    ]
    return torch.stack(rows)


@contextlib.contextmanager
def replaced_embeddings(model: PreTrainedModel, replace: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """While open, the model reads `replace(its word embeddings)` instead of its word embeddings."""
    hook = model.get_input_embeddings().register_forward_hook(lambda module, args, output: replace(output))
    try:
        yield
    finally:
        hook.remove()
