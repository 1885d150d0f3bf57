"""A long text is written block by block: each is steered, kept, and gone on from, and the whole is one text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.rollout import Limits, rollout
from slalom.constraints import EndsWithSentence, Keywords, Length, Regex
from slalom.constraints.classifier import Classifier
from slalom.constraints.constraint import Constraint
from slalom.constraints.custom import ANYTHING, Custom
from slalom.decoding.blocks import BLOCK, ONE_BLOCK, SENTENCE_FROM, is_long, joined, next_block
from slalom.decoding.climb import Climb
from slalom.decoding.sampler import Preset, Request, Stop
from slalom.decoding.scheduler import RowReport, Scheduler, decode
from slalom.types import Draft, Prompt
from tests.helpers import unsteered

CLIMB = Climb(top_k=20, looks=4, width=2)


def request_of(
    lm: SteerableModel,
    constraint: Constraint,
    length: int = 60,
    sampler: Climb = CLIMB,
    steps: int = 8,
    **limits: object,
) -> Request:
    settings = Preset(sampler, steps, Stop(0.99), "joint")
    return Request(lm.encode("the food was", length), 0, constraint, Limits(length, **limits), settings)  # type: ignore[arg-type]


def block_of(lm: SteerableModel, prompt: Prompt, text: str, ended: bool = False) -> Draft:
    tokens = torch.tensor([lm.vocabulary.pieces(text)])
    lengths = torch.tensor([tokens.shape[1]])
    return lm.draft([prompt], tokens, lengths, torch.zeros(tokens.shape), torch.tensor([ended]))


def text_of(lm: SteerableModel, request: Request) -> str:
    (end,) = decode(lm, [request])
    assert end.best is not None
    return end.best.draft.texts[0]


def test_a_text_that_nothing_steers_is_the_lms_own_however_it_is_cut_into_blocks(lm: SteerableModel) -> None:
    """The repetition penalty, too, sees all of the text so far. Free length, where line breaks are always allowed."""
    request = request_of(lm, ANYTHING, sampler=Climb(width=1), free=True)
    assert is_long(request)
    assert text_of(lm, request) == unsteered(lm, ["the food was"], 60, free=True).draft.texts[0]


def test_the_whole_has_the_asked_length_and_is_judged_as_a_whole(lm: SteerableModel, good: Classifier) -> None:
    seen: list[str] = []
    spy = Custom(lambda prompt, text: bool(seen.append(prompt + "|" + text)) or True, "spy")
    (end,) = decode(lm, [request_of(lm, good + spy, 56)])
    assert end.best is not None
    draft = end.best.draft
    assert int(draft.lengths) == 56
    assert lm.vocabulary.continuations(draft.prompts, draft.tokens.tolist()) == draft.texts
    assert end.best.verdict.score == pytest.approx((good + spy).score(draft).item(), abs=1e-4)
    assert torch.allclose(draft.log_probs, lm.log_probs(draft), atol=1e-4)
    assert all(text.startswith("the food was|") for text in seen)  # a function sees the prompt and all of the text


def test_every_block_is_reported_and_its_drafts_counted(lm: SteerableModel, good: Classifier) -> None:
    blocks: dict[int, int] = {}

    def note(rows: list[RowReport]) -> None:
        for row in rows:
            blocks[row.block] = row.drafts

    (end,) = decode(lm, [request_of(lm, good, 60)], (note,))
    assert len(blocks) >= 2
    assert list(blocks) == sorted(blocks)
    assert end.drafts == max(blocks.values())


def test_a_long_row_gives_the_same_text_alone_with_others_and_when_it_joins_late(
    lm: SteerableModel, good: Classifier
) -> None:
    requests = [request_of(lm, good, 50), request_of(lm, good, 12), request_of(lm, Keywords(["soup"]), 58)]
    alone = [text_of(lm, request) for request in requests]
    scheduler, found = Scheduler(lm), {}
    for request in requests:
        scheduler.add(request)
        found.update((end.ticket, end) for end in scheduler.step())
    while scheduler.busy:
        found.update((end.ticket, end) for end in scheduler.step())
    assert [end.best.draft.texts[0] for _, end in sorted(found.items())] == alone


def test_a_block_ends_with_its_last_sentence_and_the_next_is_read_from_there(llama: SteerableModel) -> None:
    request = request_of(llama, ANYTHING)
    first = next_block(request, [])
    assert first is not None
    assert (first.limits.length, first.limits.whole, first.limits.sentence_from) == (BLOCK, True, SENTENCE_FROM)
    done = block_of(llama, first.prompt, " good. We liked")
    second = next_block(request, [done])
    assert second is not None
    prompt = second.prompt
    assert (prompt.text, prompt.begun) == ("the food was good. We liked", " good. We liked")
    assert prompt.text[prompt.skipped :] == " We liked"
    assert prompt.ids == request.prompt.ids + prompt.begun_ids
    assert llama.vocabulary.decode([list(prompt.begun_ids)]) == [" good. We liked"]


def test_a_text_is_complete_at_its_length_its_eos_or_a_stop_string(llama: SteerableModel) -> None:
    request = request_of(llama, ANYTHING, 40, stops=("END",))
    prompt = request.prompt
    assert next_block(request, [block_of(llama, prompt, " good")]) is not None
    assert next_block(request, [block_of(llama, prompt, " good", ended=True)]) is None
    halves = [block_of(llama, prompt, " good E"), block_of(llama, prompt, "ND and more")]
    assert next_block(request, halves) is None
    assert joined(request, halves).texts == [" good "]
    assert next_block(request, [block_of(llama, prompt, " a" * 40)]) is None
    short = next_block(request, [block_of(llama, prompt, " a" * (40 - ONE_BLOCK))])
    assert short is not None
    assert short.limits.length == ONE_BLOCK  # what is left is steered at once
    assert short.limits.sentence_from is None


def after(llama: SteerableModel, text: str) -> Prompt:
    prompt = llama.encode("the food was", 60)
    return prompt._replace(text=prompt.text + text, begun=text)


def test_words_are_asked_for_once_and_shared_out_among_the_blocks(llama: SteerableModel) -> None:
    anyone, everyone = Keywords(["soup", "rain"]), Keywords(["soup", "rain", "river", "road"], "all")
    assert anyone.remaining(after(llama, " cold"), 3) is anyone
    assert anyone.remaining(after(llama, " cold soup."), 3) is None
    assert anyone.remaining(after(llama, " cold soup"), 3) is anyone  # which may become soups
    left = everyone.remaining(after(llama, " cold rain."), 2)
    assert isinstance(left, Keywords)
    assert left.words == ["soup", "river"]
    assert everyone.remaining(after(llama, " soup, rain, river, road."), 2) is None
    both = (anyone + Regex("x+")).remaining(after(llama, " soup."), 2)
    assert both is not None
    assert [part.name for _, part in both.terms()] == ["regex:x+"]
    assert Regex("x+").remaining(after(llama, " xx"), 2) is None


def test_the_end_of_a_sentence_is_asked_of_the_last_block_alone(llama: SteerableModel) -> None:
    wish = EndsWithSentence()
    assert wish.remaining(after(llama, " good"), 2) is None
    assert wish.remaining(after(llama, " good"), 1) is wish


def test_a_block_before_the_last_has_no_more_than_its_share_of_the_words(llama: SteerableModel) -> None:
    wish = Length(3, 10)
    assert wish.remaining(after(llama, " good"), 1) is wish
    shared = wish.remaining(after(llama, " good and warm"), 2)  # seven words are left for two blocks
    assert shared is not None
    assert shared.name == "length:0-7"
    assert wish.remaining(after(llama, " good" * 11), 2) is None  # nothing can be mended


def test_all_words_stand_somewhere_in_a_long_text(lm: SteerableModel) -> None:
    wish = Keywords(["soup", "rain", "river"], "all")
    (end,) = decode(lm, [request_of(lm, wish, 60, steps=40)])
    assert end.best is not None
    assert end.best.verdict.satisfied


def test_only_a_later_block_of_a_text_may_begin_a_paragraph(lm: SteerableModel) -> None:
    request = request_of(lm, ANYTHING)
    first = next_block(request, [])
    assert first is not None
    later = next_block(request, [block_of(lm, request.prompt, " good and warm.")])
    assert later is not None
    assert not first.limits.line_breaks
    assert later.limits.line_breaks


def test_line_breaks_are_written_where_they_are_allowed_and_the_end_of_text_is_not(lm: SteerableModel) -> None:
    vocabulary = lm.vocabulary
    breaks = vocabulary.newline.nonzero()[:, 0]
    ends = torch.tensor(vocabulary.eos)
    push = torch.zeros(vocabulary.size)
    push[breaks] = 100.0
    push[ends] = 200.0

    def pushed(*, line_breaks: bool) -> torch.Tensor:
        read = lm.read([lm.encode("the food was", 6)])
        limits = Limits(6, repetition_penalty=1.0, line_breaks=line_breaks)
        return rollout(lm, read, torch.tensor([0]), limits, draw=lambda at, rows, scores: scores + push).draft.tokens

    assert torch.isin(pushed(line_breaks=True), breaks).all()
    assert not torch.isin(pushed(line_breaks=False), torch.cat([breaks, ends])).any()


def test_a_whole_text_that_runs_into_its_length_ends_with_its_last_whole_sentence(llama: SteerableModel) -> None:
    first, last = (llama.vocabulary.pieces(text) for text in (" good. We liked it.", " and the"))
    request = request_of(llama, ANYTHING, len(first) + len(last), whole=True)
    blocks = [block_of(llama, request.prompt, " good. We liked it.")]
    blocks.append(block_of(llama, request.prompt, " and the"))
    assert joined(request, blocks).texts == [" good. We liked it."]
    free = request._replace(limits=request.limits._replace(whole=False))
    assert joined(free, blocks).texts == [" good. We liked it. and the"]


def test_a_character_of_two_blocks_stands_in_the_whole_text(llama: SteerableModel) -> None:
    request = request_of(llama, ANYTHING, 40)
    tokens = llama.vocabulary.pieces(" good \U0001f600!")
    whole = llama.vocabulary.continuations([request.prompt], [tokens])[0]
    inside = next(
        cut
        for cut in range(1, len(tokens))
        if "\ufffd" in llama.vocabulary.continuations([request.prompt], [tokens[:cut]])[0]
    )

    def block(prompt: Prompt, some: list[int]) -> Draft:
        row = torch.tensor([some])
        return llama.draft([prompt], row, torch.tensor([len(some)]), torch.zeros(row.shape))

    first = block(request.prompt, tokens[:inside])
    following = next_block(request, [first])
    assert following is not None
    second = block(following.prompt, tokens[inside:])
    assert joined(request, [first, second]).texts == [whole]
    later = next_block(request, [first, second])
    assert later is not None
    assert later.prompt.begun == whole


def test_a_block_cut_inside_a_token_is_gone_on_from_after_the_whole_token(llama: SteerableModel) -> None:
    """Its text ends before the end of its last token, which the LM goes on from all the same."""
    request = request_of(llama, ANYTHING, 40)
    first = block_of(llama, request.prompt, " good. We")._replace(texts=[" good."])
    following = next_block(request, [first])
    assert following is not None
    assert following.prompt.begun == " good. We"
    second = block_of(llama, following.prompt, " liked it")
    assert joined(request, [first, second]).texts == [" good. We liked it"]


def test_nothing_after_a_stop_string_is_written_or_judged_in_a_long_text(llama: SteerableModel) -> None:
    own = unsteered(llama, ["the food was"], 60, free=True).draft.texts[0]
    stop = own[10:13]
    seen: list[str] = []
    spy = Custom(lambda prompt, text: bool(seen.append(text)) or False, "spy")
    request = request_of(llama, spy, 60, free=True, stops=(stop,))
    (end,) = decode(llama, [request])
    assert end.best is not None
    assert any(stop in text for text in seen)
    assert all(text.find(stop) >= len(text) - len(stop) - 8 for text in seen if stop in text)  # its token may end later
    assert stop not in end.best.draft.texts[0]


def test_a_long_text_that_would_be_cut_to_nothing_is_worth_nothing(llama: SteerableModel) -> None:
    own = unsteered(llama, ["the food was"], 60, free=True).draft.texts[0]
    request = request_of(
        llama, Custom(lambda prompt, text: True, "anything"), 60, free=True, stops=(own[:2],), steps=12
    )
    assert text_of(llama, request).strip()


def test_each_block_is_drawn_by_random_numbers_of_its_own(llama: SteerableModel) -> None:
    request = request_of(llama, ANYTHING, 60, Climb(width=1), steps=1)
    scheduler, keys = Scheduler(llama), dict[int, int]()
    scheduler.add(request._replace(settings=replace(request.settings, temperature=1.0, stop=None, steps=2)))
    while scheduler.busy:
        scheduler.step()
        for batch in scheduler._batches:
            keys[len(batch.rows[0].written)] = int(batch.problem.drawing.rng.keys[0])
    assert len(keys) >= 2
    assert len(set(keys.values())) == len(keys)
