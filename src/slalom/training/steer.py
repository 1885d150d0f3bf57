"""Labelled text to LM-Steer's matrices for a language model: a small file a sampler can load, with a card."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slalom.backbone.model import load_parts
from slalom.backbone.names import DEFAULT
from slalom.backbone.steering import Steers, hidden_size, steering
from slalom.errors import SlalomError
from slalom.training.data import Batch, Example, augment, balanced, batches, read_rows, written_beside

INITIAL_STD = 0.01  # of the matrices' entries, as in the original
HELD_OUT = 128  # texts of every label that are measured

Watch = Callable[[int, float], None]  # the step and the running loss


@dataclass(frozen=True)
class SteerRecipe:
    """How to train a steer. The original has rank 1000 and epsilon 0.001, on GPT-2 large."""

    labels: tuple[str, ...] = ("negative", "positive")  # the first is steered to by -1, the last by +1
    lm: str = DEFAULT
    rank: int = 64
    epsilon: float = 1e-3
    steps: int = 1000
    batch: int = 32
    learning_rate: float = 1e-2
    regularisation: float = 1e-6
    max_words: int = 60
    max_tokens: int = 64
    balance: bool = False
    seed: int = 0


def train_steer(
    data: list[Path],
    out: Path,
    recipe: SteerRecipe,
    command: str,
    say: Callable[[str], None] = print,
    watch: Watch = lambda step, loss: None,
) -> dict[str, Any]:
    """Train on the `train` split of the files, measure on the held-out one, save matrices and card to `out`."""
    check(recipe)
    rng = random.Random(recipe.seed)
    rows = read_labelled(data, "train", recipe)
    if recipe.balance:
        rows = balanced(rows, rng)
    if not rows:
        raise SlalomError(
            f"no row of split 'train' has at most {recipe.max_words} words; give some, or more --max-words"
        )
    model, tokenizer = load_parts(recipe.lm)
    model = model.eval().requires_grad_(False)
    steers = fresh(hidden_size(model), recipe, model.device)
    say(f"{len(rows):,} rows, {steers.down.numel() + steers.up.numel():,} trained parameters")
    started = time.time()
    fit(model, steers, endless(rows, tokenizer, recipe, rng), recipe, watch)
    minutes = (time.time() - started) / 60
    say(f"{recipe.steps:,} steps in {minutes:.1f} min; measuring")
    card: dict[str, Any] = {
        "what": f"LM-Steer from {recipe.labels[0]} (-1) to {recipe.labels[-1]} (+1), before the head of {recipe.lm}",
        "labels": list(recipe.labels),
        "lm": recipe.lm,
        "epsilon": recipe.epsilon,
        "data": [path.name for path in data],
        "rows": len(rows),
        "command": command,
        "recipe": {name: value for name, value in asdict(recipe).items() if name not in ("labels", "lm", "epsilon")},
        "minutes": round(minutes, 1),
        "next_token_loss": measure(model, tokenizer, steers, data, recipe),
    }
    save(steers, out, card)
    return card


def check(recipe: SteerRecipe) -> None:
    """Refuse a recipe that cannot be followed."""
    if len(recipe.labels) < 2:
        raise SlalomError(
            f"labels are {', '.join(recipe.labels) or 'none'}; a steer needs at least two, comma-separated"
        )
    for name, least in (("rank", 1), ("steps", 1), ("batch", 1), ("max_tokens", 2), ("regularisation", 0), ("seed", 0)):
        value = getattr(recipe, name)
        if value < least:
            raise SlalomError(f"{name.replace('_', '-')} is {value:g}; it must be at least {least}")
    for name in ("learning_rate", "epsilon"):
        if not getattr(recipe, name) > 0:
            raise SlalomError(f"{name.replace('_', '-')} is {getattr(recipe, name):g}; it must be above 0")


def read_labelled(data: list[Path], split: str, recipe: SteerRecipe) -> list[Example]:
    """The rows of a split, every label a known one."""
    rows = read_rows(data, (split,), recipe.max_words)
    for row in rows:
        if not 0 <= row.label < len(recipe.labels):
            raise SlalomError(
                f"{row.source.split(':')[0]} has a row of label {row.label}; "
                f"with labels {', '.join(recipe.labels)} it must be between 0 and {len(recipe.labels) - 1}"
            )
    return rows


def fresh(width: int, recipe: SteerRecipe, device: torch.device) -> Steers:
    """Two steers to train: the attribute, and the dummy that takes up what all the texts have in common."""
    generator = torch.Generator().manual_seed(recipe.seed)
    down, up = (INITIAL_STD * torch.randn(2, width, recipe.rank, generator=generator).to(device) for _ in range(2))
    return Steers(down.requires_grad_(), up.requires_grad_(), recipe.epsilon)


def fit(model: PreTrainedModel, steers: Steers, data: Iterator[Batch], recipe: SteerRecipe, watch: Watch) -> None:
    """Train the matrices in place, so that the frozen LM with them likes each text under its own label."""
    optimiser = torch.optim.Adam([steers.down, steers.up], lr=recipe.learning_rate)
    running = 0.0
    for step in range(1, recipe.steps + 1):
        batch = next(data)
        loss = next_token_losses(model, steers, batch, values_of(batch.labels, len(recipe.labels))).mean()
        penalty = recipe.regularisation * (steers.down.square().sum() + steers.up.square().sum())
        optimiser.zero_grad(set_to_none=True)
        (loss + penalty).backward()
        optimiser.step()
        running = 0.99 * running + 0.01 * loss.item()
        watch(step, running / (1 - 0.99**step))


def values_of(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Labels 0 to count - 1 as v: the attribute's value in [-1, 1], and the dummy's, always 1: [B, 2]."""
    attribute = 2 * labels.float() / (count - 1) - 1
    return torch.stack([attribute, torch.ones_like(attribute)], dim=-1)


