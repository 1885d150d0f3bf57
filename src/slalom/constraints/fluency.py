"""A draft to the log-odds that a reader finds it fluent: a shipped classifier that helps to choose between drafts."""

from __future__ import annotations

from functools import lru_cache

from slalom.constraints.classifier import Classifier


@lru_cache(maxsize=1)
def fluency_guide() -> Classifier:
    """Our MiniLM adapter that learned from drafts as readers rated them; loaded when it is first asked for."""
    return Classifier("fluency", "fluent", name="fluency")
