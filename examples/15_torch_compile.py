"""Measure whether a static cache and torch.compile would pay for the torch engine: milliseconds of a token, in turns.

    python examples/15_torch_compile.py

The default LM continues prompts of 16 tokens by 20 more: by the torch engine, by the stock model with a static cache,
and by that compiled (its first two calls, when it is compiled, are timed apart). Medians of several turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from transformers import PreTrainedModel, StaticCache

import slalom
from slalom.types import Tokens

PROMPT, LENGTH = 16, 20


def engine_pass(lm: slalom.SteerableModel, ids: torch.Tensor) -> Callable[[], None]:
    """A rollout of the torch engine."""
    prefix = lm.engine.prefill(Tokens(ids, torch.ones_like(ids)))
    rows = torch.arange(len(ids))

    def run() -> None:
        going = lm.engine.start(prefix, rows, [0] * len(ids), LENGTH, None)
        for step in range(LENGTH):
            going.read(step, ids[:, 0], rows)

    return run


def static_pass(model: PreTrainedModel, forward: Callable[..., object], ids: torch.Tensor) -> Callable[[], None]:
    """As many tokens by the stock model, its cache in tensors of fixed size."""

    def run() -> None:
        cache = StaticCache(config=model.config, max_cache_len=PROMPT + LENGTH)
        model(ids, past_key_values=cache, cache_position=torch.arange(PROMPT), logits_to_keep=1)
        for step in range(LENGTH):
            place = torch.tensor([PROMPT + step])
            forward(ids[:, :1], past_key_values=cache, cache_position=place, position_ids=place[None])

    return run


@torch.inference_mode()
def main() -> None:
    """Print a line for every batch and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="batch 1, one turn, nothing compiled")
    args = parser.parse_args()
    lm = slalom.load(engine="torch")
    for batch in (1,) if args.quick else (1, 20):
        ids = torch.randint(100, 10_000, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
        ways = {"torch engine": engine_pass(lm, ids), "static cache": static_pass(lm.model, lm.model, ids)}
        if not args.quick:
            torch.compiler.reset()
            ways["static cache, compiled"] = static_pass(lm.model, torch.compile(lm.model), ids)
            started = time.perf_counter()
            for _ in range(2):
                ways["static cache, compiled"]()
            print(f"batch {batch}: compiling took {time.perf_counter() - started:.0f} s", flush=True)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(1 + (1 if args.quick else args.repeats)):
            for name, run in ways.items():
                started = time.perf_counter()
                run()
                times[name].append(1000 * (time.perf_counter() - started) / LENGTH)
        for name, measured in times.items():
            print(f"batch {batch}: {name}, {median(measured[1:]):.1f} ms a token and batch", flush=True)


if __name__ == "__main__":
    main()
