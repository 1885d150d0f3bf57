"""The paper's classifier: its candidate scores are exact gradients, its relaxed score exact at the one-hots."""

from __future__ import annotations

import torch

from slalom.api import SteerableModel
from slalom.constraints.table_classifier import least_squares_projection, shared_vocabulary
from tests.conftest import byte_level_tokenizer, tiny_lm, word_piece_tokenizer
from tests.constraints.test_contract import ROWS, same_length, table_classifier
from tests.helpers import draft_of, one_hots


def test_at_one_hots_the_relaxed_score_is_the_score(llama: SteerableModel) -> None:
    constraint = table_classifier(llama)
    draft = draft_of(llama, same_length(llama, ROWS))
    assert torch.allclose(constraint.relaxed_score(one_hots(draft)), constraint.score(draft), atol=1e-4)


def test_reading_the_continuation_alone_leaves_the_prompt_out(llama: SteerableModel) -> None:
    constraint = table_classifier(llama, "continuation")
    draft = draft_of(llama, [("the food was", " good and warm"), ("we", " good and warm")])
    candidates = torch.arange(100, 150).expand(*draft.tokens.shape, -1)
    assert torch.allclose(*constraint.score(draft), atol=1e-5)
    assert torch.allclose(*constraint.candidate_scores(draft, candidates), atol=1e-5)
    assert torch.allclose(constraint.relaxed_score(one_hots(draft)), constraint.score(draft), atol=1e-4)


def test_candidate_scores_are_the_entries_of_the_gradient_at_the_one_hots(llama: SteerableModel) -> None:
    constraint = table_classifier(llama)
    draft = draft_of(llama, same_length(llama, ROWS))
    relaxed = one_hots(draft)
    mixtures = relaxed.mixtures.float().requires_grad_()
    (gradient,) = torch.autograd.grad(constraint.relaxed_score(relaxed._replace(mixtures=mixtures)).sum(), mixtures)
    candidates = torch.arange(llama.vocabulary.size).expand(*draft.tokens.shape, -1)
    assert torch.allclose(constraint.candidate_scores(draft, candidates), gradient, atol=1e-4)


def test_in_a_chat_the_answer_stands_alone(llama: SteerableModel) -> None:
    whole, alone = table_classifier(llama), table_classifier(llama, "continuation")
    draft = draft_of(llama, [("the food was", " good and warm")])
    chat = draft._replace(prompts=[draft.prompts[0]._replace(text="", asked="how was the food")])
    candidates = torch.arange(100, 150).expand(*draft.tokens.shape, -1)
    assert torch.allclose(whole.score(chat), alone.score(draft), atol=1e-6)
    assert torch.allclose(whole.candidate_scores(chat, candidates), alone.candidate_scores(draft, candidates))
    assert torch.allclose(whole.relaxed_score(one_hots(chat)), alone.relaxed_score(one_hots(draft)), atol=1e-6)


def test_of_a_continuation_beyond_the_window_the_end_is_read_and_the_rest_has_no_gradient() -> None:
    lm = tiny_lm("llama-tied", positions=256)
    constraint = table_classifier(lm)
    draft = draft_of(lm, [("we", " the soup was warm" * 30), ("the food was", " the rain was cold" * 30)])
    n = draft.tokens.shape[1]
    entries = constraint.candidate_scores(draft, torch.arange(100, 150).expand(2, n, -1))
    read = entries.norm(dim=-1) > 0
    assert n > 62
    assert read.tolist() == [[False] * (n - 62) + [True] * 62] * 2  # of 64 positions, two are the special tokens'
    assert torch.allclose(constraint.relaxed_score(one_hots(draft)), constraint.score(draft), atol=1e-4)


def test_a_prompt_beyond_the_window_is_cut_to_its_end() -> None:
    lm = tiny_lm("llama-tied", positions=256)
    constraint = table_classifier(lm)
    draft = draft_of(lm, [("rain " * 70 + "the food was", " good and warm"), ("the food was", " good and warm")])
    entries = constraint.candidate_scores(draft, torch.arange(100, 150).expand(*draft.tokens.shape, -1))
    assert len(draft.prompts[0].ids) > 62
    assert (entries.norm(dim=-1) > 0).all()
    assert torch.allclose(constraint.relaxed_score(one_hots(draft)), constraint.score(draft), atol=1e-4)


def test_the_shared_vocabulary_pairs_tokens_that_spell_the_same() -> None:
    lm, clf = byte_level_tokenizer(), word_piece_tokenizer()
    ours, theirs = shared_vocabulary(lm, clf)
    assert len(ours) > 20
    for own, other in zip(ours, theirs, strict=True):
        text, piece = lm.decode([own]), clf.convert_ids_to_tokens(other)
        assert piece == (text[1:].lower() if text.startswith(" ") else "##" + text.lower())


def test_the_projection_recovers_a_linear_map_between_tables() -> None:
    generator = torch.Generator().manual_seed(0)
    table, truth = torch.randn(50, 8, generator=generator), torch.randn(8, 5, generator=generator)
    found = least_squares_projection(table, table @ truth, list(range(40)), list(range(40)))
    assert torch.allclose(found, truth, atol=1e-4)
