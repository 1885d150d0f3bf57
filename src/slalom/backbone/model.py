"""A name, a folder or objects to a LanguageModel: encode, decode, embedding table, rollouts."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from slalom.backbone import progress, telling, weights
from slalom.backbone.engine import Engine
from slalom.backbone.engines import EngineName, engine_for
from slalom.backbone.passes import count_passes
from slalom.backbone.placement import is_settled, known_device, known_dtype, place
from slalom.backbone.rollout import Prompts
from slalom.backbone.telling import Message
from slalom.backbone.vocabulary import Vocabulary, text_reader
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Tokens

DEFAULT = "smollm2-135m-instruct"
ROLES = ("system", "user", "assistant", "tool", "developer")
NEEDS_BOS = "gemma"  # model types that write nonsense without it, and whose tokenizers made from GGUF leave it out
ANSWER = "\ue002"  # stands in a template for an answer that has begun

DeviceMap = str | dict[str, int | str | torch.device]  # accelerate's: auto, or which part goes where


class Reading(NamedTuple):
    """What the LM says before each token of continuations it was given whole."""

    hidden: torch.Tensor  # [B, n, d] float32, the states its head reads
    logits: torch.Tensor  # [B, n, V] float32


class LanguageModel:
    """An unmodified Hugging Face causal LM with its tokenizer."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        engine: EngineName = "torch",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or model.config.name_or_path or type(model).__name__
        self.engine = engine_for(model, engine)
        self.vocabulary = vocabulary or Vocabulary(
            tokenizer, model.get_input_embeddings().weight.detach(), _eos(model, tokenizer)
        )

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def context(self) -> int | None:
        """How many tokens the model can read, if its config says so."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def encode(self, text: str, length: int) -> Prompt:
        """A prompt that `length` tokens are to follow."""
        if not text.strip():
            raise SlalomError("the prompt is empty; give at least one word to continue")
        ids = text_reader(self.tokenizer, [text])(text)["input_ids"]
        bos = self.tokenizer.bos_token_id
        if bos is not None and bos not in ids[:1] and self.model.config.model_type.startswith(NEEDS_BOS):
            ids = [bos, *ids]
        return self._fitting(Prompt(text, tuple(ids)), length)

    @property
    def chats(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def tell(self, prompt: Prompt, asked: str, length: int) -> Prompt:
        """A text's prompt, with the LM asked in a sentence for what should follow.

        An instruct LM is asked by the user, and its answer begins with the prompt: the text goes on where that ends.
        Any other LM reads the sentence before the prompt.
        """
        if self.chats:
            before = self._turns_ids(telling.continuation_turns(asked, prompt.text), begun=True)
        else:
            before = list(text_reader(self.tokenizer, [asked])(f"{asked}\n\n")["input_ids"])
        own = prompt.ids[1:] if prompt.ids[:1] == (self.tokenizer.bos_token_id,) else prompt.ids
        return self._fitting(prompt._replace(ids=(*before, *own), untold_ids=prompt.ids), length)

    def tell_chat(self, prompt: Prompt, messages: list[Message], asked: str, length: int) -> Prompt:
        """A chat's prompt, with the LM asked in a sentence for what its answer should be like."""
        ids = tuple(self._turns_ids(telling.chat_turns(asked, messages)))
        return self._fitting(prompt._replace(ids=ids, untold_ids=prompt.ids), length)

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
        return self._fitting(Prompt("", tuple(self._chat_ids(messages)), messages[-1]["content"]), length)

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
        return self._fitting(Prompt(self.vocabulary.decode([ids])[0], tuple(ids)), length)

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
        """The LM's log-probability of every token of a draft and of its EOS, computed afresh in one pass: [B, n]."""
        rows = draft.tokens.tolist()
        inputs = self.pad([prompt.ids + tuple(row) for prompt, row in zip(draft.prompts, rows, strict=True)])
        positions = (inputs.mask.cumsum(-1) - 1).clamp(min=0)
        n = draft.tokens.shape[1]
        out = self.model(input_ids=inputs.ids, attention_mask=inputs.mask, position_ids=positions, logits_to_keep=n + 1)
        all_log_probs = out.logits[:, :-1].float().log_softmax(-1)
        charged = torch.arange(n, device=self.device) < (draft.lengths + draft.ended)[:, None]
        return all_log_probs.gather(-1, draft.tokens[..., None])[..., 0].masked_fill(~charged, 0.0)

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

    def _fitting(self, prompt: Prompt, length: int) -> Prompt:
        if self.context and len(prompt.ids) + length > self.context:
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
    if device is not None and device_map is not None:
        raise SlalomError("device and device_map exclude each other; give one of them")
    chosen = best_device() if device is None else known_device(device)
    precision = best_dtype(chosen) if dtype is None else known_dtype(dtype)
    weights.check_path(name)
    source = str(weights.ensure(name)) if name in weights.WEIGHTS else name
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise SlalomError(f"{name!r} is a folder without a config.json; give a model saved by save_pretrained")
    try:
        with progress.quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source)
            model = AutoModelForCausalLM.from_pretrained(source, dtype=precision, device_map=device_map)
    except (OSError, ValueError, KeyError) as error:
        choices = ", ".join(weights.language_models())
        raise SlalomError(
            f"no language model could be loaded from {name!r} ({_first_sentence(error)}); "
            f"give an embedded one ({choices}), a folder saved by save_pretrained, or a hub name this machine can reach"
        ) from error
    if device is not None and is_settled(model):
        raise SlalomError(f"{name!r} is quantised, and transformers places it; leave device out, or give a device_map")
    if device_map is None:
        place(model, chosen)
    return model, tokenizer


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


def _eos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every id that ends a text: a config may name several."""
    said: list[Any] = [model.generation_config.eos_token_id if model.generation_config else None]
    said += [model.config.get_text_config().eos_token_id, tokenizer.eos_token_id]
    flat = [token for one in said for token in (one if isinstance(one, (list, tuple)) else [one]) if token is not None]
    return tuple(dict.fromkeys(flat))


def _first_sentence(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")[:200] if str(error).strip() else type(error).__name__