def next_token_losses(model: PreTrainedModel, steers: Steers, batch: Batch, values: torch.Tensor) -> torch.Tensor:
    """Minus the steered LM's log-probability of every token that follows another one; padding is left out: [N]."""
    ids, mask, values = (tensor.to(model.device) for tensor in (batch.ids, batch.mask, values))
    # The LM is frozen, so autograd's graph begins at its head's input: nothing of the body is kept.
    with steering(model, lambda hidden: steers.change(hidden, values)):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    real = mask[:, 1:].bool()
    return F.cross_entropy(logits[real].float(), ids[:, 1:][real], reduction="none")


def encode(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> list[list[int]]:
    """The LM's tokens of every text, cut."""
    return tokenizer(texts, truncation=True, max_length=max_tokens)["input_ids"]


def endless(
    rows: list[Example], tokenizer: PreTrainedTokenizerBase, recipe: SteerRecipe, rng: random.Random
) -> Iterator[Batch]:
    """Batches for as long as they are asked for, in a new order each time round; texts of one token are left out."""
    while True:
        encoded = encode([row.text for row in augment(rows, rng)], tokenizer, recipe.max_tokens)
        long = [number for number, ids in enumerate(encoded) if len(ids) > 1]
        if not long:
            raise SlalomError("no training text has two tokens or more; there is no next token to learn from")
        yield from batches([encoded[i] for i in long], [rows[i].label for i in long], recipe.batch, rng)


@torch.inference_mode()
def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, steers: Steers, data: list[Path], recipe: SteerRecipe
) -> dict[str, dict[str, float]]:
    """The next-token loss of held-out texts of every label, without the steer and steered to every label."""
    held_out = read_labelled(data, "test", recipe) or read_labelled(data, "dev", recipe)
    random.Random(0).shuffle(held_out)
    count = len(recipe.labels)
    values = {"unsteered": torch.zeros(1, 2), "dummy alone": torch.tensor([[0.0, 1.0]])}
    values |= {f"steered to {name}": values_of(torch.tensor([i]), count) for i, name in enumerate(recipe.labels)}
    found = {}
    for label, name in enumerate(recipe.labels):
        texts = [row.text for row in held_out if row.label == label][:HELD_OUT]
        encoded = [ids for ids in encode(texts, tokenizer, recipe.max_tokens) if len(ids) > 1]
        if encoded:
            rows = list(batches(encoded, [label] * len(encoded), recipe.batch, random.Random(0)))
            found[f"{name} texts"] = {
                how: round(
                    torch.cat([next_token_losses(model, steers, batch, value) for batch in rows]).mean().item(), 4
                )
                for how, value in values.items()
            }
    return found


def save(steers: Steers, out: Path, card: dict[str, Any]) -> None:
    """The matrices in float16 and the card, in a folder written beside its place and renamed into it."""
    with written_beside(out) as beside:
        tensors = {"down": steers.down, "up": steers.up}
        save_file(
            {name: tensor.detach().half().cpu().contiguous() for name, tensor in tensors.items()},
            beside / "steer.safetensors",
        )
        (beside / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
