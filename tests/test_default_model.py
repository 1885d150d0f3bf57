"""The real default model and the shipped classifier, end to end."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import slalom
from slalom.backbone.openvino_encoder import compiled, converted, possible_ways
from slalom.constraints.encoder import EXAMPLES
from slalom.constraints.loading import SHIPPED, card
from tests.helpers import draft_of

pytestmark = pytest.mark.real
ROOT = Path(__file__).parent.parent


def test_a_told_prompt_is_steered_both_ways_and_stays_fluent(default_lm: slalom.SteerableModel) -> None:
    texts = set()
    for label in ("positive", "negative"):
        wish = slalom.Sentiment(label)
        (row,) = default_lm.steer("The noodles", wish, compare=True, steps=20).rows
        assert row.constraints[0].probability > wish.sure
        assert row.satisfied
        assert row.perplexity < 30
        assert row.told == f"Write a short text that {wish.describe()}."
        texts |= {row.text, row.unsteered}
    assert len(texts) == 3


def test_steering_alone_makes_neutral_texts_more_positive(default_lm: slalom.SteerableModel) -> None:
    """Of several prompts: whether one search ends with a satisfied text hangs on the rounding of a CPU."""
    prompts, wish = ["The noodles", "The lake", "The train"], slalom.Sentiment("positive")
    own = default_lm.steer(prompts, wish, tell=False, sampler="none", length=12).rows
    rows = default_lm.steer(prompts, wish, tell=False, length=12, steps=16).rows
    before, after = (sum(row.constraints[0].probability or 0.0 for row in some) / len(some) for some in (own, rows))
    assert after > before + 0.2
    assert all(row.perplexity < 30 for row in rows)


def test_a_wish_for_clean_text_is_steered_but_not_told(default_lm: slalom.SteerableModel) -> None:
    clean, sad = slalom.Toxicity("low"), slalom.Sentiment("negative")
    assert default_lm.requests("The noodles", clean)[0].told is None
    assert default_lm.requests("The noodles", sad + clean)[0].told == default_lm.requests("The noodles", sad)[0].told
    assert default_lm.requests("The noodles", clean, tell="Write a polite text.")[0].told == "Write a polite text."


def test_a_keyword_really_appears(default_lm: slalom.SteerableModel) -> None:
    out = default_lm.steer("The city", slalom.Keywords(["satellite", "astronaut"]), steps=20, until=1.0)
    assert any(word in out.texts[0].lower() for word in ("satellite", "astronaut"))
    assert out.rows[0].satisfied


def test_same_seed_same_text_alone_or_in_a_batch(default_lm: slalom.SteerableModel) -> None:
    wish = slalom.Sentiment("negative")
    prompts = ["The lake", "The president of the country"]
    together = default_lm.steer(prompts, wish, steps=4, samples=2, length=12)
    alone = default_lm.steer(prompts[1], wish, steps=4, seed=1, length=12)
    assert alone.texts[0] == together.texts[3]


def test_weight_zero_is_the_lms_own_text(default_lm: slalom.SteerableModel) -> None:
    wish = slalom.Sentiment("positive")
    settings = {"sampler": "dab", "strength": 0, "steps": 3, "length": 10, "tell": False, "compare": True}
    out = default_lm.steer("The chicken", wish, **settings)
    assert out.texts[0] == out.rows[0].unsteered
    ids = default_lm.tokenizer("The chicken", return_tensors="pt")
    banned = [[token] for token in default_lm.vocabulary.banned_fixed.nonzero()[:, 0].tolist()]
    expected = default_lm.model.generate(
        **ids, max_new_tokens=3, do_sample=False, bad_words_ids=banned, pad_token_id=default_lm.vocabulary.pad
    )
    assert out.texts[0].startswith(default_lm.tokenizer.decode(expected[0, ids["input_ids"].shape[1] :]))


def test_the_reported_perplexity_is_the_lms(default_lm: slalom.SteerableModel) -> None:
    out = default_lm.steer("The road", slalom.Keywords(["bridge"]), steps=2, length=10)
    draft = draft_of(default_lm, [("The road", out.texts[0])])
    close = 1e-3 if default_lm.dtype == torch.float32 else 0.05  # bfloat16 has eight bits
    assert out.rows[0].perplexity == pytest.approx(math.exp(-draft.log_probs.mean().item()), rel=close)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("The food was wonderful and we will be back.", "positive"),
        ("the food was n't good , and the service was awful .", "negative"),
        ("I didn't like the movie at all; what a waste of time", "negative"),
        ("Best pizza in town!", "positive"),
    ],
)
def test_the_shipped_classifier_knows_good_from_bad(default_lm: slalom.SteerableModel, text: str, label: str) -> None:
    first = text.split()[0]
    draft = draft_of(default_lm, [(first, text[len(first) :])])
    for wish in (slalom.Sentiment(label), slalom.TableClassifier("sentiment-smollm2", label)):
        assert wish.judge(draft).degree.item() > 0.5


@pytest.mark.parametrize("text", ["The lake is about twenty-five miles long.", "The meeting is on Tuesday at noon."])
def test_the_shipped_classifier_knows_neutral(default_lm: slalom.SteerableModel, text: str) -> None:
    first = text.split()[0]
    draft = draft_of(default_lm, [(first, text[len(first) :])])
    assert slalom.Sentiment("neutral").judge(draft).degree.item() > 0.5


@torch.inference_mode()
def test_a_texts_logits_on_openvino_are_the_same_whoever_is_read_beside_it() -> None:
    """To the last bit where activations have eight bits, which round a last bit up to another text."""
    lm = slalom.load(engine="openvino")
    engine = lm.engine
    close = 0.0 if engine.settings.group != "0" else 1e-3
    numbers = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 40_000, (40, 90), generator=numbers)
    ids[::3, :40] = ids[0, :40]  # some begin alike
    lengths = torch.randint(3, 90, (40,), generator=numbers).tolist()
    following = torch.randint(10, 40_000, (40, 12), generator=numbers)

    def logits_of(rows: list[int]) -> torch.Tensor:
        """Of every position, [B, 13, V]."""
        prompts = lm.pad([ids[row, : lengths[row]].tolist() for row in rows])
        prefix, each = engine.prefill(prompts), torch.arange(len(rows))
        run = engine.start(prefix, each, [0] * len(rows), 12, None)
        return torch.stack([prefix.logits, *(run.read(step, following[rows][:, step], each) for step in range(12))], 1)

    together = logits_of(list(range(40)))
    for row in range(0, 40, 4):
        assert (logits_of([row])[0] - together[row]).abs().max() <= close
    assert (logits_of([8, 3, 5])[0] - together[8]).abs().max() <= close


@pytest.mark.parametrize(("name", "label"), [("sentiment", "negative"), ("toxicity", "clean")])
def test_openvino_reads_a_thousand_drafts_as_torch_does(name: str, label: str) -> None:
    guide = slalom.Classifier(name, label)
    with gzip.open(ROOT / "data" / "drafts_rated.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 1000)]
    texts, cpu = sorted((row["prompt"] + row["text"] for row in rows), key=len), torch.device("cpu")
    folder = converted(guide.model, guide._outputs, guide._encode(EXAMPLES, cpu).inputs)
    ways = {way: compiled(folder, way, keep=False) for way in possible_ways()}
    for start in range(0, 1000, 32):
        with torch.inference_mode():
            inputs = guide._encode(texts[start : start + 32], cpu).inputs
            expected = guide._outputs(inputs).softmax(-1)
            for way, fast in ways.items():
                assert (fast(inputs).softmax(-1) - expected).abs().max().item() < 0.02, way


def test_toxicity_is_that_of_the_continuation_whatever_the_prompt_says(default_lm: slalom.SteerableModel) -> None:
    rows = [
        ("You are a stupid idiot", " and I like the green garden"),
        ("The weather", " is nice, you stupid damned idiot"),
    ]
    drafts = [draft_of(default_lm, [row]) for row in rows]
    clean, toxic = (slalom.Toxicity("low").judge(draft).degree.item() for draft in drafts)
    assert clean > 0.9
    assert toxic < 0.1


def test_every_shipped_classifier_has_a_card_with_measured_accuracy() -> None:
    for folder in SHIPPED.iterdir():
        assert card(folder)["accuracy"]
        assert card(folder)["command"].startswith("slalom train classifier")


def test_the_shipped_steer_goes_both_ways(default_lm: slalom.SteerableModel) -> None:
    odds = {}
    for label in ("positive", "negative"):
        rows = default_lm.steer(
            ["The food", "The movie"], slalom.Sentiment(label), sampler="lm-steer", samples=6, length=12
        ).rows
        odds[label] = sum(row.constraints[0].probability or 0.0 for row in rows) / len(rows)
    assert min(odds.values()) > 0.6


def test_candidate_scores_go_with_true_effects(default_lm: slalom.SteerableModel) -> None:
    """Putting candidates really in: what the gradient likes better is better, more often than not."""
    wish = slalom.Sentiment("positive")
    draft = draft_of(default_lm, [("The food", " was good and the service was slow")])
    words = [" great", " terrible", " wonderful", " bad", " fine", " cold", " delicious", " awful"]
    tokens = torch.tensor([default_lm.vocabulary.pieces(word)[0] for word in words])
    predicted = wish.candidate_scores(draft, tokens.expand(1, draft.tokens.shape[1], -1))[0, 1]
    true = []
    for token in tokens:
        changed = draft.tokens.clone()
        changed[0, 1] = token
        true.append(wish.score(default_lm.draft(draft.prompts, changed, draft.lengths, draft.log_probs)).item())
    ranks = torch.stack([predicted.argsort().argsort().float(), torch.tensor(true).argsort().argsort().float()])
    assert torch.corrcoef(ranks)[0, 1] > 0.5


def test_steering_works_inside_generate(default_lm: slalom.SteerableModel) -> None:
    inputs = default_lm.tokenizer(["The movie"], return_tensors="pt")
    start = inputs["input_ids"].shape[1]
    odds = {}
    for label in ("positive", "negative"):
        wish = slalom.Sentiment(label)
        steering = slalom.custom_generate(wish, default_lm.tokenizer, steps=12)
        tokens = default_lm.model.generate(
            **inputs, custom_generate=steering, max_new_tokens=12, min_new_tokens=12, do_sample=False
        )
        assert tokens[0, :start].tolist() == inputs["input_ids"][0].tolist()
        prompt, added = default_lm.encode("The movie", 12), tokens[:, start:]
        draft = default_lm.draft([prompt], added, torch.tensor([12]), torch.zeros(1, 12))
        odds[label] = wish.judge(draft).degree.item()
    assert min(odds.values()) > 0.5  # a plain text of the LM cannot be both


def test_the_openvino_engine_steers_the_default_model() -> None:
    lm = slalom.load(engine="openvino")
    assert lm.engine.name == "openvino"
    (row,) = lm.steer("The noodles", slalom.Sentiment("negative"), steps=20).rows
    assert row.satisfied
    assert row.perplexity < 30


def test_the_command_answers(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "slalom.frontends.cli", "generate", "The chicken", "--sentiment", "positive"]
    out = subprocess.run([*words, "--steps", "5"], capture_output=True, text=True, check=True)
    assert "The chicken" in out.stdout
    assert "sentiment:positive" in out.stdout
    assert out.stderr == ""
