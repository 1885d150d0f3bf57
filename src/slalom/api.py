"""Prompts and a wish to steered texts: what `slalom.load()` returns and what `model.generate` can call."""

from __future__ import annotations

import functools
import html
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.model import DeviceMap, LanguageModel, open_parts
from slalom.backbone.names import DEFAULT, EngineName
from slalom.backbone.placement import move
from slalom.backbone.rollout import REPETITION_PENALTY, Limits
from slalom.backbone.telling import Message, heading, instruction
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import Constraint
from slalom.decoding.generate_arguments import read_arguments
from slalom.decoding.none import Unsteered
from slalom.decoding.objective import CHOICES, Seen
from slalom.decoding.presets import DEFAULT_SAMPLER, preset_for
from slalom.decoding.sampler import Request
from slalom.decoding.scheduler import Callback, Finished, decode
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, widened

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

TOGETHER = 8  # texts read whole in one pass: logits of all their positions take memory
LENGTH, CHAT_LENGTH = 20, 128  # new tokens, unless said
TABLE_STYLE = "<style>.slalom :is(td, th) {text-align: left; vertical-align: top; white-space: pre-wrap}</style>"

Prompts = str | Sequence[str | Message | list[Message]]


class Options(TypedDict, total=False):
    """What `steer` and `requests` take besides prompts and wish; the defaults stand in `requests`."""

    length: int | Sequence[int] | None
    samples: int
    seed: int
    chat: bool
    free: bool
    stop: Sequence[str]
    sampler: str
    preset: str
    strength: float | None
    steps: int | None
    until: float | None
    select: str | None
    temperature: float | None
    top_p: float | None
    repetition_penalty: float
    tell: bool | str
    knobs: dict[str, Any] | None


class Wish(NamedTuple):
    """How far one constraint is fulfilled by one text."""

    name: str
    score: float
    probability: float | None
    satisfied: bool


@dataclass(frozen=True)
class Text:
    """One steered continuation."""

    prompt: str
    text: str
    constraints: list[Wish]
    satisfied: bool
    score: float
    perplexity: float  # of the continuation given the prompt, under the LM told nothing
    told_perplexity: float | None  # under the LM as it was told; none if it was not
    steps: int  # drafts written for it, the first one included
    seed: int
    told: str | None  # what the LM was asked for, in a sentence
    unsteered: str | None = None  # the LM's own continuation, told nothing; none if it was not asked for
    unsteered_perplexity: float | None = None


@dataclass(frozen=True)
class Steered:
    """All texts of a call, prompt by prompt, sample by sample."""

    rows: list[Text]
    seconds: float
    tokens_per_second: float  # of all drafts: the paper's n s / t, over all rows
    sampler: str
    model: str
    engine: str

    @property
    def texts(self) -> list[str]:
        """The continuations."""
        return [row.text for row in self.rows]

    @property
    def scores(self) -> list[float]:
        """The paper's f of each."""
        return [row.score for row in self.rows]

    def records(self, compare: bool = False) -> list[dict[str, Any]]:
        """One plain dictionary a text, as `slalom generate --json` prints it."""
        return [self._record(row, compare) for row in self.rows]

    def _repr_html_(self) -> str:
        """The texts as a table, which is how a notebook shows them: before, if they were compared, and after."""
        compared = any(row.unsteered is not None for row in self.rows)
        told = "told and steered" if any(row.told for row in self.rows) else "steered"
        names = [
            "prompt",
            *(["unsteered", "perplexity"] if compared else []),
            told,
            "perplexity",
            "constraints",
            "seed",
        ]
        lines = [_html_row("th", names)]
        for row in self.rows:
            before = [row.unsteered or "", _shown(row.unsteered_perplexity)] if compared else []
            wishes = "\n".join(
                f"{'✓' if wish.satisfied else '✗'} {wish.name} {_shown(wish.score, wish.probability)}"
                for wish in row.constraints
            )
            cells = [row.prompt, *before, row.text, _shown(row.perplexity), wishes, str(row.seed)]
            lines.append(_html_row("td", cells))
        return f'{TABLE_STYLE}<table class="slalom">{"".join(lines)}</table>'

    def _record(self, row: Text, compare: bool) -> dict[str, Any]:
        record = asdict(row) | {
            "constraints": [wish._asdict() for wish in row.constraints],
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
            "sampler": self.sampler,
            "model": self.model,
            "engine": self.engine,
        }
        if not compare:
            del record["unsteered"], record["unsteered_perplexity"]
        return record


