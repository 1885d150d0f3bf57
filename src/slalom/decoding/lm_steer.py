"""A wish to values of trained steers, and those to text sampled from the LM with its hidden states changed."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from slalom.backbone.engine import TransformersEngine
from slalom.backbone.model import LanguageModel
from slalom.backbone.names import DEFAULT
from slalom.backbone.rollout import Prompts, rollout
from slalom.backbone.steering import Change, Steers, hidden_size, steering
from slalom.constraints.constraint import Constraint
from slalom.decoding.knobs import knob
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem
from slalom.errors import SlalomError
from slalom.types import Draft

SHIPPED = Path(__file__).parent / "shipped"
SHIPPED_STEERS = {  # what a constraint calls its steer, and an LM → a folder there
    ("sentiment", DEFAULT): "steer-sentiment-smollm2",
    ("toxicity", DEFAULT): "steer-toxicity-smollm2",
}


class Pull(NamedTuple):
    """One trained steer and where it is to steer."""

    steers: Steers  # the attribute's and the dummy's
    value: float  # of the attribute at strength 1


class Trained(NamedTuple):
    """What `slalom train steer` made."""

    steers: Steers
    labels: tuple[str, ...]  # from the one at value -1 to the one at +1

    def pull(self, weight: float, label: str) -> Pull:
        """Towards a label, so many times as hard."""
        return Pull(self.steers, weight * (2 * self.labels.index(label) / (len(self.labels) - 1) - 1))


class LMSteerState(NamedTuple):
    """The latest draft, and the prompts as the torch engine read them with the steers on."""

    latest: Draft
    prompts: Prompts

    def select(self, rows: list[int]) -> LMSteerState:
        """Only these rows."""
        return self._replace(latest=self.latest.select(rows))


@dataclass(frozen=True)
class LMSteer:
    """LM-Steer: a linear map of the LM's last hidden states, trained on labelled text; one sample, no iteration."""

    name: ClassVar[str] = "lm-steer"
    paper: ClassVar[str] = "Han et al., ACL 2024"
    cost: ClassVar[str] = "a rollout by the torch engine without gradients, one more pass to tell its perplexity"
    mixes: ClassVar[bool] = False
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1

    strength: float = knob(5.0, "v, the steer's value; training goes to 1, beyond is extrapolated", least=0)
    style: float = knob(1.0, "value of the dummy steer, the manner of the training texts", least=0)
    steer: str = knob("", "a folder made by slalom train steer (left out: the shipped one for the constraint)")
    label: str = knob("", "the label of that folder to steer to (left out: the constraint's)")

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """The original's: one sample, from the nucleus of 0.9, for detoxification from the whole distribution.

        Ours of style has a lower temperature: at the original's a small LM's texts fall apart.
        """
        detoxify = all(part.kind == "detoxification" for _, part in constraint.terms())
        paper = Preset(cls(), steps=1, choice="latest", temperature=1.0, top_p=1.0 if detoxify else 0.9)
        return {"default": paper if detoxify else replace(paper, temperature=0.3), "paper": paper}

    def stronger(self, strength: float) -> Self:
        """The strength is v itself."""
        return replace(self, strength=strength)

    def init(self, problem: Problem, rng: Rng) -> LMSteerState:
        """A sample of the steered LM, drawn by the random numbers that the LM's own text would be."""
        lm = on_torch(problem.lm)
        with torch.inference_mode(), steering(lm.model, self._change(problem)):
            prompts = lm.read(problem.prompts.prompts)
        return LMSteerState(self._sample(problem, prompts), prompts)

    def step(self, problem: Problem, state: LMSteerState, rng: Rng) -> LMSteerState:
        """A fresh sample."""
        return state._replace(latest=self._sample(problem.redrawn(rng), state.prompts))

    def _sample(self, problem: Problem, prompts: Prompts) -> Draft:
        lm = on_torch(problem.lm)
        with torch.inference_mode(), steering(lm.model, self._change(problem)):
            draft = rollout(lm, prompts, problem.rows, problem.limits, draw=problem.draw).draft
        return draft._replace(log_probs=lm.log_probs(draft))  # the LM's own, not the steered one's

    def read(self, problem: Problem, state: LMSteerState) -> Draft:
        """The latest draft."""
        return state.latest

    def _change(self, problem: Problem) -> Change:
        """The sum of what the steers add. Below strength 1 the dummy fades with the rest: 0 is the LM itself."""
        device, style = problem.lm.device, self.style * min(self.strength, 1.0)
        pulls = [
            (steers.to(device), torch.tensor([[self.strength * value, style]], device=device))
            for steers, value in self._pulls(problem)
        ]
        return lambda hidden: sum(
            (steers.change(hidden, values) for steers, values in pulls), torch.zeros_like(hidden, dtype=torch.float)
        )

    def _pulls(self, problem: Problem) -> list[Pull]:
        """The steers of the wish, each with its weight and direction."""
        lm, constraint = problem.lm, problem.constraint
        if self.steer:
            pulls = [self._own_pull(constraint)]
        else:  # what is forbidden, the rollout itself keeps out
            parts = [(weight, part) for weight, part in constraint.terms() if part.forbids(lm.vocabulary) is None]
            pulls = [shipped_pull(lm.name, weight, part) for weight, part in parts]
        for pull in pulls:
            if pull.steers.width != hidden_size(lm.model):
                raise SlalomError(
                    f"the steer is for hidden states of {pull.steers.width} numbers, but those of {lm.name} have "
                    f"{hidden_size(lm.model)}; make one with slalom train steer --lm {lm.name}"
                )
        return pulls

    def _own_pull(self, constraint: Constraint) -> Pull:
        """The given folder's steer, towards the given label or the constraint's."""
        trained = load_steer(Path(self.steer))
        labelled = [(weight, part.label_name) for weight, part in constraint.terms() if part.label_name is not None]
        wanted = [(1.0, self.label)] if self.label else labelled
        for weight, label in wanted:
            if label in trained.labels:
                return trained.pull(weight, label)
        missing = f"has no label {wanted[0][1]!r}" if wanted else f"gets no label from {constraint.name}"
        raise SlalomError(f"the steer in {self.steer} {missing}; set its knob label to {' or '.join(trained.labels)}")


def shipped_pull(lm: str, weight: float, constraint: Constraint) -> Pull:
    """The shipped steer for a constraint, in its direction."""
    folder = SHIPPED_STEERS.get((constraint.steer_name or "", lm))
    if folder is None or constraint.label_name is None:
        raise SlalomError(
            f"no steer is shipped for {constraint.name} and {lm}; "
            f"make one with slalom train steer DATA --lm {lm} --out FOLDER, and set the knob steer to that folder"
        )
    return kept_steer(SHIPPED / folder).pull(weight, constraint.label_name)


@cache
def kept_steer(folder: Path) -> Trained:
    """`load_steer`, read once: for the shipped ones, which do not change."""
    return load_steer(folder)


def load_steer(folder: Path) -> Trained:
    """A folder made by `slalom train steer`."""
    try:
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "steer.safetensors")
        steers = Steers(tensors["down"].float(), tensors["up"].float(), float(card["epsilon"]))
        return Trained(steers, tuple(card["labels"]))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise SlalomError(f"{folder} holds no readable steer; make one with slalom train steer --out FOLDER") from error


def on_torch(lm: LanguageModel) -> LanguageModel:
    """The same LM run by torch, whatever engine it has: others do not show their hidden states."""
    if isinstance(lm.engine, TransformersEngine):
        return lm
    other = copy.copy(lm)
    other.engine = TransformersEngine(lm.model)
    return other
