"""A name, a folder or objects to a LanguageModel: encode, decode, embedding table, rollouts."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jinja2 import TemplateError

from slalom.backbone import progress, telling, weights
from slalom.backbone.engine import Engine
from slalom.backbone.engines import engine_for, has_openvino
from slalom.backbone.names import EngineName
from slalom.backbone.passes import count_passes
from slalom.backbone.placement import is_settled, known_device, known_dtype, place
from slalom.backbone.rollout import Prompts
from slalom.backbone.saved import Facts, SavedModel, is_quantised, known_as, read_tokenizer
from slalom.backbone.telling import Message
from slalom.backbone.vocabulary import LaterTable, Vocabulary, text_reader
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ROLES = ("system", "user", "assistant", "tool", "developer")
NEEDS_BOS = "gemma"  # model types that write nonsense without it, and whose tokenizers made from GGUF leave it out
ANSWER = "\ue002"  # stands in a template for an answer that has begun

DeviceMap = str | dict[str, int | str | torch.device]  # accelerate's: auto, or which part goes where


class Reading(NamedTuple):
    """What the LM says before each token of continuations it was given whole."""

    hidden: torch.Tensor  # [B, n, d] float32, the states its head reads
    logits: torch.Tensor  # [B, n, V] float32


class LanguageModel:
    """An unmodified Hugging Face causal LM with its tokenizer.

    A saved model's weights are read when an engine, or anything else, first asks for `model`.
    """

    def __init__(
        self,
        model: PreTrainedModel | SavedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        engine: EngineName = "torch",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._given = model if isinstance(model, SavedModel) else model.eval()
        self.tokenizer = tokenizer
        self.name = name or known_as(model)
        self.engine = engine_for(model, engine)
        self.vocabulary = vocabulary or Vocabulary(tokenizer, self._embeddings(), self._eos())

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, in evaluation mode."""
        return self._given.model if isinstance(self._given, SavedModel) else self._given

    @property
    def facts(self) -> Facts:
        """What its config says."""
        given = self._given
        return given.facts if isinstance(given, SavedModel) else Facts.of(given.config, given.generation_config)

    def _embeddings(self) -> torch.Tensor | LaterTable:
        """The input table, or what is known of it before the weights are read."""
        if not isinstance(self._given, SavedModel):
            return self._given.get_input_embeddings().weight.detach()
        return LaterTable(self.facts.vocabulary, self.device, lambda: self.model.get_input_embeddings().weight.detach())

    def _eos(self) -> tuple[int, ...]:
        """Every id that ends a text: the tokenizer's too."""
        own = self.tokenizer.eos_token_id
        return tuple(dict.fromkeys([*self.facts.eos, *([] if own is None else [own])]))

    @property
    def device(self) -> torch.device:
        return self._given.device

    @property
    def dtype(self) -> torch.dtype:
        return self._given.dtype

    @property
    def context(self) -> int | None:
        """How many tokens the model can read, if its config says so."""
        return self.facts.context

    def encode(self, text: str, length: int) -> Prompt:
        """A prompt that `length` tokens are to follow."""
        if not text.strip():
            raise SlalomError("the prompt is empty; give at least one word to continue")
        return self.fitting(Prompt(text, tuple(self._read_ids(text))), length)

    def _read_ids(self, text: str) -> list[int]:
        """A text's tokens as the LM should read them from its beginning."""
        ids = text_reader(self.tokenizer, [text])(text)["input_ids"]
        bos = self.tokenizer.bos_token_id
        missing = bos is not None and bos not in ids[:1] and self.facts.model_type.startswith(NEEDS_BOS)
        return [bos, *ids] if missing else ids

    @property
    def chats(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def tell(self, prompt: Prompt, asked: str) -> Prompt:
        """A text's prompt, with the LM told in a sentence what should follow.

        An instruct LM is asked by the user, and its answer begins with the prompt: the text goes on where that ends.
        Any other LM reads the sentence as a heading, and the prompt below it.
        """
        if self.chats:
            before = self._turns_ids(telling.continuation_turns(asked, prompt.text), begun=True)
        else:
            before = self._read_ids(f"{asked}\n\n")
        own = prompt.ids[1:] if prompt.ids[:1] == (self.tokenizer.bos_token_id,) else prompt.ids
        return prompt._replace(ids=(*before, *own), untold_ids=prompt.ids)

    def tell_chat(self, prompt: Prompt, messages: list[Message], asked: str) -> Prompt:
        """A chat's prompt, with the LM asked in a sentence for what its answer should be like."""
        ids = tuple(self._turns_ids(telling.chat_turns(asked, messages)))
        return prompt._replace(ids=ids, untold_ids=prompt.ids)

    def _turns_ids(self, turns: list[Message], begun: bool = False) -> list[int]:
        """Chat turns, the first a system message, by a template that may know no such thing."""
        try:
            return self._chat_ids(turns, begun)
        except SlalomError:
            return self._chat_ids(telling.without_system(turns), begun)

    def encode_chat(self, messages: list[Message], length: int) -> Prompt:
        """What was said in a chat, to be answered in at most `length` tokens."""
        if not self.chats:
            raise SlalomError(f"{self.name} has no chat template; continue a plain text, or take an instruct model")
        if not messages or not messages[-1].get("content", "").strip():
            raise SlalomError("the message is empty; say something to be answered")
        for message in messages:
            if message.get("role") not in ROLES:
                raise SlalomError(f"a message has the role {message.get('role')!r}; choose from {', '.join(ROLES)}")
        return self.fitting(Prompt("", tuple(self._chat_ids(messages)), messages[-1]["content"]), length)

    def _chat_ids(self, messages: list[Message], begun: bool = False) -> list[int]:
        """A chat as the model's template writes it, up to its answer, or (`begun`) to where words of it may stand.

        What was said is read as text, even if it spells a control token: such contents are put in after the template
        was filled, each with tokens of its own.
        """
        contents = [message.get("content", "") for message in messages]
        careful = text_reader(self.tokenizer, contents) is not self.tokenizer
        slots = [f"\ue000{number}\ue001" for number in range(len(messages))] if careful else contents
        filled = [{**message, "content": slot} for message, slot in zip(messages, slots, strict=True)]
        if begun:
            filled.append({"role": "assistant", "content": ANSWER})
        how = {"continue_final_message": True} if begun else {"add_generation_prompt": True}
        try:
            written = self.tokenizer.apply_chat_template(filled, tokenize=False, **how).removesuffix(ANSWER)
        except (TemplateError, KeyError, ValueError) as error:
            raise SlalomError(f"{self.name}'s chat template refuses the messages ({_first_sentence(error)})") from error
        if not careful:
            return self.tokenizer(written, add_special_tokens=False)["input_ids"]
        parts = re.split("\ue000(\\d+)\ue001", written)  # the template's own text and the numbers of contents in turn
        ids: list[int] = []
        for template, number in itertools.zip_longest(parts[::2], parts[1::2]):
            ids += self.tokenizer(template, add_special_tokens=False)["input_ids"]
            ids += [] if number is None else self.vocabulary.pieces(contents[int(number)])
        return ids

    def prompt(self, ids: list[int], length: int) -> Prompt:
        """The same from tokens."""
        return self.fitting(Prompt(self.vocabulary.decode([ids])[0], tuple(ids)), length)

    @torch.inference_mode()
    def read(self, prompts: list[Prompt], engine: Engine | None = None) -> Prompts:
        """Different prompts, read once by the engine, or by another one."""
        return Prompts(prompts, (engine or self.engine).prefill(self.pad([prompt.ids for prompt in prompts])))

    def draft(
        self,
        prompts: list[Prompt],
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        log_probs: torch.Tensor,
        ended: torch.Tensor | None = None,
    ) -> Draft:
        """Tokens with their texts; none has ended by itself unless it is said."""
        ended = torch.zeros_like(lengths, dtype=torch.bool) if ended is None else ended
        rows = [row[:end] for row, end in zip(tokens.tolist(), lengths.tolist(), strict=True)]
        texts = self.vocabulary.continuations(prompts, rows)
        return Draft(self.vocabulary, prompts, tokens, lengths, texts, log_probs, ended)

    @torch.inference_mode()
    def log_probs(self, draft: Draft) -> torch.Tensor:
        """The LM's log-probability of every token of a draft and of its EOS, computed afresh by its engine: [B, n]."""
        ends = draft.lengths + draft.ended
        found = self.engine.log_probs(self.pad([prompt.ids for prompt in draft.prompts]), draft.tokens, ends)
        charged = torch.arange(draft.tokens.shape[1], device=self.device) < ends[:, None]
        return found.masked_fill(~charged, 0.0)

    @torch.inference_mode()
    def likeliest(self, prompt: Prompt, words: list[str]) -> str:
        """Of several words the one the LM, told nothing, finds likeliest to follow a prompt, by a token's mean."""
        plain, pad = prompt.untold, self.vocabulary.pad
        pieces = [self.vocabulary.pieces(f" {word}") for word in words]
        longest = max(map(len, pieces))
        tokens = torch.tensor([own + [pad] * (longest - len(own)) for own in pieces], device=self.device)
        lengths = torch.tensor([len(own) for own in pieces], device=self.device)
        draft = self.draft([plain] * len(words), tokens, lengths, torch.zeros_like(tokens, dtype=torch.float))
        means = self.log_probs(draft).sum(-1) / lengths
        return words[int(means.argmax())]

    @torch.no_grad()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens as the model's inputs, [B, n, d] float32, no part of any graph."""
        return self.model.get_input_embeddings()(tokens).float()

    def continued(self, prompts: list[Prompt], embeddings: torch.Tensor) -> Reading:
        """Continuations given as inputs [B, n, d], read in one pass of the model itself; differentiable in them."""
        before = self.pad([prompt.ids for prompt in prompts])
        n = embeddings.shape[1]
        count_passes(len(prompts), n)
        mask = torch.cat([before.mask, before.mask.new_ones(len(prompts), n)], dim=1)
        out = self.model(
            inputs_embeds=torch.cat([self.embed(before.ids), embeddings], dim=1).to(self.dtype),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            logits_to_keep=n + 1,
            output_hidden_states=True,
        )
        return Reading(out.hidden_states[-1][:, -n - 1 : -1].float(), out.logits[:, :-1].float())

    def has_room(self, prompt: Prompt, length: int) -> bool:
        """Whether the LM can read so long a prompt and as many tokens more."""
        return not self.context or len(prompt.ids) + length <= self.context

    def fitting(self, prompt: Prompt, length: int) -> Prompt:
        """The prompt, if there is room for it."""
        if not self.has_room(prompt, length):
            raise SlalomError(
                f"the prompt has {len(prompt.ids)} tokens and {length} more are asked for, "
                f"but {self.name} reads at most {self.context}; shorten the prompt or the length"
            )
        return prompt

    def pad(self, rows: list[tuple[int, ...]]) -> Tokens:
        """Prompts of different lengths as one left-padded batch."""
        longest = max(map(len, rows))
        ids = [[self.vocabulary.pad] * (longest - len(row)) + list(row) for row in rows]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
        return Tokens(torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device))


