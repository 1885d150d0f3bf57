"""What every constraint must fulfil. A new constraint joins by one line in `CONSTRAINTS`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Avoid, Constraint, Custom, EndsWithSentence, Keywords, Length, Regex, Similar, Topic
from slalom.constraints.classifier import Classifier
from slalom.constraints.encoder import Reads
from slalom.constraints.table_classifier import TableClassifier, TableEncoder
from tests.conftest import tiny_classifier
from tests.helpers import draft_of, one_hots

ROWS = [
    ("the food was", " good and warm soup"),
    ("a day in the", " cold and awful city"),
    ("we", " liked the rain, the"),
]


def table_classifier(lm: SteerableModel, reads: Reads = "text") -> TableClassifier:
    """A tiny classifier that reads the LM's table, without a folder to load it from."""
    model, tokenizer = tiny_classifier()
    projection = torch.randn(lm.vocabulary.embeddings.shape[1], 16, generator=torch.Generator().manual_seed(2))
    constraint = TableClassifier.__new__(TableClassifier)
    constraint.encoder = TableEncoder(model.float(), tokenizer, projection).eval().requires_grad_(False)
    constraint.label, constraint.lm, constraint.name, constraint.reads = 1, lm.name, "classifier:good", reads
    return constraint


def text_classifier(lm: SteerableModel, reads: Reads = "text") -> Classifier:
    """A tiny classifier with its own tokenizer."""
    model, tokenizer = tiny_classifier()
    return Classifier(model, "good", tokenizer, reads=reads)


def similar(lm: SteerableModel, text: str = "the soup was warm", least: float = 0.5, reads: Reads = "text") -> Similar:
    """Likeness by the body of the tiny classifier."""
    model, tokenizer = tiny_classifier()
    return Similar(text, least, model.bert, tokenizer, reads)


CONSTRAINTS: dict[str, Callable[[SteerableModel], Constraint]] = {
    "classifier": text_classifier,
    "table-classifier": table_classifier,
    "classifier-of-the-continuation": lambda lm: text_classifier(lm, "continuation"),
    "table-classifier-of-the-continuation": lambda lm: table_classifier(lm, "continuation"),
    "similar": similar,
    "keywords-any": lambda lm: Keywords(["soup", "kayak"]),
    "keywords-all": lambda lm: Keywords(["soup", "kayak", "sunrise"], "all"),
    "topic": lambda lm: Topic(["soup", "the", "gum"]),
    "avoid": lambda lm: Avoid(["rain", "warm"]),
    "custom": lambda lm: Custom(lambda prompt, text: text.count("o"), "vowels", satisfied_at=2),
    "regex": lambda lm: Regex("w.rm|rain"),
    "ends-with-sentence": lambda lm: EndsWithSentence(),
    "length": lambda lm: Length(2, 4),
    "sum": lambda lm: text_classifier(lm) + 0.5 * Keywords(["soup"]),
}


@pytest.fixture(params=CONSTRAINTS)
def constraint(request: pytest.FixtureRequest, llama: SteerableModel) -> Constraint:
    return CONSTRAINTS[request.param](llama)


