"""Measure long texts: time over plain generate, and the tone of every sentence by a judge that guided nothing.

    python examples/07_long_texts.py --out texts.jsonl

Every prompt is continued by transformers' own greedy `generate` and by `steer`, one after the other, batch 1.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, median

import slalom
from slalom.backbone.ending import sentences
from slalom.evaluation.bench_steps import plain_generate
from slalom.evaluation.judges import JudgeInput, adapter_judge
from slalom.evaluation.satisfied import reporting_prompts

SIGNS = {"negative": -1, "positive": 1}


def main() -> None:
    """Write, time, judge; print a line for every wish and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[20, 60, 200])
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="one prompt, 20 tokens")
    parser.add_argument("--out", type=Path, help="where to write the texts")
    args = parser.parse_args()
    if args.quick:
        args.lengths, args.prompts = [20], 1

    lm, judge = slalom.load(), adapter_judge("sentiment")
    records = []
    for wish, sign in SIGNS.items():
        constraint = slalom.Sentiment(wish)
        lm.steer("The lake", constraint, length=4, steps=2)  # what is made once is not timed
        for length in args.lengths:
            rows = []
            for prompt in reporting_prompts(3 * args.prompts)[::3]:
                started = time.perf_counter()
                plain_generate(lm, lm.model, [prompt], length)
                between = time.perf_counter()
                (row,) = lm.steer(prompt, constraint, length=length).rows
                seconds = time.perf_counter() - between
                found = sentences(prompt + row.text)
                tones = [
                    tone * sign for tone in judge.score([JudgeInput("", one, []) for one in found], "text") if tone
                ]
                rows.append(
                    {"wish": wish, "length": length, "prompt": prompt, "text": row.text, "drafts": row.steps}
                    | {"seconds": seconds, "generate": between - started, "perplexity": row.perplexity}
                    | {"sentences": len(found), "as_wished": sum(tone > 0 for tone in tones)}
                    | {"against": sum(tone < 0 for tone in tones)}
                )
            records += rows
            took = fmean(one["seconds"] for one in rows) / fmean(one["generate"] for one in rows)
            said, against = (sum(one[name] for one in rows) for name in ("as_wished", "against"))
            print(
                f"{wish:9} {length:4} tokens: {took:.2f} x generate, {fmean(one['seconds'] for one in rows):.1f} s, "
                f"{fmean(one['drafts'] for one in rows):.1f} drafts, {said} sentences as wished, {against} against, of "
                f"{sum(one['sentences'] for one in rows)}; "
                f"median perplexity {median(one['perplexity'] for one in rows):.1f}"
            )
    if args.out:
        args.out.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")


if __name__ == "__main__":
    main()
