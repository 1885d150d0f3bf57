"""Text to alliteration: a constraint that lives in a package of its own.

    pip install ./examples/extra_constraint
    slalom generate "The sea" --constraint alliteration=s

One class that takes one string, and one line of pyproject.toml that names it, is all there is to it.
"""

from __future__ import annotations

from slalom.constraints import Custom
from slalom.errors import SlalomError

ENOUGH = 3  # words that begin alike


class Alliteration(Custom):
    """At least three words of the continuation begin with a letter: f is 4 if so, less in proportion if not."""

    def __init__(self, letter: str) -> None:
        if len(letter) != 1 or not letter.isalpha():
            raise SlalomError(f"the letter is {letter!r}; it must be one letter")
        self.letter = letter.lower()
        super().__init__(self._share, name=f"alliteration:{letter}", satisfied_at=4.0)

    def _share(self, prompt: str, text: str) -> float:
        beginning = sum(word.lower().startswith(self.letter) for word in text.split())
        return 4.0 * min(beginning, ENOUGH) / ENOUGH
