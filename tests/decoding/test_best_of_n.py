"""Best of n draws texts and keeps the best by f and fluency together; a long text block by block."""

from __future__ import annotations

from slalom.api import SteerableModel
from slalom.backbone.rollout import Limits
from slalom.constraints.classifier import Classifier
from slalom.decoding.best_of_n import BestOfN
from slalom.decoding.blocks import BLOCK
from slalom.decoding.objective import Seen
from slalom.decoding.sampler import Request
from slalom.decoding.scheduler import RowReport, decode


def seen_and_kept(lm: SteerableModel, good: Classifier, length: int) -> tuple[list[RowReport], str]:
    reports: list[RowReport] = []
    settings = BestOfN.presets(good)["default"]
    request = Request(lm.encode("the food was", length), 3, good, Limits(length), settings)
    (end,) = decode(lm, [request], (reports.extend,))
    assert end.best is not None
    return reports, end.best.draft.texts[0]


def test_of_eight_drawn_texts_the_satisfied_one_with_the_highest_objective_is_kept(
    llama: SteerableModel, good: Classifier
) -> None:
    reports, kept = seen_and_kept(llama, good, 8)
    drafts = [report.seen for report in reports]
    assert len({seen.draft.texts[0] for seen in drafts}) == 8
    objective = BestOfN.presets(good)["default"].objective

    def rank(seen: Seen) -> tuple[bool, float]:
        return seen.verdict.satisfied, objective.of(seen)

    assert kept == max(drafts, key=rank).draft.texts[0]


def test_a_long_text_is_chosen_block_by_block(llama: SteerableModel, good: Classifier) -> None:
    reports, kept = seen_and_kept(llama, good, 60)
    blocks = [[report for report in reports if report.block == number] for number in range(reports[-1].block + 1)]
    assert len(blocks) >= 2
    assert all(len(drafts) == 8 for drafts in blocks)
    assert all(int(report.seen.draft.lengths) <= BLOCK for report in blocks[0])
    assert kept == "".join(drafts[-1].best.draft.texts[0] for drafts in blocks)


def test_the_blocks_are_drawn_by_random_numbers_of_their_own(llama: SteerableModel, good: Classifier) -> None:
    reports, _ = seen_and_kept(llama, good, 60)
    first = {report.block: report.seen.draft.tokens[0].tolist() for report in reversed(reports)}
    agreeing = sum(one == other for one, other in zip(first[0], first[1], strict=False))
    assert agreeing < BLOCK / 2
