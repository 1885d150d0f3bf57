"""2: draft → score and candidate effects."""

from slalom.constraints.avoid import Avoid
from slalom.constraints.classifier import Classifier, MarginConstraint
from slalom.constraints.constraint import Constraint
from slalom.constraints.custom import Custom
from slalom.constraints.encoder import Reads
from slalom.constraints.keywords import Keywords
from slalom.constraints.loading import located
from slalom.constraints.regex import Regex
from slalom.constraints.sentence import EndsWithSentence, Length
from slalom.constraints.sentiment import Sentiment
from slalom.constraints.similar import Similar
from slalom.constraints.table_classifier import TableClassifier
from slalom.constraints.topic import Topic
from slalom.constraints.toxicity import Toxicity

CONSTRAINTS: dict[str, type[Constraint]] = {
    "sentiment": Sentiment,
    "toxicity": Toxicity,
    "keywords": Keywords,
    "classifier": Classifier,
    "table-classifier": TableClassifier,
    "similar": Similar,
    "topic": Topic,
    "avoid": Avoid,
    "ends-with-sentence": EndsWithSentence,
    "length": Length,
    "regex": Regex,
    "custom": Custom,
}


def classifier(source: str, label: str, reads: Reads = "text", description: str | None = None) -> MarginConstraint:
    """A classifier's label as a wish, whichever way the classifier reads: text of its own, or the LM's table."""
    folder = located(source)
    if (folder / "projection.safetensors").is_file():
        return TableClassifier(folder, label, reads=reads, description=description)
    return Classifier(source, label, reads=reads, description=description)


__all__ = [
    "CONSTRAINTS",
    "Avoid",
    "Classifier",
    "Constraint",
    "Custom",
    "EndsWithSentence",
    "Keywords",
    "Length",
    "Regex",
    "Sentiment",
    "Similar",
    "TableClassifier",
    "Topic",
    "Toxicity",
    "classifier",
]
