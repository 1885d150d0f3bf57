"""Labelled text to a classifier a constraint can load: a small adapter on an encoder, with a card."""

from __future__ import annotations

import json
import math
import random
import time
from collections import defaultdict
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

from slalom.backbone import progress, weights
from slalom.backbone.model import best_dtype
from slalom.constraints.table_classifier import TableEncoder, least_squares_projection, shared_vocabulary
from slalom.errors import SlalomError
from slalom.training.data import (
    Batch,
    Example,
    Label,
    augment,
    balanced,
    batches,
    naturalise,
    read_rows,
    written_beside,
)

TARGETS = ["query", "key", "value", "dense", "q", "k", "v", "o"]  # BERT's and MPNet's names


@dataclass(frozen=True)
class ClassifierRecipe:
    """How to train a classifier."""

    labels: tuple[str, ...] = ("negative", "positive")
    body: str = "minilm-l6"
    lm: str | None = (
        None  # the LM whose embedding table is read (the paper's construction); none: the body's own tokens
    )
    start: Path | None = None  # an adapter to start from
    split: str = "train"  # the split trained on; what is measured comes from all others
    rows: int | None = None  # draw at most so many
    layers: int | None = None  # adapt the last so many layers only: below them nothing is differentiated
    epochs: float = 2.0
    batch: int = 64
    learning_rate: float = 6e-4
    warmup: float = 0.06
    weight_decay: float = 0.01
    rank: int = 32
    dropout: float = 0.0  # costs time on a CPU; worth it where rows are few and seen several times
    max_tokens: int = 64
    max_words: int = 60
    balance: bool = False
    held_out: int = 4000  # measure on at most so many rows of each source
    seed: int = 0
    calibration: str = "calibration"  # the split its temperature is fitted on, if there is one; not measured either


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
    """Train on one split of the files, measure on every other split, save the adapter and its card to `out`."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    rows = training_rows(data, recipe, rng)
    model = build(recipe)
    parameters = [p for p in (model.table or model.adapter).parameters() if p.requires_grad]
    say(f"{len(rows):,} rows, {sum(p.numel() for p in parameters):,} trained parameters")
    optimiser = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    total = math.ceil(recipe.epochs * len(rows) / recipe.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _linear(step, total, recipe.warmup))
    started, step, running = time.time(), 0, 0.0
    while step < total:
        for batch in batches_of(augment(rows, rng), model.tokenizer, recipe, rng, shares=True):
            model.adapter.train(recipe.dropout > 0)
            with torch.autocast("cpu", torch.bfloat16, enabled=best_dtype(torch.device("cpu")) == torch.bfloat16):
                loss = F.cross_entropy(model.forward(batch).float(), batch.labels)
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
        if step < total:
            save(model, out)
            say(json.dumps(measure_held_out(model, data, recipe, most=300).accuracy))
    calibration = calibrate(model, data, recipe)
    measured = measure_held_out(model, data, recipe)
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
        "temperature": calibration and calibration.temperature,
        "sure": calibration and calibration.sure,
        "accuracy": measured.accuracy,
        "calibration_error": measured.calibration_error,
    }
    if len(recipe.labels) == 2:
        card["mcc"] = measured.mcc
    save(model, out, card)
    return card


def training_rows(data: list[Path], recipe: ClassifierRecipe, rng: random.Random) -> list[Example]:
    """What is trained on: one split of the files, balanced and thinned as the recipe says."""
    rows = read_rows(data, (recipe.split,), recipe.max_words)
    if not rows:
        raise SlalomError(
            f"no row of {', '.join(path.name for path in data)} is of the split {recipe.split!r} "
            f"and of at most {recipe.max_words} words"
        )
    if recipe.balance:
        rows = balanced(rows, rng)
    return rng.sample(rows, recipe.rows) if recipe.rows and recipe.rows < len(rows) else rows


def build(recipe: ClassifierRecipe) -> Model:
    """The encoder with a fresh (or a given) adapter, behind the LM's table if the recipe names an LM."""
    folder = weights.ensure(recipe.body)
    own = AutoTokenizer.from_pretrained(folder)
    names = dict(enumerate(recipe.labels))
    with progress.quiet_transformers():
        body = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(names),
            id2label=names,
            label2id={name: i for i, name in names.items()},
            dtype=torch.float32,
        )
    for module in body.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = recipe.dropout
    if recipe.start:
        adapter = PeftModel.from_pretrained(body, recipe.start, is_trainable=True)
    else:
        adapter = get_peft_model(body, lora(recipe, body.config.num_hidden_layers))
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


def lora(recipe: ClassifierRecipe, depth: int) -> LoraConfig:
    """The adapter's shape: low-rank additions to the chosen layers, and a head of its own."""
    chosen = depth if recipe.layers is None else recipe.layers
    if not 1 <= chosen <= depth:
        raise SlalomError(f"layers is {chosen}; {recipe.body} has 1 to {depth} to adapt")
    return LoraConfig(
        task_type="SEQ_CLS",
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        target_modules=TARGETS,
        layers_to_transform=list(range(depth - chosen, depth)),
        layers_pattern="layer",
        exclude_modules=r".*(pooler|classifier).*",
        modules_to_save=["pooler", "classifier"],
        lora_dropout=recipe.dropout,
    )


