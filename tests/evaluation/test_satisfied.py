"""What a satisfied text costs: unsatisfied ones cost their time and count for nothing."""

from __future__ import annotations

import pytest

from slalom.api import SteerableModel
from slalom.constraints import Keywords
from slalom.evaluation import satisfied
from slalom.evaluation.satisfied import BOTH, Cost, Variant, satisfied_over_generate, satisfied_variants


def test_the_mean_is_a_satisfied_texts_and_the_median_a_batchs() -> None:
    cost = Cost(seconds=[2.0, 4.0, 9.0], plain=[1.0, 1.0, 1.0], drafts=[4, 4, 40], satisfied=[True, True, False])
    found = cost.figures()
    assert found["median"] == 4.0
    assert found["mean"] == pytest.approx(5 * 3 / 2)
    assert (found["n"], found["satisfied"], found["drafts"]) == (3, 0.667, 16.0)


def test_the_mean_is_missing_where_nothing_is_satisfied() -> None:
    assert "mean" not in Cost([1.0], [1.0], [1], [False]).figures()


def test_every_way_is_measured_for_every_wish_and_for_all_together(llama: SteerableModel) -> None:
    wishes = {word: Keywords([word]) for word in ("soup", "rain")}
    variants = (Variant("climb", {"steps": 8, "tell": False}), Variant("plain", {"sampler": "none", "tell": False}))
    found = satisfied_over_generate(llama, wishes, variants, 2, 3, lambda line: None)
    assert list(found) == ["climb", "plain"]
    assert list(found["climb"]) == list(found["plain"]) == ["soup", "rain", BOTH]
    assert [rows["n"] for rows in found["climb"].values()] == [3, 3, 6]
    assert found["plain"]["soup"]["drafts"] == 1.0
    assert found["climb"]["soup"]["satisfied"] == 1.0


@pytest.mark.parametrize(("peers", "batch", "bolt"), [(3, 1, 3), (3, 20, 20), (0, 20, None)])
def test_bolt_gets_few_prompts_but_a_whole_batch(
    peers: int, batch: int, bolt: int | None, llama: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, int] = {}

    def note(
        lm: object, wishes: object, variants: tuple[Variant, ...], batch: int, prompts: int, log: object
    ) -> dict[str, int]:
        asked.update((variant.name, prompts) for variant in variants)
        return {}

    monkeypatch.setattr(satisfied, "satisfied_over_generate", note)
    monkeypatch.setattr(satisfied, "Sentiment", lambda label: Keywords([label]))
    satisfied_variants(llama, batch, 30, peers, {"told": "auto"}, False, lambda line: None)
    assert {name for name, count in asked.items() if count == 30} == {"climb, told", "best-of-8, told"}
    assert asked.get("bolt, told") == asked.get("bolt, untold") == bolt
