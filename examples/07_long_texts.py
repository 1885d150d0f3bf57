"""Measure long texts: time over plain generate, and the tone of every sentence by a judge that guided nothing.

    python examples/07_long_texts.py --out texts.jsonl

Every prompt is continued by transformers' own greedy `generate` and by `steer`, one after the other, batch 1; then
questions are answered in a chat, in at most 128 tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import slalom
from slalom.backbone.ending import sentences
from slalom.evaluation.bench_steps import plain_generate
from slalom.evaluation.judges import Judge, JudgeInput, adapter_judge
from slalom.evaluation.satisfied import reporting_prompts

SIGNS = {"negative": -1, "positive": 1}
ANSWER = 128  # tokens of an answer at the most
QUESTIONS = (
    "How was the concert last night?",
    "Tell me about your new flat.",
    "What is it like to work in a call centre?",
    "How did the exam go?",
    "Describe the hotel you stayed in.",
    "What do you think of the new bus line?",
    "How is the garden doing this year?",
    "Tell me about the football match.",
    "What was the flight like?",
    "How do you like your new laptop?",
)


def main() -> None:
    """Write, time, judge; print a line for every wish and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[20, 60, 200])
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--wishes", nargs="+", choices=list(SIGNS), default=list(SIGNS))
    parser.add_argument("--chats", type=int, default=len(QUESTIONS), help="questions that are answered")
    parser.add_argument("--quick", action="store_true", help="one prompt, 20 tokens")
    parser.add_argument("--out", type=Path, help="where to write the texts")
    args = parser.parse_args()
    if args.quick:
        args.lengths, args.prompts, args.chats = [20], 1, 0

    lm, judge = slalom.load(), adapter_judge("sentiment")
    records = []
    for wish in args.wishes:
        lm.steer("The lake", slalom.Sentiment(wish), length=4, steps=2)  # what is made once is not timed
        for length in args.lengths:
            prompts = reporting_prompts(3 * args.prompts)[::3]
            rows = [measure(lm, judge, wish, prompt, length, chat=False) for prompt in prompts]
            report(f"{wish}, {length} tokens", rows)
            records += rows
        if args.chats:
            rows = [measure(lm, judge, wish, question, ANSWER, chat=True) for question in QUESTIONS[: args.chats]]
            report(f"{wish}, answers", rows)
            records += rows
    if args.out:
        args.out.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")


def measure(lm: slalom.SteerableModel, judge: Judge, wish: str, prompt: str, length: int, chat: bool) -> dict[str, Any]:
    """One text by `generate` and by `steer`: seconds of both, and the tone of each sentence of the steered one."""
    started = time.perf_counter()
    if chat:
        read = lm.pad([lm.encode_chat([{"role": "user", "content": prompt}], length).ids])
        lm.model.generate(
            input_ids=read.ids,
            attention_mask=read.mask,
            max_new_tokens=length,
            do_sample=False,
            pad_token_id=lm.vocabulary.pad,
        )
    else:
        plain_generate(lm, lm.model, [prompt], length)
    between = time.perf_counter()
    (row,) = lm.steer(prompt, slalom.Sentiment(wish), length=length, chat=chat).rows
    seconds = time.perf_counter() - between
    found = sentences(row.text if chat else prompt + row.text)
    tones = [SIGNS[wish] * tone for tone in judge.score([JudgeInput("", one, []) for one in found], "text") if tone]
    return {
        "wish": wish,
        "length": length,
        "chat": chat,
        "prompt": prompt,
        "text": row.text,
        "drafts": row.steps,
        "seconds": seconds,
        "generate": between - started,
        "perplexity": row.perplexity,
        "sentences": len(found),
        "as_wished": sum(tone > 0 for tone in tones),
        "against": sum(tone < 0 for tone in tones),
    }


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """A line of means."""
    seconds, generate, drafts = (fmean(one[key] for one in rows) for key in ("seconds", "generate", "drafts"))
    said, against, found = (sum(one[key] for one in rows) for key in ("as_wished", "against", "sentences"))
    turned = sum(one["against"] > one["as_wished"] for one in rows)
    print(
        f"{name} (n {len(rows)}): {seconds / generate:.2f} x generate, {seconds:.1f} s, {drafts:.1f} drafts; "
        f"sentences: {said} as wished, {against} against, of {found}; texts more against than for it: {turned}; "
        f"median perplexity {median(one['perplexity'] for one in rows):.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