def batches_of(
    rows: list[Example],
    tokenizer: PreTrainedTokenizerBase,
    recipe: ClassifierRecipe,
    rng: random.Random,
    shares: bool = False,
) -> Iterator[Batch]:
    """Rows to batches of the classifier's tokens, each with its label or the `shares` of all labels."""
    encoded = tokenizer([row.text for row in rows], truncation=True, max_length=recipe.max_tokens)["input_ids"]
    labels: list[Label] = [row.label for row in rows]
    if shares:
        labels = [row.shares or one_hot(row.label, len(recipe.labels)) for row in rows]
    return batches(encoded, labels, recipe.batch, rng)


def one_hot(label: int, classes: int) -> tuple[float, ...]:
    """The shares of a row that is all of one label."""
    return tuple(float(number == label) for number in range(classes))


class Calibration(NamedTuple):
    """What the calibration rows say of a classifier."""

    temperature: float  # its head was divided by
    sure: dict[str, float]  # a label → the least probability from which on that verdict is right 19 times of 20


RIGHT = 0.95  # of the verdicts that a classifier is sure of
FEW = 20  # verdicts are too few to tell


@torch.inference_mode()
def calibrate(model: Model, data: list[Path], recipe: ClassifierRecipe) -> Calibration | None:
    """Divide the head by the temperature that makes the calibration rows likeliest; none where there are no such rows.

    Afterwards the classifier's own probabilities are calibrated: nobody who loads it needs to know the temperature.
    """
    rows = read_rows(data, (recipe.calibration,), recipe.max_words)
    if not rows:
        return None
    logits, true = predictions(model, rows, recipe)
    temperatures = torch.logspace(-0.7, 0.7, 141)  # 0.2 to 5
    losses = [F.cross_entropy(logits / temperature, true).item() for temperature in temperatures]
    temperature = temperatures[losses.index(min(losses))].item()
    heads = [module for name, module in model.adapter.named_modules() if "modules_to_save" in name]
    last = [module for module in heads if isinstance(module, torch.nn.Linear)][-1]
    last.weight.div_(temperature)
    last.bias.div_(temperature)
    probabilities = (logits / temperature).softmax(-1)
    sure = {name: sure_from(probabilities[:, label], true == label) for label, name in enumerate(recipe.labels)}
    return Calibration(round(temperature, 3), sure)


def sure_from(probabilities: torch.Tensor, right: torch.Tensor) -> float:
    """The least probability of a label [rows] from which on it is right (bool [rows]) often enough; 0.99 if none is."""
    for percent in range(50, 99):
        above = probabilities >= percent / 100
        if above.sum() >= FEW and right[above].float().mean() >= RIGHT:
            return percent / 100
    return 0.99


class Measured(NamedTuple):
    """What a classifier gets right on each held-out set, by its name."""

    accuracy: dict[str, float]
    mcc: dict[str, float]  # Matthews correlation, of two labels: 0 for guessing, however unequal the classes
    calibration_error: dict[str, float]


@torch.inference_mode()
def measure_held_out(model: Model, data: list[Path], recipe: ClassifierRecipe, most: int | None = None) -> Measured:
    """What is measured on held-out rows of every source of every file, as they are and as people write them."""
    measured = Measured({}, {}, {})
    held_out = defaultdict(list)
    for row in read_rows(data, (recipe.split, recipe.calibration), recipe.max_words, other=True):
        file, _, source = row.source.partition(":")
        held_out[file.split(".")[0] + (f" {source}" if source else "")].append(row)
    for source, rows in held_out.items():
        some = random.Random(0).sample(rows, min(len(rows), recipe.held_out, most or recipe.held_out))
        natural = [row._replace(text=naturalise(row.text, random.Random(0))) for row in some]
        for style, shown in (("as it is", some), ("as written by people", natural)):
            logits, true = predictions(model, shown, recipe)
            name, predicted = f"{source}, {style}", logits.argmax(-1)
            measured.accuracy[name] = round((predicted == true).float().mean().item(), 4)
            measured.mcc[name] = round(matthews(predicted, true), 4)
            measured.calibration_error[name] = round(calibration_error(logits.softmax(-1), true), 4)
    return measured


def predictions(model: Model, rows: list[Example], recipe: ClassifierRecipe) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, classes] and true labels [rows], in some order, without dropout."""
    model.adapter.eval()
    pairs = [
        (model.forward(batch).float(), batch.labels)
        for batch in batches_of(rows, model.tokenizer, recipe, random.Random(0))
    ]
    logits, true = zip(*pairs, strict=True)
    return torch.cat(logits), torch.cat(true)


def calibration_error(probabilities: torch.Tensor, true: torch.Tensor, bins: int = 10) -> float:
    """Expected calibration error: |confidence - accuracy| in equal bins of confidence, weighed by their rows."""
    confidence, predicted = probabilities.max(-1)
    right = (predicted == true).float()
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    gaps = [(confidence - right)[bin_of == number].sum().abs() for number in range(bins)]
    return torch.stack(gaps).sum().item() / len(true)


def matthews(predicted: torch.Tensor, true: torch.Tensor) -> float:
    """The correlation of two labels' predictions with the truth; 0 if either is constant."""
    both = torch.stack([predicted, true]).double()
    correlation = torch.corrcoef(both)[0, 1].item()
    return 0.0 if math.isnan(correlation) else correlation


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
