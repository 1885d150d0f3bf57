"""Any mix of requests in one call: many wishes and lengths together, against one after the other.

    python examples/08_mixed_requests.py --rows 64

Prints the seconds of both and how many texts are the same: all of them should be.
"""

from __future__ import annotations

import argparse
import random
import time

import slalom
from slalom.evaluation.satisfied import reporting_prompts


def main() -> None:
    """Write all together, then one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="four rows")
    args = parser.parse_args()
    count = 4 if args.quick else args.rows

    lm = slalom.load()
    tones = {label: slalom.Sentiment(label) for label in ("negative", "positive", "neutral")}
    wishes = [
        tones["negative"],
        tones["positive"],
        slalom.Keywords(["winter"]),
        tones["negative"] + slalom.Keywords(["money"]),
        slalom.Toxicity("low"),
        slalom.Topic("space"),
        tones["positive"] + slalom.Avoid(["the"]),
        tones["neutral"],
    ]
    listed, numbers = reporting_prompts(30), random.Random(0)
    rows = [(listed[i % 30], wishes[i % 8], numbers.randint(5, 60)) for i in range(count)]
    for wish in wishes:
        lm.steer(listed[0], wish, length=5, steps=2)  # what is made once is not timed

    started = time.perf_counter()
    prompts, constraints, lengths = map(list, zip(*rows, strict=True))
    together = lm.steer(prompts, constraints, length=lengths).rows
    between = time.perf_counter()
    alone = [lm.steer(prompt, wish, length=length).rows[0] for prompt, wish, length in rows]
    seconds = between - started, time.perf_counter() - between
    same = sum(one.text == other.text for one, other in zip(together, alone, strict=True))
    print(f"together {seconds[0]:.1f} s, one by one {seconds[1]:.1f} s ({seconds[1] / seconds[0]:.2f} x)")
    print(f"the same text: {same} of {count}; satisfied: {sum(one.satisfied for one in together)}")


if __name__ == "__main__":
    main()