class _Source(NamedTuple):
    """Where a model lies, and what is asked of it."""

    name: str
    path: str  # a folder, or a hub name
    dtype: torch.dtype
    device: torch.device
    device_map: DeviceMap | None
    settles: bool  # whether a quantised model may stay where transformers puts it

    def tokenizer(self) -> PreTrainedTokenizerBase:
        with _load_errors(self.name), progress.quiet_transformers():
            return read_tokenizer(self.path)

    def model(self) -> PreTrainedModel:
        from transformers import AutoModelForCausalLM

        with _load_errors(self.name), progress.quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(self.path, dtype=self.dtype, device_map=self.device_map)
        if not self.settles and is_settled(model):
            raise SlalomError(
                f"{self.name!r} is quantised, and transformers places it; leave device out, or give a device_map"
            )
        if self.device_map is None:
            place(model, self.device)
        return model

    def saved(self) -> SavedModel | None:
        """The model left on disk, if it is a folder to run on the CPU that torch may change as it likes."""
        folder = Path(self.path)
        if self.device.type != "cpu" or self.device_map is not None or not folder.is_dir():
            return None
        with _load_errors(self.name), progress.quiet_transformers():
            saved = SavedModel(folder, self.dtype, self.model)
            return (
                None if is_quantised(folder) or not saved.facts else saved
            )  # a config that cannot be read is told now


