"""Rollouts give the LM's own text, whatever the batch, and say truthfully what the LM thinks of it."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.rollout import FREE, Limits, Resumed, _Rules, highest, penalise, rollout
from slalom.errors import SlalomError
from slalom.types import Prompt
from tests.conftest import SHAPES, tiny_lm
from tests.helpers import push_at, unsteered

CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.25}  # nats: bfloat16 has eight bits, and sums in another order differ
PROMPTS = ["the food", "a lovely day by the river", "we", "The chicken didn't cross the road"]


@pytest.fixture(scope="module", params=SHAPES)
def lm(request: pytest.FixtureRequest, dtype: torch.dtype) -> SteerableModel:
    """A tiny LM of every shape in every precision."""
    return tiny_lm(request.param, dtype=dtype)


@pytest.fixture(scope="module")
def llama(dtype: torch.dtype) -> SteerableModel:
    """A tiny LM of one shape in every precision."""
    return tiny_lm("llama-tied", dtype=dtype)


def test_without_penalty_a_rollout_is_what_generate_gives(lm: SteerableModel) -> None:
    for prompt in PROMPTS:
        out = unsteered(lm, [prompt], repetition_penalty=1.0)
        ids = lm.tokenizer(prompt, return_tensors="pt")
        banned = [[token] for token in lm.vocabulary.banned_fixed.nonzero()[:, 0].tolist()]
        expected = lm.model.generate(**ids, max_new_tokens=8, do_sample=False, bad_words_ids=banned, pad_token_id=0)
        assert out.draft.tokens[0].tolist() == expected[0, ids["input_ids"].shape[1] :].tolist()


def test_rows_of_different_prompts_in_one_batch_equal_the_same_rows_alone(lm: SteerableModel) -> None:
    together = unsteered(lm, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        alone = unsteered(lm, [prompt])
        assert together.draft.tokens[row].tolist() == alone.draft.tokens[0].tolist()
        assert torch.allclose(together.draft.log_probs[row], alone.draft.log_probs[0], atol=CLOSE[lm.dtype])


def test_rescoring_a_rollout_gives_back_its_log_probabilities(lm: SteerableModel) -> None:
    draft = unsteered(lm, PROMPTS).draft
    assert torch.allclose(lm.log_probs(draft), draft.log_probs, atol=CLOSE[lm.dtype])


def test_perplexity_is_the_exponential_of_the_mean_negative_log_probability(llama: SteerableModel) -> None:
    draft = unsteered(llama, PROMPTS).draft
    by_hand = [torch.exp(-row.mean()).item() for row in llama.log_probs(draft)]
    assert draft.perplexity.tolist() == pytest.approx(by_hand, rel=10 * CLOSE[llama.dtype])


def test_fixed_length_never_writes_specials_or_line_breaks(lm: SteerableModel) -> None:
    out = unsteered(lm, PROMPTS, length=20)
    assert not lm.vocabulary.banned_fixed[out.draft.tokens].any()
    assert not any("\n" in text for text in out.draft.texts)


def test_in_free_length_eos_ends_a_row_and_the_others_go_on(llama: SteerableModel) -> None:
    read = llama.read([llama.encode(prompt, 6) for prompt in PROMPTS])

    def end_two_rows(at: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bias, ends = torch.zeros_like(logits), {0: 2, 1: 0}
        for number, (row, i) in enumerate(zip(rows.tolist(), at.tolist(), strict=True)):
            bias[number, llama.vocabulary.eos[0]] = 1e4 if ends.get(row) == i else -1e4
        return torch.arange(len(rows)), bias

    out = rollout(llama, read, torch.arange(4), Limits(6, free=True), end_two_rows, top_k=3)
    assert out.draft.lengths.tolist() == [2, 0, 6, 6]
    assert out.draft.ended.tolist() == [True, True, False, False]
    assert out.draft.texts[1] == ""
    assert (out.draft.tokens[0, 2:] == llama.vocabulary.pad).all()
    assert (out.draft.log_probs[0, 3:] == 0).all()
    assert torch.allclose(llama.log_probs(out.draft), out.draft.log_probs, atol=CLOSE[llama.dtype])


def test_a_rollout_resumed_at_any_position_equals_one_from_the_start(lm: SteerableModel) -> None:
    read = lm.read([lm.encode(prompt, 6) for prompt in PROMPTS])
    places = torch.tensor([3, 0, 5, 2])
    push = push_at(places, 300)
    rows = torch.arange(4)
    first = rollout(lm, read, rows, Limits(6), top_k=3)
    whole = rollout(lm, read, rows, Limits(6), push, top_k=3)
    resumed = rollout(lm, read, rows, Limits(6), push, top_k=3, resumed=Resumed(first, places))
    assert resumed.draft.tokens.tolist() == whole.draft.tokens.tolist() != first.draft.tokens.tolist()
    assert resumed.candidates.tolist() == whole.candidates.tolist()
    assert torch.allclose(resumed.log_probs, whole.log_probs, atol=1e-5)
    again = rollout(lm, read, rows, Limits(6), top_k=3, resumed=Resumed(resumed, torch.zeros_like(places)))
    assert again.draft.tokens.tolist() == first.draft.tokens.tolist()


def test_candidates_start_with_the_token_itself_and_never_hold_specials(lm: SteerableModel) -> None:
    out = unsteered(lm, PROMPTS)
    assert (out.candidates[..., 0] == out.draft.tokens).all()
    assert not lm.vocabulary.never_candidates[out.candidates[..., 1:]].any()


def test_a_candidate_that_stands_there_already_is_marked(llama: SteerableModel) -> None:
    read = llama.read([llama.encode("the food", 4)])
    out = rollout(llama, read, torch.tensor([0]), Limits(4), top_k=6, extra=[[300, 301]])
    for column in range(out.candidates.shape[-1]):
        earlier = (out.candidates[..., :column] == out.candidates[..., column : column + 1]).any(-1)
        assert (out.repeated[..., column] == earlier).all()


def test_unused_rows_of_the_table_are_never_written() -> None:
    padded = tiny_lm("llama-tied", extra_rows=30)
    assert unsteered(padded, PROMPTS, length=20).draft.tokens.max() < len(padded.tokenizer)


def test_the_repetition_penalty_moves_seen_logits_down_whatever_their_sign() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    assert penalise(logits, torch.tensor([[0, 1]]), 2.0).tolist() == [[1.0, -4.0, 1.0]]
    assert penalise(logits, torch.tensor([[0, 1]]), 1.0).tolist() == logits.tolist()


@pytest.mark.parametrize("other", [2.0, 3.0], ids=["one penalty", "two penalties"])
def test_what_a_row_has_written_is_penalised_and_nothing_else(llama: SteerableModel, other: float) -> None:
    prompts = [Prompt("", ()), Prompt("", (), begun_ids=(7,)), Prompt("", ())]
    limits = [Limits(2, repetition_penalty=penalty) for penalty in (2.0, 2.0, other)]
    rules = _Rules.of(llama.vocabulary, limits, prompts)
    logits, rows = torch.ones(3, llama.vocabulary.size), torch.arange(3)
    tokens, places = torch.tensor([[0, 0], [9, 0], [9, 9]]), torch.tensor([0, 1, 1])
    seen = [row.nonzero()[:, 0].tolist() for row in rules.penalised(logits, rows, tokens, places) != 1]
    assert seen == [[], [7, 9], [9]]


def test_a_rollout_leaves_no_graph(lm: SteerableModel) -> None:
    out = unsteered(lm, PROMPTS)
    assert any(parameter.requires_grad for parameter in lm.model.parameters())
    assert not out.draft.log_probs.requires_grad
    assert not out.log_probs.requires_grad


def test_a_prompt_too_long_for_the_model_is_refused_in_a_sentence(llama: SteerableModel) -> None:
    with pytest.raises(SlalomError, match="reads at most 64"):
        llama.encode("food " * 60, 20)


def test_an_empty_prompt_is_refused_in_a_sentence(llama: SteerableModel) -> None:
    with pytest.raises(SlalomError, match="prompt is empty"):
        llama.encode("  ", 20)


def test_ending_a_text_is_charged_like_any_token(llama: SteerableModel) -> None:
    """Else nothing at all would be the most fluent text."""
    read = llama.read([llama.encode("the food", 6)])

    def end_at_once(at: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bias = torch.zeros_like(logits)
        bias[:, llama.vocabulary.eos[0]] = 1e4
        return rows, bias

    draft = rollout(llama, read, torch.tensor([0]), Limits(6, free=True), end_at_once).draft
    expected = -read.prefix.logits[0].log_softmax(-1)[llama.vocabulary.eos[0]]
    assert draft.perplexity.log().item() == pytest.approx(expected.item(), rel=1e-3)
    assert draft.perplexity.item() > 2


def test_a_row_that_is_not_written_again_keeps_its_end(llama: SteerableModel) -> None:
    read = llama.read([llama.encode(prompt, 6) for prompt in PROMPTS[:2]])
    rows, limits = torch.arange(2), Limits(6, free=True)
    ended = rollout(llama, read, rows, limits, push_at(torch.tensor([2, 3]), llama.vocabulary.eos[0]), top_k=3)
    again = rollout(llama, read, rows, limits, top_k=3, resumed=Resumed(ended, torch.tensor([6, 0])))
    assert again.draft.ended[0]
    assert again.draft.lengths[0] == 2
    assert again.draft.perplexity[0] == ended.draft.perplexity[0]


def test_a_row_that_may_end_with_a_sentence_does_and_the_others_go_on(llama: SteerableModel) -> None:
    """A sentence that ends before the least length ends nothing; without the rule a row goes on past any."""
    dot = llama.vocabulary.texts.index(".")
    forced = torch.full((3, 10), FREE)
    forced[:, 2], forced[:, 6] = dot, dot
    prompts = llama.read([llama.encode("the food", 10)])
    limits = [Limits(10, sentence_from=5), Limits(10, sentence_from=2), Limits(10)]
    draft = rollout(llama, prompts, torch.tensor([0, 0, 0]), limits, forced=forced).draft
    assert draft.lengths.tolist() == [7, 3, 10]
    assert not draft.ended.any()
    assert draft.texts[2].startswith(draft.texts[0])
    assert draft.texts[0].startswith(draft.texts[1])


@pytest.mark.parametrize(("size", "k"), [(49_152, 250), (49_159, 7), (400, 250), (5_000, 1), (100, 0)])
def test_the_highest_logits_are_those_that_topk_finds(size: int, k: int) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    logits[:, 1::3] = -torch.inf
    values, tokens = highest(logits, k)
    expected = logits.topk(k)
    assert values.equal(expected.values)
    assert tokens.equal(expected.indices)
