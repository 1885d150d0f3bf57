"""A pass with a graph reads what the model reads, and leaves its parameters alone."""

from __future__ import annotations

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from slalom.api import SteerableModel
from slalom.backbone.engine import TransformersEngine
from slalom.backbone.graph import GraphPass, frozen, input_table, output_table
from tests.conftest import byte_level_tokenizer
from tests.helpers import draft_of

ROWS = [("a lovely day by the river with", " the"), ("we", " liked"), ("the food was", " good")]


def gemma() -> SteerableModel:
    """A tiny LM that puts a factor on its embeddings and looks back over a window only."""
    torch.manual_seed(0)
    tokenizer = byte_level_tokenizer()
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.3,
        eos_token_id=0,
        pad_token_id=0,
    )
    return SteerableModel(Gemma3ForCausalLM(config), tokenizer, "gemma")


def check_logits(lm: SteerableModel) -> None:
    """Prompts of different lengths, then tokens one by one or at once, give what a whole reading gives."""
    draft = draft_of(lm, [(prompt, " soup was warm and the") for prompt, _ in ROWS])
    prefix = lm.read(draft.prompts).prefix.select([0, 1, 2])
    embeddings = input_table(lm.model)[draft.tokens]
    with torch.no_grad():
        whole = GraphPass(lm.model, prefix).read(embeddings)
        run = GraphPass(lm.model, prefix)
        steps = torch.cat([run.read(embeddings[:, i : i + 1]) for i in range(embeddings.shape[1])], dim=1)
    expected = lm.log_probs(draft)
    for logits in (whole, steps):
        after = torch.cat([prefix.logits[:, None], logits[:, :-1]], dim=1).log_softmax(-1)
        assert torch.allclose(after.gather(-1, draft.tokens[..., None])[..., 0], expected, atol=1e-4)


def test_the_logits_are_the_models_own_under_left_padding(lm: SteerableModel) -> None:
    check_logits(lm)


def test_they_are_for_a_model_with_a_factor_on_its_embeddings() -> None:
    lm = gemma()
    assert not torch.allclose(input_table(lm.model), lm.vocabulary.embeddings)
    check_logits(lm)


def test_the_gradient_reaches_every_earlier_position(lm: SteerableModel) -> None:
    prefix = lm.read([lm.encode("we", 4)], TransformersEngine(lm.model)).prefix.select([0])
    embeddings = input_table(lm.model)[torch.tensor([[5, 6, 7]])].requires_grad_()
    run = GraphPass(lm.model, prefix)
    logits = torch.cat([run.read(embeddings[:, i : i + 1]) for i in range(3)], dim=1)
    (gradient,) = torch.autograd.grad(logits[:, 2, 3].sum(), embeddings)
    assert (gradient.norm(dim=-1) > 0).all()


def test_while_frozen_no_parameter_is_trainable_and_then_as_before(llama: SteerableModel) -> None:
    first = next(llama.model.parameters())
    first.requires_grad_(False)
    before = [parameter.requires_grad for parameter in llama.model.parameters()]
    with frozen(llama.model):
        assert not any(parameter.requires_grad for parameter in llama.model.parameters())
    assert [parameter.requires_grad for parameter in llama.model.parameters()] == before
    first.requires_grad_(True)


def test_a_model_stays_frozen_until_the_last_pass_that_needs_it_ends(llama: SteerableModel) -> None:
    one, other = frozen(llama.model), frozen(llama.model)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not any(parameter.requires_grad for parameter in llama.model.parameters())
    other.__exit__(None, None, None)
    assert all(parameter.requires_grad for parameter in llama.model.parameters())


def test_the_tables_are_those_of_input_and_output(lm: SteerableModel) -> None:
    tied = torch.equal(input_table(lm.model), output_table(lm.model))
    assert tied == lm.model.config.tie_word_embeddings
    assert torch.equal(input_table(lm.model), lm.vocabulary.embeddings)
