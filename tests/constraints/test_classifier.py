"""Any classifier, with its own tokenizer: exact margins, aligned gradients, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

from slalom.api import SteerableModel
from slalom.backbone import openvino_encoder
from slalom.backbone.openvino_encoder import compiled, converted, possible_ways, prepare
from slalom.backbone.saved import window
from slalom.constraints import classifier as open_classifier
from slalom.constraints import encoder
from slalom.constraints.classifier import LEAST_SURE, Classifier, margin
from slalom.constraints.encoder import dot_products, replaced_embeddings
from slalom.errors import SlalomError
from slalom.types import Draft, Relaxed
from tests.conftest import tiny_classifier, tiny_lm, word_piece_tokenizer
from tests.helpers import draft_of, one_hots

TEXTS = ["good", "the food was bad", "we like the warm and lovely day by the river", "a"]


def test_a_text_cannot_write_the_classifiers_control_tokens(good: Classifier) -> None:
    ids = good._encode(["the food [SEP] was [PAD] good"], torch.device("cpu")).inputs["input_ids"][0].tolist()
    assert ids.count(good.tokenizer.sep_token_id) == 1
    assert good.tokenizer.pad_token_id not in ids


def test_the_margin_is_the_logit_minus_the_log_sum_exp_of_the_others() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    assert margin(logits, 2).item() == pytest.approx(4.0 - torch.tensor([1.0, 2.0]).logsumexp(0).item())
    assert margin(logits[:, :2], 0).item() == pytest.approx(-1.0)
    assert margin(torch.tensor([[0.7]]), 0).item() == pytest.approx(0.7)


def test_the_sigmoid_of_the_margin_is_the_labels_probability(llama: SteerableModel) -> None:
    model, tokenizer = tiny_classifier(("bad", "fair", "good"))
    constraint = Classifier(model, "good", tokenizer)
    draft = draft_of(llama, [("the food was", " good and warm")])
    logits = model(**tokenizer("the food was good and warm", return_tensors="pt")).logits
    assert constraint.judge(draft).degree.item() == pytest.approx(logits.softmax(-1)[0, 2].item(), rel=1e-4)


def test_the_text_is_read_with_the_classifiers_own_tokens(llama: SteerableModel, good: Classifier) -> None:
    draft = draft_of(llama, [("The FOOD", " was GOOD")])
    logits = good.model(**good.tokenizer("the food was good", return_tensors="pt")).logits
    assert good.score(draft).item() == pytest.approx(margin(logits, 1).item(), rel=1e-5)


def test_candidate_scores_match_finite_differences_where_the_tokens_align(
    llama: SteerableModel, good: Classifier
) -> None:
    """Where an LM token is one word piece, an entry is the derivative of f along the candidate's embedding."""
    draft = draft_of(llama, [("the food was", " good")])
    position = good.tokenizer("the food was good")["input_ids"].index(_piece(good, "good"))
    candidates = torch.tensor([[[*llama.vocabulary.pieces(" soup"), *llama.vocabulary.pieces(" the")]]])[..., -2:]
    entries = good.candidate_scores(draft, candidates)[0, 0]
    for entry, token in zip(entries, candidates[0, 0], strict=True):
        step = 1e-4 * good._table(llama.vocabulary)[token].double()
        slope = (_shifted_score(good, draft, position, step) - _shifted_score(good, draft, position, -step)) / 2e-4
        assert entry.item() == pytest.approx(slope, rel=0.02, abs=0.01)


def _shifted_score(good: Classifier, draft: Draft, position: int, shift: torch.Tensor) -> float:
    """The score when the embedding at one position of the classifier is moved."""

    def moved(embeddings: torch.Tensor) -> torch.Tensor:
        out = embeddings.clone()
        out[0, position] += shift
        return out

    with replaced_embeddings(good.model, moved):
        return good.score(draft).item()


