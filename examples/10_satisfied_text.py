"""Measure what a satisfied text costs: seconds over plain generate, by the number of drafts side by side, batch 1.

python examples/10_satisfied_text.py
python examples/10_satisfied_text.py --untold --prompts 10
"""

from __future__ import annotations

import argparse
import json

import slalom
from slalom.evaluation.satisfied import Variant, satisfied_over_generate


def main() -> None:
    """Negative texts, every prompt by every width in turn; one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--untold", action="store_true", help="do not tell the LM the wish")
    parser.add_argument("--quick", action="store_true", help="one prompt, widths 1 and 2")
    args = parser.parse_args()
    prompts, widths = (1, (1, 2)) if args.quick else (args.prompts, (1, 2, 4, 8))
    tell = False if args.untold else "auto"
    variants = tuple(Variant(f"width {width}", {"tell": tell, "knobs": {"width": width}}) for width in widths)
    wish = {"negative": slalom.Sentiment("negative")}
    print(json.dumps(satisfied_over_generate(slalom.load(), wish, variants, 1, prompts, lambda line: None), indent=2))


if __name__ == "__main__":
    main()
