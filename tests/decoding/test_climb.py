"""Climb writes out the moves f and the LM like best, goes on from the best, and its shortcuts change nothing."""

from __future__ import annotations

import itertools

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Avoid, Keywords
from slalom.constraints.classifier import Classifier
from slalom.constraints.constraint import Constraint
from slalom.decoding.climb import Climb
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Problem
from slalom.decoding.scheduler import RowReport
from slalom.types import Draft
from tests.constraints.test_contract import table_classifier
from tests.helpers import decode, problem_of, unsteered
from tests.textbook import Textbook, textbook_climb

SMALL = Climb(top_k=10, looks=4, width=2)


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("sampler", [Climb(top_k=20), Climb(top_k=20, width=1), Climb(top_k=8, looks=3, width=2)])
def test_every_shortcut_gives_the_same_tokens_as_the_textbook(lm: SteerableModel, sampler: Climb, seed: int) -> None:
    constraint = table_classifier(lm)
    drafts: list[list[int]] = []

    def note(rows: list[RowReport]) -> None:
        drafts.append(rows[0].seen.draft.tokens[0].tolist())

    steps = 5
    most = 1 + (steps - 1) * sampler.width
    decode(problem_of(lm, ["the food was"], constraint), sampler, [seed], most, callbacks=(note,))
    book = Textbook(lm, constraint, lm.encode("the food was", 8), 8)
    assert drafts == textbook_climb(book, sampler, seed, steps)
    assert len({tuple(draft) for draft in drafts}) > 1


def test_with_seed_0_the_first_draft_is_the_lms_own_greedy_text(lm: SteerableModel, good: Classifier) -> None:
    prompts = ["the food", "a lovely day by the river"]
    out = lm.steer(prompts, good, steps=1, length=8)
    assert out.texts == unsteered(lm, prompts).draft.texts


def test_first_drafts_are_counted_as_they_are_written_one_with_seed_0_and_several_with_others(
    lm: SteerableModel, good: Classifier
) -> None:
    counts: list[list[int]] = []

    def note(rows: list[RowReport]) -> None:
        counts.append([row.drafts for row in rows])

    together = decode(problem_of(lm, ["the food", "we"], good), SMALL, [0, 7], steps=5, callbacks=(note,))
    assert counts == [[1, 2], [3, 4], [5, 6]]
    (alone,) = decode(problem_of(lm, ["we"], good), SMALL, [7], steps=5)
    assert together[1].best.draft.texts == alone.best.draft.texts


def test_with_another_seed_the_first_drafts_are_drawn(lm: SteerableModel, good: Classifier) -> None:
    out = lm.steer("the food", good, steps=1, length=8, samples=5, knobs={"width": 1, "start": 1.0})
    (greedy,) = unsteered(lm, ["the food"]).draft.texts
    assert out.texts[0] == greedy
    assert len(set(out.texts)) >= 4


def test_rows_that_begin_without_a_text_get_in_their_first_step_what_init_writes(
    lm: SteerableModel, good: Classifier
) -> None:
    """Alone, and beside a row that is under way."""
    requests = problem_of(lm, ["the food was", "we"], good).requests
    problem = Problem.of(lm, [one._replace(seed=seed) for seed, one in enumerate(requests)])
    rng = Rng.from_seeds([0, 1], lm.device)
    first = SMALL.init(problem, rng.fold(1))
    alone = SMALL.step(problem, SMALL.begin(problem), rng.fold(1))
    assert alone.latest.texts == first.latest.texts
    assert alone.drafts.tolist() == first.drafts.tolist() == [1, 2]
    assert torch.allclose(alone.usual_perplexity, first.usual_perplexity)

    going = SMALL.init(problem.select([0]), rng.select([0]).fold(1))
    columns = problem.prompts.prefix.mask.shape[1]
    both = going.join(SMALL.begin(problem.select([1])), (columns, columns))
    steps = torch.tensor([2, 1])
    after = SMALL.step(problem, both, rng.fold(steps))
    assert after.latest.texts[1] == first.latest.texts[1]
    assert after.latest.texts[0] == SMALL.step(problem.select([0]), going, rng.select([0]).fold(2)).latest.texts[0]
    assert after.drafts.tolist() == [2, 2]


def test_the_objective_never_falls(lm: SteerableModel, good: Classifier) -> None:
    problem, rng = problem_of(lm, ["the food was", "we"], good), Rng.from_seeds([0, 1], lm.device)
    state = SMALL.init(problem, rng.fold(1))
    values = [state.objective]
    for step in range(2, 12):
        state = SMALL.step(problem, state, rng.fold(step))
        values.append(state.objective)
        assert torch.allclose(state.objective, problem.objective(state.origin.draft), atol=1e-4)
    assert all((after >= before).all() for before, after in itertools.pairwise(values))
    assert (values[-1] > values[0]).all()


def test_where_fluency_does_not_count_only_the_ratio_of_the_weights_does(
    llama: SteerableModel, good: Classifier
) -> None:
    def text(wish: Constraint) -> str:
        return llama.steer("the food", wish, length=8, steps=12, tell=False, knobs={"fluency": 0.0}).texts[0]

    soup = Keywords(["soup"])
    assert text(6 * good + 3 * soup) == text(2 * good + soup)
    assert text(3 * good) == text(good)


def test_no_move_is_made_twice_from_one_draft(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, ["the food was", "we"], good)
    rng = Rng.from_seeds([0, 1], llama.device)
    state = SMALL.init(problem, rng.fold(1))
    state = state._replace(objective=torch.full_like(state.objective, torch.inf))  # so that the origin stays
    for step in range(2, 17):
        state = SMALL.step(problem, state, rng.fold(step))
    moved = state.origin.candidates != state.origin.draft.tokens[..., None]
    assert (state.tried & moved).sum((1, 2)).tolist() == [30, 30]


def test_a_move_is_looked_at_once_and_the_texts_are_those_of_looking_anew(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    prefix_score = good.prefix_score

    def counted(draft: Draft) -> torch.Tensor:
        nonlocal looks
        looks += len(draft.texts)
        return prefix_score(draft)

    monkeypatch.setattr(good, "prefix_score", counted)
    problem, rng = problem_of(llama, ["the food", "we"], good), Rng.from_seeds([3, 4], torch.device("cpu"))
    written, counts = [], []
    for forget in (False, True):
        looks, sampler = 0, Climb()
        state = sampler.init(problem, rng.fold(1))
        texts = []
        for step in range(2, 12):
            if forget:
                state = state._replace(lookahead_scores=torch.full_like(state.lookahead_scores, torch.nan))
            state = sampler.step(problem, state, rng.fold(step))
            texts.append(state.latest.texts)
        written.append(texts)
        counts.append(looks)
    assert written[0] == written[1]
    assert counts[0] < counts[1]


def test_words_the_constraint_names_are_put_in_whole(lm: SteerableModel) -> None:
    wish = Keywords(["river", "soup"], "all")
    ends = decode(problem_of(lm, ["the food was", "we"], wish, length=10), Climb(top_k=10), [0, 1], steps=60)
    assert all(end.best.verdict.satisfied for end in ends)


def test_a_move_never_completes_a_forbidden_word(llama: SteerableModel, good: Classifier) -> None:
    wish = good + Avoid(["food", "day"])

    def note(rows: list[RowReport]) -> None:
        for row in rows:
            assert wish.judge(row.seen.draft).satisfied is not None
            assert not any(word in row.seen.draft.texts[0].lower().split() for word in ("food", "day"))

    decode(problem_of(llama, ["the", "a lovely"], wish), Climb(top_k=20), [0, 1], steps=24, callbacks=(note,))
