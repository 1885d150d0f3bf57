"""Best of n draws texts and keeps the best by f and fluency together; a long text block by block."""

from __future__ import annotations

import pytest

from slalom.api import SteerableModel
from slalom.backbone.rollout import Limits
from slalom.constraints.classifier import Classifier
from slalom.decoding.best_of_n import BestOfN
from slalom.decoding.blocks import BLOCK
from slalom.decoding.none import own_text
from slalom.decoding.objective import Seen
from slalom.decoding.sampler import Problem, Request
from slalom.decoding.scheduler import RowReport, decode
from slalom.types import Draft


def seen_and_kept(lm: SteerableModel, good: Classifier, length: int) -> tuple[list[RowReport], str]:
    reports: list[RowReport] = []
    settings = BestOfN.presets(good)["default"]
    request = Request(lm.encode("the food was", length), 3, good, Limits(length), settings)
    (end,) = decode(lm, [request], (reports.extend,))
    assert end.best is not None
    return reports, end.best.draft.texts[0]


def test_of_eight_drawn_texts_the_satisfied_one_with_the_highest_objective_is_kept(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Seen] = []

    def watched(problem: Problem) -> Draft:
        draft = own_text(problem)
        drawn.extend(Seen(draft.select([row]), verdict) for row, verdict in enumerate(problem.judge(draft)))
        return draft

    monkeypatch.setattr("slalom.decoding.best_of_n.own_text", watched)
    reports, kept = seen_and_kept(llama, good, 8)
    assert [report.drafts for report in reports] == [4, 8]
    assert len({seen.draft.texts[0] for seen in drawn}) == 8
    objective = BestOfN.presets(good)["default"].objective

    def rank(seen: Seen) -> tuple[bool, float]:
        return seen.verdict.satisfied, objective.of(seen)

    assert kept == max(drawn, key=rank).draft.texts[0]


def test_a_long_text_is_chosen_block_by_block(llama: SteerableModel, good: Classifier) -> None:
    reports, kept = seen_and_kept(llama, good, 60)
    blocks = [[report for report in reports if report.block == number] for number in range(reports[-1].block + 1)]
    assert len(blocks) >= 2
    assert all(len(steps) == 2 for steps in blocks)
    assert all(int(report.seen.draft.lengths) <= BLOCK for report in blocks[0])
    best = [steps[-1].best.draft for steps in blocks]
    tokens = [token for draft in best for token in draft.tokens[0, : int(draft.lengths)].tolist()]
    assert llama.vocabulary.continuations([llama.encode("the food was", 60)], [tokens]) == [kept]


def test_the_blocks_are_drawn_by_random_numbers_of_their_own(llama: SteerableModel, good: Classifier) -> None:
    reports, _ = seen_and_kept(llama, good, 60)
    first = {report.block: report.seen.draft.tokens[0].tolist() for report in reversed(reports)}
    agreeing = sum(one == other for one, other in zip(first[0], first[1], strict=False))
    assert agreeing < BLOCK / 2
