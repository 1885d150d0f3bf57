"""Measure the paper's algorithm, untold: the guide's mean probability, and the LM's own median perplexity.

    python examples/09_the_papers_dab.py

The 15 sentiment prompts, both wishes, seed 0, 20 drafts of 20 tokens; presets `default` and `paper`; with the shipped
three-class guide, and with a two-class guide in the paper's construction, which reads the LM's own embedding table.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from statistics import fmean, median

import slalom
from slalom.api import Text
from slalom.constraints import classifier


def main() -> None:
    """Steer and print a line for every guide, preset and wish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one prompt, two drafts")
    quick = parser.parse_args().quick
    listed = (files("slalom.evaluation") / "data" / "sentiment_prompts.txt").read_text(encoding="utf-8").splitlines()
    prompts, steps = (listed[:1], 2) if quick else (listed, None)

    lm = slalom.load()
    guides = {"shipped": "sentiment", "paper's construction": "sentiment-smollm2"}
    own = lm.steer(prompts, classifier("sentiment", "positive"), sampler="none", tell=False)
    usual = median(row.perplexity for row in own.rows)
    print(f"unsteered: median perplexity {usual:.1f}, {len(prompts)} prompts")
    for name, source in guides.items():
        for preset in ("default", "paper"):
            both = []
            for label in ("positive", "negative"):
                wish = classifier(source, label)
                rows = lm.steer(prompts, wish, sampler="dab", preset=preset, tell=False, steps=steps).rows
                print(f"{name}, {preset}, {label}: {figures(rows, usual)}", flush=True)
                both += rows
            print(f"{name}, {preset}, both wishes: {figures(both, usual)}", flush=True)


def figures(rows: list[Text], usual: float) -> str:
    """The guide's mean probability, and the median perplexity beside the unsteered texts'."""
    sure, middle = fmean(row.constraints[0].probability or 0.0 for row in rows), median(row.perplexity for row in rows)
    return f"{sure:.3f} at {middle:.1f} = {middle / usual:.2f} x"


if __name__ == "__main__":
    main()