def _html_row(tag: str, cells: list[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _shown(value: float | None, probability: float | None = None) -> str:
    """A score as people read it: the probability, where there is one."""
    if probability is not None:
        return f"({probability:.3f})"
    return "" if value is None else f"{value:.1f}"


class SteerableModel(LanguageModel):
    """A language model that writes what it is asked to."""

    def steer(
        self,
        prompts: Prompts,
        constraint: Constraint | Sequence[Constraint],
        *,
        compare: bool = False,
        callbacks: tuple[Callback, ...] = (),
        **options: Unpack[Options],
    ) -> Steered:
        """Continue each prompt so that the text fulfils the constraint; the options are those of `requests`.

        With `compare`, the LM's own text, neither told nor steered, is written too. Callbacks learn of every draft.
        """
        requests = self.requests(prompts, constraint, **options)
        started = time.perf_counter()
        finished = decode(self, requests, callbacks)
        seconds = time.perf_counter() - started
        texts = self.texts(finished, compare)
        tokens = sum(end.request.limits.length * end.drafts for end in finished)
        sampler = requests[0].settings.sampler.name
        return Steered(texts, seconds, tokens / max(seconds, 1e-9), sampler, self.name, self.engine.name)

    def requests(
        self,
        prompts: Prompts,
        constraint: Constraint | Sequence[Constraint],
        *,
        length: int | Sequence[int] | None = None,
        samples: int = 1,
        seed: int = 0,
        chat: bool = False,
        free: bool = False,
        stop: Sequence[str] = (),
        sampler: str = DEFAULT_SAMPLER,
        preset: str = "default",
        strength: float | None = None,
        steps: int | None = None,
        until: float | None = None,
        select: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        repetition_penalty: float = REPETITION_PENALTY,
        tell: bool | str = "auto",
        knobs: dict[str, Any] | None = None,
    ) -> list[Request]:
        """One request a text, for a scheduler that other requests may join: each prompt `samples` times.

        A prompt is a text, or a chat: a list of messages, each with a role and a content; with `chat`, a text is what
        the user says. Answers end with a whole sentence, and the constraint reads them alone. All prompts have one
        constraint and one `length`, or each its own.

        `length` is 20 tokens, in a chat at most 128; `free` lets a text end where the LM ends it, and `stop` before any
        of these strings. A long text is steered block by block. With seed 0 the search begins at the LM's likeliest
        text, with any other seed at drawn ones; a prompt's next sample has the next seed. `strength` is how hard the
        sampler pulls, in units of its own; `until` stops a text once it is satisfied to that degree; `select` takes the
        best draft by `score`, `joint`ly with fluency, or the `latest`; `temperature` and `top_p` draw the tokens (0
        takes the likeliest); `knobs` sets fields of the sampler. What is not given, the preset decides.
        `repetition_penalty` is CTRL's, on generated tokens; 1 turns it off.

        `tell` says whether the LM is told the wish as well as steered: `auto` tells it where the wish has words
        (`constraint.describe()`) and the LM room for them, True refuses a wish or an LM without, False never tells; any
        other string is the sentence.
        """
        _at_least("samples", samples, 1)
        _at_least("seed", seed, 0)
        _at_least("repetition_penalty", repetition_penalty, 1)
        if "" in stop:
            raise SlalomError("a stop string is empty; leave it out")
        if select is not None and select not in CHOICES:
            raise SlalomError(f"unknown choice {select!r}; choose from {', '.join(CHOICES)}")
        listed = _listed(prompts, chat)
        found = []
        wishes = [constraint] * len(listed) if isinstance(constraint, Constraint) else list(constraint)
        lengths = [length] * len(listed) if length is None or isinstance(length, int) else list(length)
        for what, given in (("constraint", wishes), ("length", lengths)):
            if len(given) != len(listed):
                raise SlalomError(f"there are {len(listed)} prompts and {len(given)} of {what}; give one, or one each")
        for one, wish, own in zip(listed, wishes, lengths, strict=True):
            answer = not isinstance(one, str)
            count = (CHAT_LENGTH if answer else LENGTH) if own is None else own
            _at_least("length", count, 1)
            settings = preset_for(
                preset, wish, self.name, strength, steps, until, knobs, sampler, temperature, top_p, select
            )
            limits = Limits(count, free or answer or bool(stop), repetition_penalty, stops=tuple(stop), whole=answer)
            prompt, told = self._encoded(one, wish, tell, count)
            found += [Request(prompt, seed + sample, wish, limits, settings, told) for sample in range(samples)]
        return found

    def texts(self, finished: list[Finished], compare: bool = False) -> list[Text]:
        """Finished requests as a user reads them; with `compare`, each with the LM's own text."""
        owns: Sequence[Draft | None] = [None] * len(finished)
        if compare:
            owns = own_texts(self, [end.request for end in finished])
        perplexities = untold_perplexities(self, finished)
        return [_text(*one) for one in zip(finished, perplexities, owns, strict=True)]

    def _encoded(
        self, one: str | list[Message], constraint: Constraint, tell: bool | str, length: int
    ) -> tuple[Prompt, str | None]:
        """A text or a chat as the LM reads it, and the sentence it is told."""
        prompt = self.encode(one, length) if isinstance(one, str) else self.encode_chat(one, length)
        asked = self._asked(prompt, constraint, tell, length)
        if asked is None:
            return prompt, None
        told = self.tell(prompt, asked) if isinstance(one, str) else self.tell_chat(prompt, one, asked)
        if tell == "auto" and not self.has_room(told, length):
            return prompt, None
        return self.fitting(told, length), asked

    def _asked(self, prompt: Prompt, constraint: Constraint, tell: bool | str, length: int) -> str | None:
        """The sentence the LM is told, if it is told anything."""
        if tell is False:
            return None
        if isinstance(tell, str) and tell != "auto":
            if not tell.strip():
                raise SlalomError("what the model should be told is empty; say something, or leave it out")
            return tell.strip()
        words = constraint.describe(functools.partial(self.likeliest, prompt))
        if words is None and tell is True:
            raise SlalomError(
                f"there are no words for {constraint.name}; give a sentence to tell the model (--tell-as)"
            )
        if words is None:
            return None
        return (instruction if self.chats else heading)(words, length)


def load(
    model: str | PreTrainedModel = DEFAULT,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: str | torch.device | None = None,
    device_map: DeviceMap | None = None,
    dtype: str | torch.dtype | None = None,
    engine: EngineName = "auto",
) -> SteerableModel:
    """A language model to steer: the embedded default, a hub name or folder, or a model and tokenizer you have.

    `device` and `dtype` are where and in which precision it runs, the best here if left out; a model object stays as it
    is then. `device_map` spreads a model over several devices, as accelerate does. `engine` is what runs it: torch,
    openvino (an extra, for CPUs), or auto, the faster one here for a model by name.
    """
    if isinstance(model, str):
        opened, own = open_parts(model, dtype, device, device_map, engine)
        return SteerableModel(opened, tokenizer or own, model, engine)
    if tokenizer is None:
        raise SlalomError("a model object needs its tokenizer: slalom.load(model, tokenizer)")
    if device_map is not None:
        raise SlalomError("a device map is for a model by name; spread the object when you load it")
    move(model, device, dtype)
    return SteerableModel(model, tokenizer, engine="torch" if engine == "auto" else engine)


def custom_generate(
    constraint: Constraint,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int = 0,
    sampler: str = DEFAULT_SAMPLER,
    preset: str = "default",
    strength: float | None = None,
    steps: int | None = None,
    until: float | None = None,
    repetition_penalty: float = REPETITION_PENALTY,
    knobs: dict[str, Any] | None = None,
) -> Callable[..., torch.Tensor]:
    """Steering inside transformers: `model.generate(**inputs, custom_generate=custom_generate(constraint, tokenizer))`.

    Of what generate is asked for, these are honoured: `max_new_tokens` (`max_length`); `min_new_tokens` if it is as
    many, otherwise a text ends at EOS; with `do_sample`, `temperature`, `top_p` and `num_return_sequences` (its default
    `top_k` of 50 is not applied); and `repetition_penalty`, on generated tokens only. One of 1, its default, cannot be
    told from none: then ours holds, and 1 given here turns it off. Logits processors, stopping criteria, beams and
    whatever else would change the text are refused by name. The model is told nothing: it reads its inputs as they are.

    What is computed from a model's tables is kept as long as the model lives and they stay the same.
    """
    _at_least("repetition_penalty", repetition_penalty, 1)
    vocabularies: WeakKeyDictionary[PreTrainedModel, tuple[tuple[int, ...], Vocabulary]] = WeakKeyDictionary()

    def language_model(model: PreTrainedModel) -> LanguageModel:
        """The model with the vocabulary it had last time, unless its tables have changed."""
        version, (known, vocabulary) = _version(model), vocabularies.get(model, (None, None))
        lm = LanguageModel(model, tokenizer, vocabulary=vocabulary if known == version else None)
        vocabularies[model] = version, lm.vocabulary  # not the LM, which would keep the model alive
        return lm

    def generate(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Sequence[Any] | None = None,
        stopping_criteria: Sequence[Any] | None = None,
        generation_config: GenerationConfig | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        if model_kwargs.get("inputs_embeds") is not None:
            raise SlalomError("custom_generate cannot apply inputs_embeds; give input_ids")
        with _evaluating(model):
            lm = language_model(model)
            asked = read_arguments(
                generation_config or model.generation_config,
                [*(logits_processor or ()), *(stopping_criteria or ())],
                input_ids.shape[1],
                lm.vocabulary.eos,
            )
            drawn = asked.temperature, asked.top_p
            settings = preset_for(preset, constraint, lm.name, strength, steps, until, knobs, sampler, *drawn)
            mask = model_kwargs.get("attention_mask")
            mask = torch.ones_like(input_ids) if mask is None else mask
            listed = [ids[real.bool()].tolist() for ids, real in zip(input_ids, mask, strict=True)]
            prompts = [lm.prompt(ids, asked.length) for ids in listed]
            penalty = asked.repetition_penalty or repetition_penalty
            _at_least("repetition_penalty", penalty, 1)
            limits = Limits(asked.length, asked.free, penalty)
            seeds = [seed + prompts[:i].count(prompt) for i, prompt in enumerate(prompts)]
            rows = zip(prompts, seeds, strict=True)
            finished = decode(lm, [Request(prompt, own, constraint, limits, settings) for prompt, own in rows])
        tokens = torch.cat([widened(_best(end).draft.tokens, asked.length, lm.vocabulary.pad) for end in finished])
        return torch.cat([input_ids, tokens.to(input_ids.device)], dim=1)

    return generate


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """While open, no part of the model is in training mode; afterwards those that were are again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _version(model: PreTrainedModel) -> tuple[int, ...]:
    """Another one whenever the model's embedding or head is trained, moved or resized."""
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    tables = [layer.weight for layer in layers if layer is not None]
    return tuple(
        number for table in tables for number in (table.data_ptr(), 0 if table.is_inference() else table._version)
    )


def _listed(prompts: str | Sequence[str | Message | list[Message]], chat: bool) -> list[str | list[Message]]:
    """What was given as a list of texts and chats."""
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise SlalomError("no prompt given; give at least one")
    messages = [one for one in given if isinstance(one, dict)]
    if messages:
        if len(messages) < len(given):
            raise SlalomError(
                "messages and other prompts are mixed; put the messages of each chat in a list of its own"
            )
        return [messages]
    chats = [one for one in given if not isinstance(one, dict)]
    return [[{"role": "user", "content": one}] if chat and isinstance(one, str) else one for one in chats]


def own_texts(lm: LanguageModel, requests: list[Request]) -> list[Draft]:
    """What the LM, told nothing, writes by itself for every request, under the same rules."""
    alone = [
        request._replace(
            prompt=request.prompt.untold,
            settings=replace(request.settings, sampler=Unsteered(), steps=1, stop=None, choice="score"),
        )
        for request in requests
    ]
    return [_best(end).draft for end in decode(lm, alone)]


def untold_perplexities(lm: LanguageModel, finished: list[Finished]) -> list[float]:
    """Each text's perplexity under the LM told nothing; where it was told something, it reads the text again."""
    drafts = [_best(end).draft for end in finished]
    values = [draft.perplexity.item() for draft in drafts]
    told = [number for number, end in enumerate(finished) if end.request.told is not None]
    for start in range(0, len(told), TOGETHER):
        some = told[start : start + TOGETHER]
        together = functools.reduce(Draft.join, [drafts[number] for number in some])
        untold = together._replace(prompts=[prompt.untold for prompt in together.prompts])
        read = untold._replace(log_probs=lm.log_probs(untold)).perplexity.tolist()
        for number, value in zip(some, read, strict=True):
            values[number] = value
    return values


def _best(finished: Finished) -> Seen:
    """The text of a request that did not fail."""
    if finished.best is None:
        raise finished.error or SlalomError("nothing was written")
    return finished.best


def _text(finished: Finished, perplexity: float, own: Draft | None) -> Text:
    draft, verdict, _ = _best(finished)
    request = finished.request
    prompt = request.prompt
    return Text(
        prompt=prompt.text if prompt.asked is None else prompt.asked,
        text=draft.texts[0],
        constraints=[Wish(*part[:4]) for part in verdict.parts],
        satisfied=verdict.satisfied,
        score=verdict.score,
        perplexity=perplexity,
        told_perplexity=None if request.told is None else draft.perplexity.item(),
        steps=finished.drafts,
        seed=request.seed,
        told=request.told,
        unsteered=None if own is None else own.texts[0],
        unsteered_perplexity=None if own is None else own.perplexity.item(),
    )


def _at_least(name: str, value: float, least: int) -> None:
    if value < least:
        raise SlalomError(f"{name} is {value:g}; it must be at least {least}")
