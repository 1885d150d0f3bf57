"""Positive, neutral or negative: the shipped sentiment classifier as a constraint."""

from __future__ import annotations

from slalom.constraints.classifier import Classifier

DESCRIPTIONS = {
    "negative": "expresses strong disappointment and frustration",
    "neutral": "has a neutral, matter-of-fact tone",
    "positive": "has a clearly positive, happy and enthusiastic tone",
}


class Sentiment(Classifier):
    """Positive, neutral or negative sentiment, by our MiniLM adapter that knows all three."""

    steer_name = "sentiment"

    def __init__(self, label: str) -> None:
        super().__init__("sentiment", label, name=f"sentiment:{label}", description=DESCRIPTIONS.get(label.lower()))
