"""Measure how different the samples of one prompt are, and whether they are as wished as a single one.

    python examples/16_different_samples.py

The first 15 reporting prompts, both wishes, told; four samples a prompt (seeds 0 to 3) against one (seed 0).
"""

from __future__ import annotations

import argparse
from statistics import fmean

import slalom
from slalom.evaluation.metrics import self_bleu
from slalom.evaluation.satisfied import reporting_prompts

SAMPLES = 4


def main() -> None:
    """Print a line for every wish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one prompt, one wish")
    quick = parser.parse_args().quick
    prompts, wishes = reporting_prompts(1 if quick else 15), ("negative",) if quick else ("negative", "positive")
    lm = slalom.load()
    for wish in wishes:
        rows = lm.steer(prompts, slalom.Sentiment(wish), samples=SAMPLES, length=20).rows
        groups = [rows[start : start + SAMPLES] for start in range(0, len(rows), SAMPLES)]
        different = fmean(len({row.text for row in group}) for group in groups)
        alike = fmean(self_bleu([row.text for row in group]) or 0.0 for group in groups)
        first = fmean(group[0].satisfied for group in groups)
        print(
            f"{wish}: {different:.2f} of {SAMPLES} different (n {len(groups)} prompts), self-BLEU {alike:.2f}, "
            f"satisfied {fmean(row.satisfied for row in rows):.2f} of {len(rows)}, with one sample {first:.2f}"
        )


if __name__ == "__main__":
    main()
