"""Positive or negative: the shipped sentiment classifier as a constraint."""

from __future__ import annotations

from slalom.constraints.classifier import Classifier


class Sentiment(Classifier):
    """Positive or negative sentiment, by our MiniLM adapter trained on Yelp and SST-2."""

    def __init__(self, label: str) -> None:
        super().__init__("sentiment", label, name=f"sentiment:{label}")
