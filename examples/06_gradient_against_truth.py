"""Measure what a classifier's gradient knows: predicted against true change of f, candidates really put into drafts.

    python examples/06_gradient_against_truth.py --prompts prompts.txt --classifier ./my-model --label friendly

For every prompt's own greedy draft, single moves are drawn at random from the LM's candidates. Each is put in, the rest
of the text left as it is, and f read again. Spearman's rank correlation, over all moves and as the mean over drafts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch

import slalom
from slalom.backbone.rollout import Limits, rollout
from slalom.constraints import classifier

PROMPTS = ["The chicken", "The city", "The last time", "The painting", "The year is 1910"]


def ranks(values: torch.Tensor) -> torch.Tensor:
    """Each value's rank."""
    return values.argsort().argsort().double()


def correlation(predicted: torch.Tensor, true: torch.Tensor) -> float:
    """Spearman's rho."""
    return torch.corrcoef(torch.stack([ranks(predicted), ranks(true)]))[0, 1].item()


def main() -> None:
    """Put moves in, compare, print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="a file with one prompt a line")
    parser.add_argument("--classifier", default="sentiment", help="a folder, a hub name or a shipped one")
    parser.add_argument("--label", default="positive")
    parser.add_argument("--moves", type=int, default=100, help="moves a draft")
    parser.add_argument("--top-k", type=int, default=50, help="candidates a position")
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one prompt and few moves, to see that it runs")
    args = parser.parse_args()
    prompts = args.prompts.read_text(encoding="utf-8").splitlines() if args.prompts else PROMPTS
    prompts, args.moves = (prompts[:1], 10) if args.quick else (prompts, args.moves)
    lm, wish = slalom.load(engine="torch"), classifier(args.classifier, args.label)
    read = lm.read([lm.encode(prompt, args.length) for prompt in prompts])
    first = rollout(lm, read, torch.arange(len(prompts)), Limits(args.length), top_k=args.top_k)
    entries = wish.candidate_scores(first.draft, first.candidates)
    before = wish.score(first.draft)
    generator = torch.Generator().manual_seed(args.seed)
    pairs = []
    for row in range(len(prompts)):
        places = torch.randint(args.length, (args.moves,), generator=generator)
        columns = torch.randint(1, first.candidates.shape[-1], (args.moves,), generator=generator)
        changed = first.draft.tokens[row].repeat(args.moves, 1)
        changed[torch.arange(args.moves), places] = first.candidates[row, places, columns]
        owners = [first.draft.prompts[row]] * args.moves
        moved = lm.draft(owners, changed, torch.full((args.moves,), args.length), torch.zeros(changed.shape))
        gain = entries[row, places, columns] - entries[row, places, 0]
        pairs.append((gain, wish.score(moved) - before[row]))
    said = {
        "classifier": args.classifier,
        "drafts": len(pairs),
        "moves": args.moves * len(pairs),
        "spearman": round(correlation(*(torch.cat(part) for part in zip(*pairs, strict=True))), 3),
        "spearman_within_drafts": round(fmean(correlation(*pair) for pair in pairs), 3),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
