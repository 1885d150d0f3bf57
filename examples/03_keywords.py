"""Measure keyword control: how often one of a topic's words really appears, and at what perplexity.

    python examples/03_keywords.py --topics topics.jsonl --prompts prompts.txt --samples 4

A topic is a JSON object a line with `topic` and `keywords`; without a file, two small ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import slalom

TOPICS = [
    {"topic": "space", "keywords": ["meteor", "planet", "satellite", "astronaut"]},
    {"topic": "computer", "keywords": ["router", "Linux", "keyboard", "server"]},
]
PROMPTS = ["The city", "The last time"]


def main() -> None:
    """A line a topic, then the mean over all texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=Path, help="JSON lines with topic and keywords")
    parser.add_argument("--prompts", type=Path, help="a file with one prompt a line")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto", help="auto, torch or openvino")
    parser.add_argument("--quick", action="store_true", help="one prompt and few drafts, to see that it runs")
    args = parser.parse_args()
    topics = [json.loads(line) for line in args.topics.read_text().splitlines()] if args.topics else TOPICS
    prompts = args.prompts.read_text(encoding="utf-8").splitlines() if args.prompts else PROMPTS
    topics, prompts, steps = (topics[:1], prompts[:1], 4) if args.quick else (topics, prompts, None)
    lm = slalom.load(engine=args.engine)
    rows = []
    for topic in topics:
        wish = slalom.Keywords(topic["keywords"], "any")
        out = lm.steer(
            prompts, wish, samples=args.samples, length=args.length, seed=args.seed, steps=steps, compare=True
        )
        rows += out.rows
        print(f"{topic['topic']:<10} {_figures(out.rows)}  {out.seconds:.0f} s", flush=True)
    print(f"{'all':<10} {_figures(rows)}")


def _figures(rows: list) -> str:
    steered, unsteered = fmean(row.perplexity for row in rows), fmean(row.unsteered_perplexity for row in rows)
    share = fmean(row.satisfied for row in rows)
    return f"{len(rows)} texts  success {share:.3f}  perplexity {steered:.2f} = {steered / unsteered:.2f} x unsteered"


if __name__ == "__main__":
    main()