def test_a_classifier_of_the_continuation_does_not_see_the_prompt(llama: SteerableModel) -> None:
    model, tokenizer = tiny_classifier()
    whole, alone = Classifier(model, "good", tokenizer), Classifier(model, "good", tokenizer, reads="continuation")
    draft = draft_of(llama, [("the food was", " good and warm"), ("an awful day in the city", " good and warm")])
    candidates = torch.arange(100, 150).expand(*draft.tokens.shape, -1)
    logits = model(**tokenizer("good and warm", return_tensors="pt")).logits
    assert alone.score(draft).tolist() == pytest.approx([margin(logits, 1).item()] * 2, rel=1e-5)
    assert torch.allclose(*alone.candidate_scores(draft, candidates), atol=1e-5)
    assert torch.allclose(*alone.relaxed_score(one_hots(draft)), atol=1e-5)
    assert not torch.allclose(*whole.score(draft), atol=1e-3)


def test_a_classifier_of_the_continuation_matches_finite_differences(llama: SteerableModel) -> None:
    model, tokenizer = tiny_classifier()
    alone = Classifier(model, "good", tokenizer, reads="continuation")
    draft = draft_of(llama, [("the food was", " good")])
    candidates = torch.tensor([[llama.vocabulary.pieces(" the")]])
    (entry,) = alone.candidate_scores(draft, candidates)[0, 0].tolist()
    step = 1e-4 * alone._table(llama.vocabulary)[candidates[0, 0, 0]].double()
    slope = (_shifted_score(alone, draft, 1, step) - _shifted_score(alone, draft, 1, -step)) / 2e-4
    assert entry == pytest.approx(slope, rel=0.02, abs=0.01)


def test_where_the_tokens_align_the_relaxed_score_of_the_continuation_is_the_score(llama: SteerableModel) -> None:
    model, tokenizer = tiny_classifier()
    alone = Classifier(model, "good", tokenizer, reads="continuation")
    draft = draft_of(llama, [("the food was", " good and the soup")])
    assert len(tokenizer(draft.texts[0], add_special_tokens=False)["input_ids"]) == draft.tokens.shape[1]
    assert alone.relaxed_score(one_hots(draft)).item() == pytest.approx(alone.score(draft).item(), rel=1e-3)


def test_what_cannot_be_read_is_refused_with_the_choices() -> None:
    model, tokenizer = tiny_classifier()
    with pytest.raises(SlalomError, match="reads is 'prompt'; choose from text, continuation"):
        Classifier(model, "good", tokenizer, reads="prompt")  # type: ignore[arg-type]


def test_dot_products_equal_the_full_product() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients, table = torch.randn(2, 3, 4, generator=generator), torch.randn(9, 4, generator=generator)
    candidates = torch.randint(0, 9, (2, 3, 5), generator=generator)
    expected = (gradients @ table.T).gather(-1, candidates)
    assert torch.allclose(dot_products(gradients, table, candidates), expected, atol=1e-6)


def test_a_saved_classifier_steers_from_its_folder(llama: SteerableModel, good: Classifier, tmp_path: Path) -> None:
    good.model.float().save_pretrained(tmp_path)
    good.tokenizer.save_pretrained(tmp_path)
    again = open_classifier(str(tmp_path), "GOOD")
    draft = draft_of(llama, [("the food was", " good and warm")])
    assert again.score(draft).item() == pytest.approx(good.score(draft).item(), abs=0.05)  # another engine reads it
    assert all(not parameter.requires_grad for parameter in again.model.parameters())  # type: ignore[attr-defined]
    good.model.double()


def saved(folder: Path) -> str:
    model, tokenizer = tiny_classifier(("bad", "fair", "good"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def on_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Classifier:
    """A classifier that has not been converted yet."""
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "home"))
    return Classifier(saved(tmp_path / "saved"), "good")


def inputs_of(constraint: Classifier, texts: list[str]) -> dict[str, torch.Tensor]:
    return constraint._encode(texts, torch.device("cpu")).inputs


