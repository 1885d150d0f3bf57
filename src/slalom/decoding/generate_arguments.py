"""What transformers' generate hands to a custom decoder, to what we honour of it; all else is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import GenerationConfig
from transformers.generation import (
    EosTokenCriteria,
    GenerationMode,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from slalom.errors import SlalomError

MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
TOP_K = 50  # what generate takes if nobody sets it

# What generate makes of settings that we read ourselves: its attribute, and the setting. One that holds another value
# is an object of the caller's own.
MADE_FROM = {
    MaxLengthCriteria: ("max_length", "max_length"),
    MinLengthLogitsProcessor: ("min_length", "min_length"),
    MinNewTokensLengthLogitsProcessor: ("min_new_tokens", "min_new_tokens"),
    RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty"),
    TemperatureLogitsWarper: ("temperature", "temperature"),
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
}
HARMLESS = (InfNanRemoveLogitsProcessor, LogitNormalization)  # the choice of a token stays the same


class GenerateArguments(NamedTuple):
    """What we honour."""

    length: int  # new tokens
    free: bool  # whether EOS may end a text before that
    repetition_penalty: float | None  # none if nobody asked for one
    temperature: float | None  # none if nothing is to be drawn
    top_p: float | None


def read_arguments(
    config: GenerationConfig, asked: Sequence[Any], prompt: int, eos: tuple[int, ...]
) -> GenerateArguments:
    """Generate's settings, with its logits processors and stopping criteria, for prompts of so many tokens."""
    refused = [*_settings(config, prompt), *(type(one).__name__ for one in asked if not _covered(one, config, eos))]
    if refused:
        raise SlalomError(
            f"custom_generate cannot apply {', '.join(refused)}; "
            "leave it out of the arguments of generate and of the model's generation_config"
        )
    return GenerateArguments(
        length=config.max_length - prompt,
        free=(config.min_length or 0) < config.max_length,
        repetition_penalty=None if config.repetition_penalty in (None, 1.0) else config.repetition_penalty,
        temperature=config.temperature if config.do_sample else None,
        top_p=config.top_p if config.do_sample else None,
    )


def _settings(config: GenerationConfig, prompt: int) -> list[str]:
    """Settings that are no object of their own, by name and value."""
    refused = []
    if (mode := config.get_generation_mode()) not in MODES:
        refused.append(f"num_beams={config.num_beams}" if (config.num_beams or 1) > 1 else mode.value)
    if config.do_sample and config.top_k not in (None, 0, TOP_K):
        refused.append(f"top_k={config.top_k}")
    if prompt < (config.min_length or 0) < config.max_length:
        least = config.min_length - prompt
        refused.append(f"min_new_tokens={least} (it may be 0 or max_new_tokens, {config.max_length - prompt})")
    if config.return_dict_in_generate:
        refused.append("return_dict_in_generate")
    return refused


def _covered(one: Any, config: GenerationConfig, eos: tuple[int, ...]) -> bool:
    """Whether a processor or criterion asks for nothing but what we do anyway."""
    if type(one) is EosTokenCriteria:
        return set(one.eos_token_id.tolist()) <= set(eos)
    if type(one) in MADE_FROM:
        attribute, setting = MADE_FROM[type(one)]
        return getattr(one, attribute) == getattr(config, setting)
    return type(one) in HARMLESS
