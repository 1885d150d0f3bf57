"""Keywords: whole words only, however the LM spells them; closed-form gradients."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import EndsWithSentence, Keywords
from slalom.constraints.constraint import SCALE
from slalom.constraints.keywords import Spelling
from slalom.errors import SlalomError
from tests.helpers import draft_of, one_hots, problem_of


def found(lm: SteerableModel, words: list[str], text: str, mode: str = "any", prompt: str = "we") -> bool:
    return bool(Keywords(words, mode).satisfied(draft_of(lm, [(prompt, text)])))  # type: ignore[arg-type]


def spelt(lm: SteerableModel, word: str) -> list[Spelling]:
    return Keywords([word]).spellings(lm.vocabulary)


def test_satisfied_means_the_word_stands_in_the_continuation_as_a_word(llama: SteerableModel) -> None:
    assert found(llama, ["soup"], " liked soup.")
    assert found(llama, ["soup"], " liked SOUP")
    assert found(llama, ["Soup"], ' said "soup"!')
    assert not found(llama, ["soup"], " liked soups")
    assert not found(llama, ["rain"], " were trained")
    assert not found(llama, ["soup"], " liked it", prompt="we had soup and")
    assert not found(llama, ["ten"], "ten", prompt="kit")


def test_all_asks_for_every_word_and_any_for_one(llama: SteerableModel) -> None:
    assert found(llama, ["soup", "kayak"], " liked the kayak")
    assert not found(llama, ["soup", "kayak"], " liked the kayak", "all")
    assert found(llama, ["soup", "kayak"], " ate soup by the kayak", "all")


def test_the_score_is_full_exactly_when_satisfied(llama: SteerableModel) -> None:
    for mode in ("any", "all"):
        constraint = Keywords(["soup", "river bank"], mode)  # type: ignore[arg-type]
        for text in (" ate soup", " had soups", " by the river bank", " soup at the river bank", " river", " nothing"):
            draft = draft_of(llama, [("we", text)])
            assert (constraint.score(draft).item() >= 0.999 * SCALE) == bool(constraint.satisfied(draft))


def test_candidate_scores_are_the_entries_of_the_gradient_at_the_one_hots(llama: SteerableModel) -> None:
    for constraint in (Keywords(["soup", "sunrise"]), Keywords(["soup", "lovely", "kayak"], "all")):
        for text in (" ate the cold rain", " had soup and the", " a sunr in the city"):
            draft = draft_of(llama, [("we", text)])
            relaxed = one_hots(draft)
            mixtures = relaxed.mixtures.float().requires_grad_()
            score = constraint.relaxed_score(relaxed._replace(mixtures=mixtures))
            (gradient,) = torch.autograd.grad(score.sum(), mixtures)
            candidates = torch.arange(llama.vocabulary.size).expand(*draft.tokens.shape, -1)
            assert torch.allclose(constraint.candidate_scores(draft, candidates), gradient, atol=1e-5)


def test_putting_a_one_token_word_in_changes_the_score_by_exactly_what_its_entry_says(llama: SteerableModel) -> None:
    constraint = Keywords(["the"])
    draft = draft_of(llama, [("we", " ate cold rain")])
    (token,) = llama.vocabulary.pieces(" the")
    gain = constraint.candidate_scores(draft, torch.full((*draft.tokens.shape, 1), token))[..., 0]
    for position in range(draft.tokens.shape[1]):
        tokens = draft.tokens.clone()
        tokens[0, position] = token
        changed = llama.draft(draft.prompts, tokens, draft.lengths, draft.log_probs)
        if constraint.satisfied(changed):
            assert (constraint.score(changed) - constraint.score(draft)).item() == pytest.approx(
                gain[0, position].item()
            )


def test_a_later_piece_of_a_word_only_counts_after_the_earlier_ones(llama: SteerableModel) -> None:
    constraint = Keywords(["sunrise"])
    spelling = next(s for s in constraint.spellings(llama.vocabulary) if len(s.tokens) > 1)
    draft = draft_of(llama, [("we", " ate the cold rain")])
    last = torch.full((*draft.tokens.shape, 1), spelling.tokens[-1])
    assert (constraint.candidate_scores(draft, last) == 0).all()


def test_words_are_spelt_with_and_without_a_space_and_capitalised(llama: SteerableModel) -> None:
    spellings = {llama.vocabulary.decode([list(s.tokens)])[0] for s in Keywords(["soup"]).spellings(llama.vocabulary)}
    assert spellings == {" soup", "soup", " Soup", "Soup"}


def test_spellings_are_grouped_by_what_one_of_must_be_written(llama: SteerableModel) -> None:
    soup, kayak = ([spelling.tokens for spelling in spelt(llama, word)] for word in ("soup", "kayak"))
    groups = [Keywords(["soup", "kayak"], mode).spelling_groups(llama.vocabulary) for mode in ("any", "all")]
    assert groups == [[soup + kayak], [soup, kayak]]
    both = 2 * Keywords(["soup"]) + EndsWithSentence() + Keywords(["kayak"])
    assert both.spelling_groups(llama.vocabulary) == [soup, kayak]


def test_a_word_that_cannot_be_written_is_refused(llama: SteerableModel) -> None:
    with pytest.raises(SlalomError, match="cannot be written"):
        Keywords(["two\nlines"]).check(llama.vocabulary, 20)
    with pytest.raises(SlalomError, match=r"takes .* tokens but the length is 2"):
        Keywords(["extraordinarily"]).check(llama.vocabulary, 2)
    with pytest.raises(SlalomError, match="no keywords given"):
        Keywords([" "])
    with pytest.raises(SlalomError, match="unknown keyword mode 'some'; choose from any, all"):
        Keywords(["soup"], "some")  # type: ignore[arg-type]


def test_with_one_spelling_a_word_is_written_as_after_a_space_and_in_no_other_pieces(llama: SteerableModel) -> None:
    words = Keywords(["soup", "sunrise"])
    usual = words.one_spelling()
    texts = [llama.vocabulary.decode([list(spelling.tokens)])[0] for spelling in usual.spellings(llama.vocabulary)]
    assert texts == [" soup", " sunrise"]
    assert usual is words.one_spelling()
    assert usual.one_spelling() is usual
    draft = draft_of(llama, [("we", " liked the Soup")])
    assert usual.satisfied(draft).all()  # however it is spelt, a word that stands there counts
    assert usual.score(draft).tolist() == words.score(draft).tolist()


def test_gradients_that_samplers_follow_lead_to_the_usual_spelling_alone(llama: SteerableModel) -> None:
    problem = problem_of(llama, ["we"], Keywords(["soup"]) + Keywords(["food"]))
    draft = draft_of(llama, [("we", " ate the cold rain")])
    candidates = torch.arange(llama.vocabulary.size).expand(*draft.tokens.shape, -1)
    led = problem.candidate_scores(draft, candidates).nonzero()[:, -1].unique().tolist()
    (soup,), (food,) = (llama.vocabulary.pieces(text) for text in (" soup", " food"))
    assert led == sorted([soup, food])
    assert problem.constraint.wanted(llama.vocabulary) == [soup, food]