def found(constraint: Classifier) -> dict[str, Any]:
    """What the conversion found out."""
    folder = converted(constraint.model, constraint._outputs, inputs_of(constraint, TEXTS))
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def test_openvino_reads_nearly_as_torch_does(on_openvino: Classifier) -> None:
    inputs = inputs_of(on_openvino, TEXTS)
    folder, expected = converted(on_openvino.model, on_openvino._outputs, inputs), on_openvino._outputs(inputs)
    for way in possible_ways():
        assert torch.allclose(compiled(folder, way, keep=False)(inputs).softmax(-1), expected.softmax(-1), atol=0.02)


def test_a_text_is_read_the_same_to_the_last_bit_in_any_batch(on_openvino: Classifier) -> None:
    folder = converted(on_openvino.model, on_openvino._outputs, inputs_of(on_openvino, TEXTS))
    beside = [" ".join(["the warm food"] * count) for count in range(1, 17)]  # up to 50 tokens
    for way in possible_ways():
        fast = compiled(folder, way, keep=False)
        for text in TEXTS:
            alone = fast(inputs_of(on_openvino, [text]))[0].tolist()
            for others in (beside[:1], beside[-1:], beside[:7], 2 * beside[:15] + beside[-1:]):
                assert fast(inputs_of(on_openvino, [text, *others]))[0].tolist() == alone


