"""Text to found or not: a regular expression that the continuation must match somewhere."""

from __future__ import annotations

import re

from slalom.constraints.constraint import SCALE, Constraint
from slalom.constraints.custom import Custom
from slalom.errors import SlalomError
from slalom.types import Prompt


class Regex(Custom):
    """The pattern must be found in the continuation: f is 4 if it is, else 0. It chooses among drafts, no more."""

    def __init__(self, pattern: str) -> None:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise SlalomError(f"the pattern {pattern!r} is no regular expression ({error})") from None
        super().__init__(
            lambda prompt, text: SCALE * bool(compiled.search(text)), name=f"regex:{pattern}", satisfied_at=SCALE
        )
        self._pattern = compiled

    def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
        """Nothing once it is found."""
        return None if self._pattern.search(prompt.begun) else self
