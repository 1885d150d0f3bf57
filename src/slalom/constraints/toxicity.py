"""Low or high toxicity: the shipped classifier as a constraint on the continuation, whatever the prompt is like."""

from __future__ import annotations

from slalom.constraints.classifier import Classifier
from slalom.errors import SlalomError

LABELS = {"low": "clean", "high": "toxic"}
SURE = 0.98  # it knows two classes alone, and says 0.9 of much that is neither


class Toxicity(Classifier):
    """Low (or high) toxicity of the continuation, by our MiniLM adapter trained on Jigsaw comments and sentences."""

    kind = "detoxification"
    steer_name = "toxicity"

    def __init__(self, level: str = "low") -> None:
        if level not in LABELS:
            raise SlalomError(f"unknown level of toxicity {level!r}; choose from {', '.join(LABELS)}")
        super().__init__("toxicity", LABELS[level], name=f"toxicity:{level}", reads="continuation")
        # An LM told to be polite apologises and corrects instead of going on: of the low level it is told nothing.
        self.description = "is rude and insulting" if level == "high" else None
        self.sure = SURE
