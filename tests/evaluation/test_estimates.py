"""Estimates against values counted by hand."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from slalom.errors import SlalomError
from slalom.evaluation.estimates import (
    RESAMPLES,
    Case,
    Estimate,
    Values,
    by_prompt,
    estimate,
    median_interval,
    paired_difference,
)


def test_an_estimate_has_the_mean_the_standard_error_and_an_interval_over_clusters() -> None:
    found = estimate({"a": [1.0, 1.0, 1.0], "b": [0.0]})
    assert found is not None
    assert found.mean == 0.75
    assert found.error == pytest.approx(0.5 / 2)  # standard deviation 0.5, four values
    assert (found.low, found.high, found.n) == (0.0, 1.0, 4)  # a draw may hold one cluster twice
    assert found.median == 1.0


def test_of_nothing_there_is_no_estimate_and_of_one_value_no_error() -> None:
    assert estimate({}) is None
    assert estimate({"a": []}) is None
    alone = estimate({"a": [0.5]})
    assert alone == Estimate(0.5, None, 0.5, 0.5, 1, 0.5)


def test_a_paired_difference_is_of_what_both_were_asked_and_its_interval_is_over_prompts() -> None:
    def case(prompt: str, wish: str = "w", length: int = 20) -> Case:
        return Case(prompt, wish, length)

    own: Values = {case("a"): [3.0, 5.0], case("b"): [2.0], case("b", "v"): [7.0], case("c"): [9.0]}
    other: Values = {
        case("a"): [1.0],
        case("b"): [1.0],
        case("b", "v"): [1.0, 5.0],
        case("c"): [],
        case("d"): [4.0],
    }
    found = paired_difference(own, other)
    assert found == (pytest.approx((3 + 1 + 4) / 3), 2.5, 3.0, 2)  # prompt a has 3; b 1 and 4
    assert paired_difference(own, {}) is None


def test_a_prompt_that_several_records_are_tried_on_is_one_prompt() -> None:
    better: Values = {Case(prompt, "w", 20, str(i)): [1.0] for prompt in ("a", "b") for i in range(7)}
    worse: Values = {case: [0.0] for case in better}
    assert by_prompt(better) == {"a": [1.0] * 7, "b": [1.0] * 7}
    found = paired_difference(better, worse)
    assert found is not None
    assert found.prompts == 2
    assert not found.significant()


def test_records_count_as_prompts_where_there_is_a_single_prompt() -> None:
    better: Values = {Case("a", wish, 20, str(i)): [1.0] for i in range(7) for wish in ("v", "w")}
    assert by_prompt(better) == {str(i): [1.0, 1.0] for i in range(7)}
    found = paired_difference(better, {case: [0.0] for case in better})
    assert found is not None
    assert found.prompts == 7
    assert found.significant()


def test_records_do_not_count_as_prompts_where_only_one_prompt_has_values_of_both() -> None:
    own: Values = {Case("a", "w", 20, str(i)): [1.0] for i in range(7)}
    other: Values = {Case(prompt, "w", 20, str(i)): [0.0] for prompt in ("a", "b") for i in range(7)}
    for found in (paired_difference(own, other), paired_difference(other, own)):
        assert found is not None
        assert found.prompts == 1


@pytest.mark.parametrize("prompts", [2, 7, 40])
def test_intervals_are_percentiles_over_draws_of_whole_prompts(prompts: int) -> None:
    rng = np.random.default_rng(1)
    clusters = {str(prompt): rng.normal(size=1 + prompt % 5).tolist() for prompt in range(prompts)}
    kept = list(clusters.values())
    drawn = np.random.default_rng(0).integers(prompts, size=(RESAMPLES, prompts))
    pooled = [np.concatenate([kept[i] for i in draw]) for draw in drawn]
    found = estimate(clusters)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(np.percentile([one.mean() for one in pooled], [2.5, 97.5]))
    assert median_interval(clusters) == pytest.approx(np.percentile([np.median(one) for one in pooled], [2.5, 97.5]))


def test_without_scipy_an_interval_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(SlalomError, match="bootstrap intervals need scipy"):
        estimate({"a": [1.0], "b": [2.0]})
