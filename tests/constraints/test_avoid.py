"""Words to avoid: in no draft, however they are spelt."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from slalom.api import SteerableModel
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints import Avoid, EndsWithSentence, Keywords, avoid
from slalom.constraints.classifier import Classifier
from slalom.decoding.climb import Climb
from slalom.decoding.dab import DAB
from slalom.decoding.dab import PAPER as PUBLISHED
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Sampler
from slalom.decoding.scheduler import RowReport
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt
from tests.conftest import byte_fallback_tokenizer, byte_level_tokenizer, word_piece_tokenizer
from tests.helpers import count_decoded, decode, draft_of, problem_of, unsteered

PROMPTS = ["the food", "we liked", "a lovely day by the river"]


@pytest.mark.parametrize(
    ("words", "prompt", "text"),
    [
        (["soup"], "we ate", " soup"),
        (["soup"], "we ate", ' "SOUP", they said'),
        (["Soup"], "we ate", " _soup_ and"),
        (["soup"], "we ate", " soup's good"),
        (["river bank"], "by the", " River  bank"),
        (["kitten"], "a kit", "ten"),
        (["new", "new york"], "a new", " york"),
        (["STRASSE"], "die", " Straße"),
        (["caf\u00e9"], "a", " cafe\u0301"),
        (["!"], "we", " ate!"),
    ],
)
def test_a_word_is_found_in_any_case_and_spelling(words: list[str], prompt: str, text: str) -> None:
    assert Avoid(words).found(prompt, text)


@pytest.mark.parametrize(
    ("prompt", "text"), [("we ate", " soups"), ("we ate soup", " again"), ("the", " pea-souper"), ("we", "")]
)
def test_a_part_of_a_longer_word_or_the_prompts_own_word_is_not(prompt: str, text: str) -> None:
    assert not Avoid(["soup"]).found(prompt, text)


def test_of_a_long_prompt_only_the_end_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    word = Avoid(["kitten"])
    prompt = "the food was good and " * 5000 + "a kit"
    folded, fold = [], avoid._folded
    monkeypatch.setattr(avoid, "_folded", lambda text: folded.append(len(text)) or fold(text))
    assert word.found(prompt, "ten")
    assert sum(folded) < 500


def test_the_end_of_a_text_folds_as_in_the_whole_text() -> None:
    """Letters with their accents apart, accents in the wrong order, Hangul in pieces, letters that fold to several."""
    draw = random.Random(0)
    accents = "q" + "\u0301" * 8 + "\u0323" * 8
    alphabet = ["E", " ", "e\u0301", "u\u0308\u0301", "\u1112\u1161\u11ab", "\u0301", accents, "ß", "\ufdfa"]
    for _ in range(2000):
        text = "".join(draw.choices(draw.sample(alphabet, 2), k=draw.randrange(400)))
        length = draw.randrange(1, 80)
        assert avoid._folded_end(text, length) == avoid._folded(text)[-length:]


def test_a_begun_word_that_is_longer_when_folded_is_found_whole() -> None:
    word = "\ufdfa" * 8  # 18 characters each
    assert Avoid([f"{word} soup"]).found(f"the {word}", " soup")


def test_the_score_is_0_without_the_words_and_minus_4_with_one(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we ate the", " soup"), ("we ate the", " food")])
    assert Avoid(["soup"]).score(draft).tolist() == [-4.0, 0.0]
    assert Avoid(["soup"]).satisfied(draft).tolist() == [False, True]


def written_words(lm: SteerableModel, prompts: list[str], length: int) -> list[str]:
    """Words of the LM's own greedy text, which would come again if nothing forbade them."""
    texts = unsteered(lm, prompts, length).draft.texts
    return list(dict.fromkeys(word for text in texts for word in text.split() if word.isalnum()))


@pytest.mark.parametrize("sampler", [Climb(width=1), DAB(), PUBLISHED], ids=["climb", "dab", "paper"])
def test_no_draft_ever_holds_a_word_to_avoid(lm: SteerableModel, good: Classifier, sampler: Sampler) -> None:
    words = [*written_words(lm, PROMPTS, 8), "the", "was", "soup"]
    avoid = Avoid(words)
    texts: list[tuple[str, str]] = []

    def note(rows: list[RowReport]) -> None:
        draft = functools.reduce(Draft.join, [row.seen.draft for row in rows])
        texts.extend((prompt.text, text) for prompt, text in zip(draft.prompts, draft.texts, strict=True))

    decode(problem_of(lm, PROMPTS, good + avoid), sampler, [0, 1, 2], steps=12, callbacks=(note,))
    assert len(texts) == 36
    assert len(set(texts)) > 6
    assert not [text for text in texts if avoid.found(*text)]


