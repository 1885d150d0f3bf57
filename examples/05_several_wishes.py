"""Measure several wishes at once, and each alone: how often every one is reached, and at what perplexity.

    python examples/05_several_wishes.py --prompts prompts.txt --samples 2 --json

A classifier's wish is reached at a probability of at least 0.9, keywords when one of them is there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import slalom

PROMPTS = ["The chicken", "The city", "The painting"]
KEYWORDS = ["meteor", "planet", "satellite", "astronaut"]


def wishes() -> dict[str, slalom.Constraint]:
    """Each alone, then two and three together."""
    space, clean = slalom.Keywords(KEYWORDS), slalom.Toxicity("low")
    positive, negative = slalom.Sentiment("positive"), slalom.Sentiment("negative")
    return {
        "keywords": space,
        "positive": positive,
        "negative": negative,
        "clean": clean,
        "positive + keywords": positive + space,
        "negative + keywords": negative + space,
        "negative + clean": negative + clean,
        "positive + clean + keywords": positive + clean + space,
        "negative + clean + keywords": negative + clean + space,
    }


def reached(wish: object) -> bool:
    """Whether one constraint holds of one text."""
    return wish.satisfied if wish.probability is None else wish.probability >= 0.9


def main() -> None:
    """A line for each wish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="a file with one prompt a line")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="the wishes with this in their name")
    parser.add_argument("--engine", default="auto", help="auto, torch or openvino")
    parser.add_argument("--quick", action="store_true", help="one prompt, one wish and few drafts, to see that it runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    prompts = args.prompts.read_text(encoding="utf-8").splitlines() if args.prompts else PROMPTS
    prompts, steps = (prompts[:1], 3) if args.quick else (prompts, None)
    args.only = "positive + clean + keywords" if args.quick else args.only
    lm = slalom.load(engine=args.engine)
    for name, wish in wishes().items():
        if args.only and args.only not in name:
            continue
        out = lm.steer(
            prompts, wish, samples=args.samples, length=args.length, seed=args.seed, steps=steps, compare=True
        )
        steered, unsteered = (
            fmean(getattr(row, of) for row in out.rows) for of in ("perplexity", "unsteered_perplexity")
        )
        said = {
            "wish": name,
            "texts": len(out.rows),
            **{
                part.name: round(fmean(reached(row.constraints[i]) for row in out.rows), 3)
                for i, part in enumerate(out.rows[0].constraints)
            },
            "all": round(fmean(all(map(reached, row.constraints)) for row in out.rows), 3),
            "perplexity": round(steered, 2),
            "ratio": round(steered / unsteered, 3),
            "drafts": round(fmean(row.steps for row in out.rows), 1),
        }
        print(json.dumps(said) if args.json else "  ".join(f"{k} {v}" for k, v in said.items()), flush=True)


if __name__ == "__main__":
    main()
