"""Labelled text to a classifier a constraint can load: a small adapter on an encoder, with a card."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from slalom.backbone import weights
from slalom.constraints.table_classifier import TableEncoder, least_squares_projection, shared_vocabulary
from slalom.training.data import Batch, Row, augment, balanced, batches, naturalise, read_rows, written_beside

TARGETS = ["query", "key", "value", "dense"]


@dataclass(frozen=True)
class ClassifierRecipe:
    """How to train a classifier."""

    labels: tuple[str, ...] = ("negative", "positive")
    body: str = "minilm-l6"
    lm: str | None = (
        None  # the LM whose embedding table is read (the paper's construction); none: the body's own tokens
    )
    start: Path | None = None  # an adapter to start from
    epochs: float = 2.0
    batch: int = 64
    learning_rate: float = 6e-4
    warmup: float = 0.06
    weight_decay: float = 0.01
    rank: int = 32
    max_tokens: int = 64
    max_words: int = 60
    balance: bool = False
    seed: int = 0


Forward = Callable[[Batch], torch.Tensor]  # a batch to class logits [B, classes]


class Model(NamedTuple):
    """What is trained, and how it reads a batch."""

    body: str
    tokenizer: PreTrainedTokenizerBase  # whose tokens the classifier reads
    adapter: PeftModel
    table: TableEncoder | None
    forward: Forward


def train_classifier(
    data: list[Path], out: Path, recipe: ClassifierRecipe, command: str, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train on the `train` split of the files, measure on every other split, save the adapter and its card to `out`."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    rows = read_rows(data, "train", recipe.max_words)
    if recipe.balance:
        rows = balanced(rows, rng)
    model = build(recipe)
    parameters = [p for p in (model.table or model.adapter).parameters() if p.requires_grad]
    say(f"{len(rows):,} rows, {sum(p.numel() for p in parameters):,} trained parameters")
    optimiser = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    total = math.ceil(recipe.epochs * len(rows) / recipe.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _linear(step, total, recipe.warmup))
    started, step, running = time.time(), 0, 0.0
    while step < total:
        for batch in batches_of(augment(rows, rng), model.tokenizer, recipe, rng):
            model.adapter.eval()  # no dropout: it costs more time on a CPU than it brings here
            loss = F.cross_entropy(model.forward(batch), batch.labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            schedule.step()
            step, running = step + 1, 0.99 * running + 0.01 * loss.item()
            if step % 100 == 0:
                left = (time.time() - started) / step * (total - step)
                say(f"step {step}/{total}  loss {running / (1 - 0.99**step):.3f}  {left / 60:.0f} min left")
            if step == total:
                break
        save(model, out)
        say(json.dumps(evaluate(model, data, recipe, most=2000)))
    card: dict[str, Any] = {
        "what": f"{'/'.join(recipe.labels)} classifier on {recipe.body}"
        + (f", reading the embedding table of {recipe.lm}" if recipe.lm else ", with its own tokenizer"),
        "labels": list(recipe.labels),
        "body": recipe.body,
        "lm": recipe.lm,
        "data": [path.name for path in data],
        "rows": len(rows),
        "command": command,
        "recipe": {
            name: value for name, value in asdict(recipe).items() if name not in ("labels", "body", "lm", "start")
        },
        "minutes": round((time.time() - started) / 60, 1),
        "accuracy": evaluate(model, data, recipe),
    }
    save(model, out, card)
    return card


def build(recipe: ClassifierRecipe) -> Model:
    """The encoder with a fresh (or a given) adapter, behind the LM's table if the recipe names an LM."""
    folder = weights.ensure(recipe.body)
    own = AutoTokenizer.from_pretrained(folder)
    names = dict(enumerate(recipe.labels))
    body = AutoModelForSequenceClassification.from_pretrained(
        folder,
        num_labels=len(names),
        id2label=names,
        label2id={name: i for i, name in names.items()},
        dtype=torch.float32,
    )
    if recipe.start:
        adapter = PeftModel.from_pretrained(body, recipe.start, is_trainable=True)
    else:
        config = LoraConfig(
            task_type="SEQ_CLS",
            r=recipe.rank,
            lora_alpha=2 * recipe.rank,
            target_modules=TARGETS,
            exclude_modules=r".*pooler.*",
            modules_to_save=["pooler", "classifier"],
        )
        adapter = get_peft_model(body, config)
    if recipe.lm is None:
        return Model(
            recipe.body,
            own,
            adapter,
            None,
            lambda batch: adapter(input_ids=batch.ids, attention_mask=batch.mask).logits,
        )

    lm_folder = weights.ensure(recipe.lm) if recipe.lm in weights.WEIGHTS else recipe.lm
    lm_tokens = AutoTokenizer.from_pretrained(lm_folder)
    lm_table = (
        AutoModelForCausalLM.from_pretrained(lm_folder, dtype=torch.float32).get_input_embeddings().weight.detach()
    )
    clf_table = adapter.get_input_embeddings().weight.detach()
    projection = least_squares_projection(lm_table, clf_table, *shared_vocabulary(lm_tokens, own))
    table = TableEncoder(adapter, own, projection)
    return Model(recipe.body, lm_tokens, adapter, table, lambda batch: table(lm_table[batch.ids], batch.mask))


def batches_of(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, recipe: ClassifierRecipe, rng: random.Random
) -> Iterator[Batch]:
    """Rows to batches of the classifier's tokens."""
    encoded = tokenizer([row.text for row in rows], truncation=True, max_length=recipe.max_tokens)["input_ids"]
    return batches(encoded, [row.label for row in rows], recipe.batch, rng)


@torch.inference_mode()
def evaluate(model: Model, data: list[Path], recipe: ClassifierRecipe, most: int | None = None) -> dict[str, float]:
    """Accuracy on the held-out rows of every file, as they are and as people write them."""
    model.adapter.eval()
    accuracy = {}
    for path in data:
        held_out = read_rows([path], "test", recipe.max_words) or read_rows([path], "dev", recipe.max_words)
        natural = [row._replace(text=naturalise(row.text, random.Random(0))) for row in held_out]
        for style, rows in (("as it is", held_out[:most]), ("as written by people", natural[:most])):
            right = sum(
                int((model.forward(batch).argmax(-1) == batch.labels).sum())
                for batch in batches_of(rows, model.tokenizer, recipe, random.Random(0))
            )
            if rows:
                accuracy[f"{path.name.split('.')[0]}, {style}"] = round(right / len(rows), 4)
    return accuracy


def save(model: Model, out: Path, card: dict[str, Any] | None = None) -> None:
    """Adapter, projection (both in float16) and card into a folder written beside its place and renamed into it."""
    with written_beside(out) as beside:
        model.adapter.peft_config["default"].base_model_name_or_path = model.body
        model.adapter.save_pretrained(beside)
        (beside / "README.md").unlink(missing_ok=True)  # peft's empty model card
        adapter = beside / "adapter_model.safetensors"
        save_file({name: tensor.half() for name, tensor in load_file(adapter).items()}, adapter)
        if model.table is not None:
            save_file(
                {"projection": model.table.projection.detach().half().contiguous()}, beside / "projection.safetensors"
            )
        if card is not None:
            (beside / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def _linear(step: int, total: int, warmup: float) -> float:
    ramp = max(1, int(warmup * total))
    return step / ramp if step < ramp else max(0.0, (total - step) / max(1, total - ramp))