def test_a_word_of_several_tokens_cannot_be_pieced_together(
    llama: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is pushed towards spelling the word out, and the text still does not."""
    monkeypatch.setattr(Keywords, "check_allowed", lambda *_: None)  # which would refuse such a wish
    wish, knobs = Keywords(["gum"]), {"fluency": 0}
    assert all(len(spelling.tokens) > 1 for spelling in wish.spellings(llama.vocabulary))
    reached = llama.steer(PROMPTS, wish, length=8, steps=30, knobs=knobs)
    assert any(row.satisfied for row in reached.rows)
    out = llama.steer(PROMPTS, wish + Avoid(["GUM"]), length=8, steps=30, knobs=knobs)
    assert [row.constraints[1].satisfied for row in out.rows] == [True] * 3
    assert not any(row.constraints[0].satisfied for row in out.rows)


def test_words_to_avoid_are_no_candidates(llama: SteerableModel) -> None:
    problem = problem_of(llama, PROMPTS, Avoid(["the"]) + Keywords(["the", "soup"]))
    state = Climb(top_k=20).init(problem, Rng.from_seeds([0] * len(PROMPTS), llama.device))
    proposed = {llama.vocabulary.texts[token] for token in state.origin.candidates.flatten().tolist()}
    assert not {" the", "the", "The", " The"} & proposed
    assert any("soup".startswith(text.strip()) for text in proposed if text.strip())


def test_with_nothing_to_avoid_nothing_is_checked(llama: SteerableModel, good: Classifier) -> None:
    assert (good + EndsWithSentence()).forbids(llama.vocabulary) is None
    assert (good + Avoid(["soup"])).forbids(llama.vocabulary) is not None


def test_several_lists_are_avoided_together(llama: SteerableModel) -> None:
    both = (Avoid(["soup"]) + Avoid(["rain"])).forbids(llama.vocabulary)
    prompt = llama.encode("the", 8)
    assert both
    assert [both.written(prompt, llama.vocabulary.pieces(text)) for text in (" soup", " rain", " food")] == [1, 1, 0]


TOKENIZERS = [byte_level_tokenizer, byte_fallback_tokenizer, word_piece_tokenizer]
TEXTS = [
    "a b e ab c ",
    "\u00e9 e\u0301 e b \u0301",
    "😀 日本a !",
    "the was a b food the",
    "caf\u00e9 cafe\u0301 a  b  ",
]
WORDS = ["ab", "the", "\u00e9", "e b", "😀", "日a", "!", "was a b", "caf\u00e9"]


@pytest.fixture(params=TOKENIZERS, ids=lambda make: make.__name__)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    make: Callable[[], PreTrainedTokenizerFast] = request.param
    tokenizer = make()
    return Vocabulary(tokenizer, torch.zeros(len(tokenizer) + 5, 2), (0,))


def test_a_growing_text_is_judged_by_its_end_as_the_whole_would_be(vocabulary: Vocabulary) -> None:
    """Random tokens, spellings and halves of characters; now and then a word is written all the same."""
    draw = random.Random(0)
    prompt = Prompt("the", tuple(vocabulary.pieces("the")))
    late = 0
    for number in range(40):
        avoid = Avoid(draw.sample(WORDS, draw.randrange(1, 4)))
        common = vocabulary.pieces(draw.choice(TEXTS)) + vocabulary.pieces("ab c")
        alphabet = common + draw.choices(range(vocabulary.size), k=3) if number % 3 else range(vocabulary.size)
        written = avoid.forbids(vocabulary).written
        tokens: list[int] = []
        for position in range(200):
            token = draw.choice(alphabet)
            (text,) = vocabulary.continuations([prompt], [[*tokens, token]])
            found = avoid.found(prompt.text, text)
            assert written(prompt, [*tokens, token]) == found
            late += found and position > 100
            if not found or draw.random() < 0.01:
                tokens.append(token)
    assert late > 30


def test_the_tokens_decoded_for_a_position_do_not_grow_with_the_text(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Avoid(["soup", "river bank"]).forbids(vocabulary).written
    prompt = Prompt("the", tuple(vocabulary.pieces("the")))
    text = vocabulary.pieces("the food was good and the rain was warm " * 40) + vocabulary.pieces(" soup")
    decoded = count_decoded(vocabulary, monkeypatch)
    work, found = [], []
    for end in range(1, len(text) + 1):
        decoded.clear()
        found.append(written(prompt, text[:end]))
        work.append(sum(decoded))
    assert found == [False] * (len(text) - 1) + [True]
    assert max(work[len(work) // 2 :]) <= max(work[: len(work) // 4]) < 80


@pytest.mark.parametrize("vocabulary", [byte_level_tokenizer, byte_fallback_tokenizer], indirect=True)
def test_a_word_written_in_bytes_is_found_at_the_end_of_a_long_run_of_them(vocabulary: Vocabulary) -> None:
    prompt = Prompt("the", tuple(vocabulary.pieces("the")))
    for character in "\u0436語":  # of 2 and of 3 bytes
        written = Avoid(["😀"]).forbids(vocabulary).written
        text = vocabulary.pieces(character * 150 + "😀")
        assert [written(prompt, text[:end]) for end in range(1, len(text) + 1)] == [False] * (len(text) - 1) + [True]


def test_a_word_anywhere_in_a_text_that_was_never_checked_is_found(vocabulary: Vocabulary) -> None:
    written = Avoid(["soup"]).forbids(vocabulary).written
    prompt = Prompt("the", tuple(vocabulary.pieces("the")))
    rest = vocabulary.pieces(" and the rain was warm" * 20)
    assert written(prompt, vocabulary.pieces(" soup was good") + rest)
    assert not written(prompt, vocabulary.pieces(" food was good") + rest)


def test_nothing_to_avoid_is_refused() -> None:
    with pytest.raises(SlalomError, match="no words to avoid given"):
        Avoid([" "])


def test_a_word_that_must_and_must_not_appear_is_refused(llama: SteerableModel) -> None:
    for wish in (
        Keywords(["soup"]) + Avoid(["Soup"]),
        Keywords(["rain", "sunrise"], "all") + Avoid(["sunrise"]),
        Keywords(["rain", "soup"]) + Avoid(["soup", "rain"]),
    ):
        with pytest.raises(SlalomError, match="must appear and must not"):
            llama.steer("the food", wish, length=5, steps=1)
    (row,) = llama.steer("the food", Keywords(["rain", "soup"]) + Avoid(["soup"]), length=8, steps=20).rows
    assert row.satisfied
    assert "rain" in row.text
