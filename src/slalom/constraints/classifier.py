"""Text to class margin: any Hugging Face sequence classifier, with its own tokenizer, as a constraint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slalom.backbone.saved import encoder_facts
from slalom.constraints.constraint import Constraint, Judgement, Likeliest, Part, first
from slalom.constraints.encoder import EncoderConstraint, Reads
from slalom.constraints.loading import card, located, open_classifier
from slalom.errors import SlalomError
from slalom.types import Draft

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LEAST_SURE = 0.9  # the probability at which a search may end, however seldom the classifier errs further down


class MarginConstraint(Constraint):
    """A constraint whose f is a label's margin: its probability is the margin's sigmoid."""

    label_name: str  # as the classifier spells it
    description: str | None = None  # the label in words that go on from "a text that", for the LM to be told

    def describe(self, likeliest: Likeliest = first) -> str | None:
        """What was given: a label's own name seldom says what it means."""
        return self.description

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


class Classifier(EncoderConstraint, MarginConstraint):
    """A classifier's label as a wish: f is its logit minus the log-sum-exp of the other labels'.

    `model` is a hub name, a folder (a saved model, or an adapter made by `slalom train classifier`) or a model object,
    which then needs its `tokenizer`. It reads the prompt followed by the continuation, or the continuation alone.
    `description` is the label in words that go on from "a text that", for the LM to be told: "is friendly".
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        label: str | int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str | None = None,
        reads: Reads = "text",
        description: str | None = None,
    ) -> None:
        source = model if isinstance(model, str) else None
        opened, tokenizer = open_classifier(model) if isinstance(model, str) else (model, tokenizer)
        if tokenizer is None:
            raise SlalomError("a classifier given as a model object needs its tokenizer too")
        super().__init__(opened, tokenizer, reads, ours=source is not None)
        labels = encoder_facts(opened).labels
        self.label = label_index(labels, label)
        self.label_name = labels[self.label]
        self.name = name or f"classifier:{self.label_name}"
        self.description = description
        self.sure = LEAST_SURE if source is None else sure_degree(source, self.label_name)

    def _outputs(self, encoded: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.model(**encoded).logits
        return logits

    def _f(self, outputs: torch.Tensor) -> torch.Tensor:
        return margin(outputs, self.label)


def sure_degree(source: str, label: str) -> float:
    """The probability from which on a classifier's verdict can be trusted, by its card if it was calibrated.

    One that was not may seldom be surer than that, and a search for more would run to its last draft.
    """
    folder = located(source)
    said = card(folder).get("sure") if (folder / "card.json").is_file() else None
    return max(float(said[label]), LEAST_SURE) if said else LEAST_SURE


def margin(logits: torch.Tensor, label: int) -> torch.Tensor:
    """The paper's f: a label's logit minus the (log-sum-exp of the) others'; one logit alone is its own margin."""
    if logits.shape[-1] == 1:
        return logits[:, 0].float()
    others = torch.arange(logits.shape[-1], device=logits.device) != label
    return logits[:, label].float() - logits[:, others].float().logsumexp(-1)


def label_index(labels: dict[int, str], label: str | int) -> int:
    """A label's number, from its name (in any case) or its number."""
    for number, name in labels.items():
        if str(label).lower() in (name.lower(), str(number)):
            return number
    raise SlalomError(f"the classifier has no label {label!r}; choose from {', '.join(labels.values())}")
