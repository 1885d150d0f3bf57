"""Measure sentiment control: mean probability of the wanted class and perplexity against the LM's own greedy text.

    python examples/02_sentiment.py --prompts prompts.txt --samples 4 --json

Both directions, one line each. Prompts default to a few short ones; give a file with one a line for your own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import slalom

PROMPTS = ["The chicken", "The city", "The last time", "The painting", "The year is 1910"]


def measure(lm: slalom.SteerableModel, label: str, prompts: list[str], args: argparse.Namespace) -> dict[str, object]:
    """One direction's figures."""
    size = {"samples": args.samples, "length": args.length, "seed": args.seed, "steps": args.steps}
    out = lm.steer(prompts, slalom.Sentiment(label), compare=True, **size)
    unsteered = fmean(row.unsteered_perplexity for row in out.rows)
    steered = fmean(row.perplexity for row in out.rows)
    return {
        "sentiment": label,
        "texts": len(out.rows),
        "probability": round(fmean(row.constraints[0].probability or 0.0 for row in out.rows), 4),
        "satisfied": round(fmean(row.satisfied for row in out.rows), 4),
        "perplexity": round(steered, 2),
        "unsteered": round(unsteered, 2),
        "ratio": round(steered / unsteered, 3),
        "drafts": round(fmean(row.steps for row in out.rows), 1),
        "seconds": round(out.seconds, 1),
    }


def main() -> None:
    """Read the arguments, print a line for each direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="a file with one prompt a line")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto", help="auto, torch or openvino")
    parser.add_argument("--quick", action="store_true", help="one prompt and few drafts, to see that it runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    prompts = args.prompts.read_text(encoding="utf-8").splitlines() if args.prompts else PROMPTS
    prompts, args.steps = (prompts[:1], 4) if args.quick else (prompts, None)
    lm = slalom.load(engine=args.engine)
    for label in ("positive", "negative"):
        figures = measure(lm, label, prompts, args)
        print(json.dumps(figures) if args.json else "  ".join(f"{name} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