def same_length(lm: SteerableModel, rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    shortest = min(len(lm.vocabulary.pieces(text)) for _, text in rows)
    cut = [lm.vocabulary.decode([lm.vocabulary.pieces(text)[:shortest]])[0] for _, text in rows]
    return [(prompt, text) for (prompt, _), text in zip(rows, cut, strict=True)]


def test_scores_are_one_number_a_row_and_do_not_depend_on_the_batch(
    llama: SteerableModel, constraint: Constraint
) -> None:
    draft = draft_of(llama, same_length(llama, ROWS))
    together = constraint.score(draft)
    alone = torch.cat([constraint.score(draft.select([row])) for row in range(3)])
    assert together.shape == (3,)
    assert torch.allclose(together, alone, atol=1e-4)


def test_candidate_scores_have_the_candidates_shape_and_do_not_depend_on_the_batch(
    llama: SteerableModel, constraint: Constraint
) -> None:
    draft = draft_of(llama, same_length(llama, ROWS))
    candidates = torch.randint(50, 350, (*draft.tokens.shape, 7), generator=torch.Generator().manual_seed(0))
    together = constraint.candidate_scores(draft, candidates)
    alone = [constraint.candidate_scores(draft.select([row]), candidates[row : row + 1]) for row in range(3)]
    assert together.shape == candidates.shape
    assert torch.allclose(together.float(), torch.cat(alone).float(), atol=1e-4)
    assert not together.requires_grad


def test_the_relaxed_score_is_differentiable_in_the_mixtures(llama: SteerableModel, constraint: Constraint) -> None:
    relaxed = one_hots(draft_of(llama, same_length(llama, ROWS)))
    mixtures = (0.9 * relaxed.mixtures + 0.1 / relaxed.mixtures.shape[-1]).float().requires_grad_()
    score = constraint.relaxed_score(relaxed._replace(mixtures=mixtures))
    (gradient,) = torch.autograd.grad(score.sum(), mixtures)
    noise = torch.randn(mixtures.shape, generator=torch.Generator().manual_seed(3)) / 400
    direction, step = gradient / gradient.norm().clamp(min=1e-9) + noise, 0.002
    ahead, behind = (
        constraint.relaxed_score(relaxed._replace(mixtures=mixtures.detach() + way * direction)).sum()
        for way in (step, -step)
    )
    slope = (ahead - behind).item() / (2 * step)
    assert score.shape == (3,)
    assert slope == pytest.approx((gradient * direction).sum().item(), rel=0.05)


def test_an_outlook_is_one_number_a_row(llama: SteerableModel, constraint: Constraint) -> None:
    draft = draft_of(llama, same_length(llama, ROWS))
    assert constraint.prefix_score(draft).shape == (3,)
    assert torch.isfinite(constraint.prefix_score(draft)).all()


def test_a_judgement_agrees_with_the_single_methods(llama: SteerableModel, constraint: Constraint) -> None:
    draft = draft_of(llama, same_length(llama, ROWS))
    judged = constraint.judge(draft)
    assert torch.allclose(judged.score, constraint.score(draft), atol=1e-5)
    assert (judged.satisfied == constraint.satisfied(draft)).all()
    assert ((judged.degree >= 0) & (judged.degree <= 1)).all()
    assert [part.name for part in judged.parts] == [part.name for _, part in constraint.terms()]
    verdicts = judged.verdicts()
    assert [one.score for one in verdicts] == judged.score.tolist()
    assert [one.satisfied for one in verdicts] == judged.satisfied.tolist()


def test_a_row_that_ended_early_is_judged_by_what_it_says(llama: SteerableModel, constraint: Constraint) -> None:
    draft = draft_of(llama, same_length(llama, ROWS))
    lengths = torch.tensor([3, 0, draft.tokens.shape[1]])
    short = llama.draft(draft.prompts, draft.tokens, lengths, draft.log_probs)
    scores = constraint.candidate_scores(short, short.tokens[..., None])
    assert torch.isfinite(constraint.score(short)).all()
    assert (scores[1] == 0).all()
    assert (scores[0, 3:] == 0).all()


def test_sums_score_as_their_parts_in_either_order(llama: SteerableModel) -> None:
    a, b = text_classifier(llama), Keywords(["soup", "rain"])
    draft = draft_of(llama, same_length(llama, ROWS))
    candidates = draft.tokens[..., None]
    for left, right in ((a + b, b + a), (a + 0.5 * b, 0.5 * b + a), (2 * a, a * 2), (2 * (a + b), a * 2 + b * 2)):
        assert torch.allclose(left.score(draft), right.score(draft), atol=1e-6)
        assert torch.allclose(
            left.candidate_scores(draft, candidates), right.candidate_scores(draft, candidates), atol=1e-6
        )
    assert torch.allclose((a + 0.5 * b).score(draft), a.score(draft) + 0.5 * b.score(draft), atol=1e-6)
    assert torch.allclose(
        (a + 0.5 * b).prefix_score(draft), a.prefix_score(draft) + 0.5 * b.prefix_score(draft), atol=1e-6
    )
    assert (a + 0.5 * b).name == "classifier:good + 0.5 * keywords:any(soup, rain)"


def test_the_degree_of_a_sum_is_that_of_its_least_satisfied_part(llama: SteerableModel) -> None:
    a, b = text_classifier(llama), Keywords(["soup"])
    draft = draft_of(llama, same_length(llama, ROWS))
    assert torch.equal((a + b).judge(draft).degree, torch.minimum(a.judge(draft).degree, b.judge(draft).degree))


def test_what_a_draft_lacks_is_every_wanted_token_until_it_is_there(llama: SteerableModel) -> None:
    with_soup, without = draft_of(llama, ROWS[:1]), draft_of(llama, ROWS[1:2])
    either, every = Keywords(["soup", "rain"]), Keywords(["soup", "rain"], "all")
    soup = [i for i, token in enumerate(every.wanted(llama.vocabulary)) if "soup" in llama.vocabulary.texts[token]]
    assert not either.missing(with_soup).any()
    assert either.missing(without).all()
    assert soup
    assert not every.missing(with_soup)[0, soup].any()
    assert every.missing(with_soup).any()
    assert every.missing(without).all()


def test_a_part_that_has_its_word_does_not_ask_for_it_again(llama: SteerableModel) -> None:
    words, ending = Keywords(["soup"]), EndsWithSentence()
    missing = (words + ending).missing(draft_of(llama, ROWS[:1]))
    first = len(words.wanted(llama.vocabulary))
    assert not missing[0, :first].any()
    assert missing[0, first:].all()
    assert (words + ending).missing(draft_of(llama, ROWS[1:2])).all()
