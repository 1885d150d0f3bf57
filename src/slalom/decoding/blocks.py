"""A long text to one block after another: each a sentence or two, steered by itself, and then kept."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from slalom.backbone.ending import before_stop, whole_sentences
from slalom.backbone.rollout import ended_by
from slalom.constraints.custom import ANYTHING
from slalom.decoding.sampler import Preset, Request, Stop
from slalom.types import Draft, Prompt

BLOCK = 32  # tokens of a block at the most
SENTENCE_FROM = 12  # the first sentence that ends at this token or later ends its block: nothing is cut off again
LATER_DRAFTS, LATER_DEGREE = 12, 0.8  # in blocks after the first: drafts at the most, and the degree that is enough
ONE_BLOCK = 32  # a text, or the rest of one, of up to so many tokens is one block


def is_long(request: Request) -> bool:
    """Whether a request is written block by block."""
    return request.settings.sampler.blockwise and request.limits.length > ONE_BLOCK


def next_block(request: Request, written: list[Draft]) -> Request | None:
    """What to write after these blocks; none if the text is complete."""
    left = request.limits.length - sum(int(block.lengths) for block in written)
    if left <= 0 or (written and (bool(written[-1].ended) or not int(written[-1].lengths))):
        return None
    prompt = request.prompt
    for block in written:
        prompt = _after(prompt, block)
    if before_stop(prompt.begun, request.limits.stops) is not None:
        return None
    last = left <= ONE_BLOCK
    length, blocks = (left, 1) if last else (BLOCK, math.ceil(left / BLOCK))
    return request._replace(
        prompt=prompt,
        settings=_going_on(request.settings) if written else request.settings,
        constraint=request.constraint.remaining(prompt, blocks) or ANYTHING,
        # A stop string may begin in one block and end in the next: a block ends with it, the whole text before it.
        limits=request.limits._replace(
            length=length,
            stops=(),
            ends_with=request.limits.stops,
            whole=request.limits.whole or not last,
            sentence_from=None if last else SENTENCE_FROM,
            # An LM that would end its text, and may not, begins a paragraph then instead of filling up with hashtags.
            line_breaks=bool(written),
        ),
    )


def _going_on(settings: Preset) -> Preset:
    """A preset for the blocks after the first: fewer drafts, and the first that is as wished will do.

    The tone is set by then, and not every sentence of a natural text has it. What the user asked for by hand stays.
    """
    stop = settings.stop
    if stop is None or math.isinf(stop.fluent):
        return settings
    return replace(settings, steps=min(settings.steps, LATER_DRAFTS), stop=Stop(min(stop.degree, LATER_DEGREE)))


def _after(prompt: Prompt, block: Draft) -> Prompt:
    """The prompt of what follows a block, with all that its tokens say: its text may end inside the last one."""
    tokens = tuple(block.tokens[0, : int(block.lengths)].tolist())
    begun_ids = prompt.begun_ids + tokens
    begun = _text(block, prompt._replace(ids=prompt.ids[: len(prompt.ids) - len(prompt.begun_ids)]), begun_ids)
    whole = prompt.text[: prompt.begins] + begun
    finished = whole_sentences(begun)  # characters of the continuation so far that are whole sentences
    return prompt._replace(
        text=whole,
        ids=prompt.ids + tokens,
        untold_ids=None if prompt.untold_ids is None else prompt.untold_ids + tokens,
        begun=begun,
        begun_ids=begun_ids,
        skipped=prompt.skipped if finished is None else len(whole) - len(begun) + finished,
    )


def _text(block: Draft, prompt: Prompt, tokens: tuple[int, ...]) -> str:
    """What tokens say after a prompt; a character may be made of tokens of two blocks."""
    return block.vocabulary.continuations([prompt], [list(tokens)])[0]


def joined(request: Request, blocks: list[Draft]) -> Draft:
    """The blocks as one text of the request."""
    last = blocks[-1]
    written = [tuple(block.tokens[0, : int(block.lengths)].tolist()) for block in blocks]
    cut_off = len(_text(last, last.prompts[0], written[-1])) - len(last.texts[0])  # inside its last token
    text = _text(last, request.prompt, sum(written, ()))
    kept = [int(block.lengths) for block in blocks[:-1]] + [blocks[-1].tokens.shape[1]]
    tokens, log_probs = (
        torch.cat([getattr(block, name)[:, :count] for block, count in zip(blocks, kept, strict=True)], dim=1)
        for name in ("tokens", "log_probs")
    )
    whole = Draft(
        blocks[0].vocabulary,
        [request.prompt],
        tokens,
        torch.stack([block.lengths for block in blocks]).sum(0),
        [text[: len(text) - cut_off]],
        log_probs,
        blocks[-1].ended,
    )
    return ended_by(whole, [request.limits])
