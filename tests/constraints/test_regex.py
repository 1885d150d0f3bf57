"""Regular expressions: found in the continuation, not in the prompt."""

from __future__ import annotations

import pytest

from slalom.api import SteerableModel
from slalom.constraints import Regex
from slalom.constraints.constraint import SCALE
from slalom.errors import SlalomError
from tests.helpers import draft_of


def test_the_pattern_is_looked_for_in_the_continuation_alone(llama: SteerableModel) -> None:
    constraint = Regex(r"\bs\w+p\b")
    judged = [constraint.judge(draft_of(llama, [row])) for row in (("we ate", " soup"), ("the soup", " was warm"))]
    assert [one.score.item() for one in judged] == [SCALE, 0.0]
    assert [one.satisfied.item() for one in judged] == [True, False]


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(SlalomError, match=r"the pattern '\(soup' is no regular expression"):
        Regex("(soup")