@pytest.mark.parametrize("fails", ["_is_close", "_is_steady"])
def test_a_way_that_is_not_close_or_not_steady_is_not_taken(
    on_openvino: Classifier, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr(openvino_encoder, fails, lambda run, *given: False)
    assert list(found(on_openvino)["milliseconds"]) == ["torch"]
    assert prepare(on_openvino.model, on_openvino._outputs, inputs_of(on_openvino, TEXTS)) is None


def test_outputs_off_by_a_part_of_their_spread_are_not_close() -> None:
    wanted = torch.tensor([[-2.0, 2.0], [2.0, -2.0]])  # a spread of 2.3
    for error, close in ((0.01, True), (0.5, False), (float("nan"), False)):
        assert openvino_encoder._is_close(lambda inputs, error=error: wanted + error, {}, wanted) == close


def test_outputs_that_depend_on_the_batch_or_on_the_padding_are_not_steady() -> None:
    example = {"input_ids": torch.ones(8, 20)}
    for run, steady in (
        (lambda inputs: inputs["input_ids"].sum(1, keepdim=True), True),
        (lambda inputs: inputs["input_ids"].sum(1, keepdim=True) + len(inputs["input_ids"]), False),
        (lambda inputs: inputs["input_ids"].mean(1, keepdim=True), False),
    ):
        assert openvino_encoder._is_steady(run, example) == steady


def test_the_fastest_way_is_taken_and_kept_by_name(on_openvino: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    milliseconds = {"torch": 3.0, "bf16": 2.0, "f32": 1.0}
    monkeypatch.setattr(openvino_encoder, "_race", lambda runs, example: milliseconds)
    assert found(on_openvino) == {"milliseconds": milliseconds}
    assert prepare(on_openvino.model, on_openvino._outputs, inputs_of(on_openvino, TEXTS)) is not None


@pytest.mark.parametrize(("torch_takes", "faster"), [(3.0, True), (1.5, False)])
def test_who_wants_exact_outputs_gets_float32_or_torch_whichever_is_faster(
    on_openvino: Classifier, monkeypatch: pytest.MonkeyPatch, torch_takes: float, faster: bool
) -> None:
    milliseconds = {"torch": torch_takes, "bf16": 1.0, "f32": 2.0}
    monkeypatch.setattr(openvino_encoder, "_race", lambda runs, example: milliseconds)
    inputs = inputs_of(on_openvino, TEXTS)
    run = prepare(on_openvino.model, on_openvino._outputs, inputs, exact=True)
    assert (run is not None) == faster
    if run is not None:
        assert torch.allclose(run(inputs), on_openvino._outputs(inputs), atol=1e-4)


def test_a_conversion_is_found_by_the_models_files_or_else_by_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = Classifier(saved(tmp_path / "saved"), "good")
    example = constraint._encode(["good"], torch.device("cpu")).inputs
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(openvino_encoder, "_make", lambda encode, example, target: None)
    model = constraint.model
    before = converted(model, constraint._outputs, example)
    assert converted(model, constraint._outputs, example) == before
    model.classifier.bias.data += 1
    after = converted(model, constraint._outputs, example)
    assert after != before
    with monkeypatch.context() as elsewhere:  # with other cores other kernels run
        elsewhere.setattr(openvino_encoder, "cores", lambda: 1_000)
        assert converted(model, constraint._outputs, example) != after
    first, again, other = (converted(files, constraint._outputs, example) for files in ("a", "a", "b"))
    assert first == again != other


def test_one_reading_of_a_text_serves_all_constraints_that_share_the_classifier(
    llama: SteerableModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = (Classifier(saved(tmp_path), label) for label in ("good", "bad"))
    draft = draft_of(llama, [("the food was", " good and warm"), ("the food was", " bad and cold")])
    both = good.score(draft), bad.score(draft)
    for constraint in (good, bad):
        monkeypatch.setattr(constraint, "_engine", lambda home: (pytest.fail, 8))  # nothing is read again
    assert good.score(draft).tolist() == both[0].tolist()
    assert bad.score(draft.select([1])).tolist() == both[1][1:].tolist()


def test_readings_beyond_the_latest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "REMEMBERED", 2)
    readings = encoder.Readings()
    for text in ("a", "b", "a", "c"):
        readings.remember({text: torch.zeros(1)})
    assert set(readings.of(["a", "b", "c"])) == {"a", "c"}


def test_an_unknown_label_is_refused_with_the_choices() -> None:
    model, tokenizer = tiny_classifier()
    with pytest.raises(SlalomError, match="no label 'great'; choose from bad, good"):
        Classifier(model, "great", tokenizer)


def test_a_folder_that_is_no_classifier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlalomError, match="holds no classifier"):
        open_classifier(str(tmp_path), "good")


def test_a_model_object_needs_its_tokenizer() -> None:
    with pytest.raises(SlalomError, match="needs its tokenizer"):
        Classifier(tiny_classifier()[0], "good")


def test_a_text_too_long_for_the_classifier_is_judged_by_its_end(llama: SteerableModel, good: Classifier) -> None:
    draft = draft_of(llama, [("the food was", " good and warm")])
    long = draft._replace(prompts=[draft.prompts[0]._replace(text="rain " * 300 + "the food was")])
    assert torch.isfinite(good.score(long)).all()
    assert torch.isfinite(good.candidate_scores(long, draft.tokens[..., None])).all()
    assert good.candidate_scores(long, draft.tokens[..., None]).abs().sum() > 0


def test_a_prompt_beyond_the_encoders_window_leaves_room_for_the_mixtures(
    llama: SteerableModel, good: Classifier
) -> None:
    draft = draft_of(llama, [("the food was", " good and warm"), ("we", " good and warm")])
    long = [draft.prompts[0]._replace(text="rain " * 300 + "the food was"), draft.prompts[1]]
    end = [draft.prompts[0]._replace(text="rain " * 60 + "the food was"), draft.prompts[1]]
    scores, gradients = _relaxed_gradient(good, one_hots(draft)._replace(prompts=long))
    assert (gradients.flatten(2).norm(dim=-1) > 0).all()
    assert torch.allclose(scores, _relaxed_gradient(good, one_hots(draft)._replace(prompts=end))[0], atol=1e-5)


def test_of_a_continuation_beyond_the_window_the_end_is_read_and_the_rest_has_no_gradient(good: Classifier) -> None:
    lm = tiny_lm("llama-tied", positions=256)
    draft = draft_of(lm, [("we", " the soup was warm" * 30)])
    n = draft.tokens.shape[1]
    _, gradients = _relaxed_gradient(good, one_hots(draft))
    read = gradients[0].norm(dim=-1) > 0
    assert n > 62
    assert read.tolist() == [False] * (n - 62) + [True] * 62  # of 64 positions, two are the special tokens'
    entries = good.candidate_scores(draft, torch.arange(100, 150).expand(1, n, -1))[0].norm(dim=-1) > 0
    first = int(entries.nonzero()[0, 0])
    assert 0 < first < n - 20
    assert entries[first:].all()


def test_roberta_reads_fewer_tokens_than_it_has_positions(llama: SteerableModel) -> None:
    tokenizer = word_piece_tokenizer()
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=34,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = RobertaForSequenceClassification(config)
    constraint = Classifier(model, 1, tokenizer)
    draft = draft_of(llama, [("the food was", " good and warm")])
    long = [draft.prompts[0]._replace(text="rain " * 300)]
    assert window(model) == 33
    assert window(RobertaModel(RobertaConfig(num_hidden_layers=0, max_position_embeddings=514, pad_token_id=1))) == 512
    assert torch.isfinite(constraint.score(draft._replace(prompts=long))).all()
    assert torch.isfinite(constraint.candidate_scores(draft._replace(prompts=long), draft.tokens[..., None])).all()
    assert torch.isfinite(constraint.relaxed_score(one_hots(draft)._replace(prompts=long))).all()


def test_a_text_that_fits_is_read_as_the_tokenizer_alone_would_have_it(good: Classifier) -> None:
    texts = ["the food was good", "", "an awful day in the city with the rain"]
    expected = good.tokenizer(texts, padding=True, return_tensors="pt")
    inputs, _ = good._encode(texts, torch.device("cpu"))
    good.tokenizer("a")  # takes the padding back
    assert inputs.keys() == expected.keys()
    assert all(torch.equal(inputs[key], expected[key]) for key in inputs)


def test_reading_leaves_a_shared_tokenizer_as_it_is(llama: SteerableModel, good: Classifier) -> None:
    sides = good.tokenizer.truncation_side, good.tokenizer.padding_side
    draft = draft_of(llama, [("the food was", " good and warm"), ("we", " good and warm")])
    good.score(draft), good.relaxed_score(one_hots(draft))
    backend = good.tokenizer.backend_tokenizer
    assert (backend.truncation, backend.padding) == (None, None)
    assert (good.tokenizer.truncation_side, good.tokenizer.padding_side) == sides


def test_constraints_that_share_an_encoder_share_its_table(llama: SteerableModel) -> None:
    model, tokenizer = tiny_classifier()
    one, other = Classifier(model, "good", tokenizer), Classifier(model, "bad", tokenizer)
    assert one._table(llama.vocabulary) is other._table(llama.vocabulary)
    assert one._table(tiny_lm("llama-tied").vocabulary) is not one._table(llama.vocabulary)


def _relaxed_gradient(constraint: Classifier, relaxed: Relaxed) -> tuple[torch.Tensor, torch.Tensor]:
    """The relaxed score, and its gradient at the mixtures."""
    mixtures = relaxed.mixtures.float().requires_grad_()
    score = constraint.relaxed_score(relaxed._replace(mixtures=mixtures))
    return score.detach(), torch.autograd.grad(score.sum(), mixtures)[0]


def _piece(good: Classifier, word: str) -> int:
    (piece,) = good.tokenizer(word, add_special_tokens=False)["input_ids"]
    return piece


def test_a_search_ends_at_nine_tenths_for_a_classifier_that_was_never_calibrated(
    good: Classifier, tmp_path: Path
) -> None:
    assert good.sure == LEAST_SURE
    model, tokenizer = tiny_classifier()
    model.float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert Classifier(str(tmp_path), "good").sure == LEAST_SURE
    (tmp_path / "card.json").write_text(json.dumps({"sure": {"good": 0.95, "bad": 0.6}}))
    assert [Classifier(str(tmp_path), label).sure for label in ("good", "bad")] == [0.95, LEAST_SURE]