def load_parts(
    name: str,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: DeviceMap | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An embedded model, a local folder or a hub name to a model and its tokenizer.

    It goes to the device, to the best one if none is given; a quantised one stays where transformers puts it, and one
    with a device map (accelerate's: auto, say) where that says.
    """
    source = _source(name, dtype, device, device_map)
    tokenizer = source.tokenizer()
    return source.model(), tokenizer


def open_parts(
    name: str,
    dtype: str | torch.dtype | None,
    device: str | torch.device | None,
    device_map: DeviceMap | None,
    engine: EngineName,
) -> tuple[PreTrainedModel | SavedModel, PreTrainedTokenizerBase]:
    """The same, but the weights stay on disk until they are asked for where the engine may do without them."""
    source = _source(name, dtype, device, device_map)
    tokenizer = source.tokenizer()
    saved = source.saved() if engine != "torch" and has_openvino() else None
    return saved or source.model(), tokenizer


def _source(
    name: str, dtype: str | torch.dtype | None, device: str | torch.device | None, device_map: DeviceMap | None
) -> _Source:
    """What was asked for, checked; an embedded model is fetched first."""
    if device is not None and device_map is not None:
        raise SlalomError("device and device_map exclude each other; give one of them")
    chosen = best_device() if device is None else known_device(device)
    precision = best_dtype(chosen) if dtype is None else known_dtype(dtype)
    weights.check_path(name)
    path = str(weights.ensure(name)) if name in weights.WEIGHTS else name
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise SlalomError(f"{name!r} is a folder without a config.json; give a model saved by save_pretrained")
    return _Source(name, path, precision, chosen, device_map, settles=device is None)


@contextlib.contextmanager
def _load_errors(name: str) -> Iterator[None]:
    """What transformers says of a model it cannot load, in a sentence with the choices."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        choices = ", ".join(weights.language_models())
        raise SlalomError(
            f"no language model could be loaded from {name!r} ({_first_sentence(error)}); "
            f"give an embedded one ({choices}), a folder saved by save_pretrained, or a hub name this machine can reach"
        ) from error


def best_device() -> torch.device:
    """The GPU if there is one that CUDA drives. Apple's is taken when asked for: nobody has run this on one yet."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def best_dtype(device: torch.device) -> torch.dtype:
    """What `SLALOM_DTYPE` says; else bfloat16 where the hardware multiplies it, float32 elsewhere (faster there)."""
    if forced := os.environ.get("SLALOM_DTYPE"):
        return known_dtype(forced)
    native = torch.cuda.is_bf16_supported() if device.type == "cuda" else _cpu_multiplies_bfloat16()
    return torch.bfloat16 if native else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for it (AVX-512 alone does not); no where this torch cannot tell."""
    asked: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(asked.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _first_sentence(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")[:200] if str(error).strip() else type(error).__name__
