"""A tiny evaluation: a tiny LM, a task of one file, judges that count letters. Also a program, to be killed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from slalom.api import SteerableModel
from slalom.backbone.rollout import rollout
from slalom.constraints.constraint import Constraint
from slalom.constraints.keywords import Keywords
from slalom.decoding import SAMPLERS
from slalom.decoding.drawing import Drawing
from slalom.decoding.knobs import knob
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem
from slalom.errors import SlalomError
from slalom.evaluation.cells import Cell
from slalom.evaluation.judges import Judge, JudgeInfo, JudgeInput, LoadJudge
from slalom.evaluation.run_evaluation import run_evaluation
from slalom.evaluation.run_folder import RunSettings
from slalom.evaluation.tasks import Task, load_task
from slalom.types import Draft
from tests.conftest import tiny_lm

TASK = """
name = "soup"
what = "Say soup, or rain."
warning = "Nonsense ahead."
prompts = ["the food", "we", "a day by the river"]
prefix = "Mind $topic. "
records = [
  { topic = "kitchen", words = ["soup"], references = ["the soup was warm"] },
  { topic = "weather", words = ["rain", "cold"], references = ["the rain was cold"] },
]
judges = ["acceptability", "perplexity", "bertscore"]
columns = ["success", "bertscore", "acceptability", "repeated-trigrams", "perplexity"]
control = "success"
paper_note = "Of another model."

[[wishes]]
name = "word"
parts = [{ kind = "keywords", words = "$words" }]

[presets.quick]
samples = 2
lengths = [4, 6]

[[paper]]
sampler = "drawn"
values = { success = [0.99], perplexity = [23.4, 0.3] }
"""


class Counting:
    """Judges a text by how long it is."""

    def __init__(self, name: str, pause: float = 0.0) -> None:
        self.info = JudgeInfo(name, "a ruler", "r1", {"rulers": 0.75}, {"rulers": 0.5})
        self.pause = pause

    def score(self, inputs: list[JudgeInput], reads: str) -> list[float | None]:
        time.sleep(self.pause)
        return [float(len(one.shown(reads))) for one in inputs]  # type: ignore[arg-type]


def judges(pause: float = 0.0, missing: tuple[str, ...] = ()) -> dict[str, LoadJudge]:
    """Judges by name; those missing cannot be loaded."""

    def loader(name: str) -> LoadJudge:
        def load() -> Judge:
            if name in missing:
                raise SlalomError(f"no {name} today")
            return Counting(name, pause)

        return load

    return {name: loader(name) for name in ("acceptability", "perplexity", "bertscore")}


def task_in(folder: Path) -> Task:
    """The tiny task, from a file."""
    (folder / "soup.toml").write_text(TASK)
    return load_task(str(folder / "soup.toml"))


class DrawnState(NamedTuple):
    """A drawn text."""

    draft: Draft

    def select(self, rows: list[int]) -> DrawnState:
        return DrawnState(self.draft.select(rows))


@dataclass(frozen=True)
class Drawn:
    """A sampler that is quick: the LM's text, drawn at a temperature."""

    name: ClassVar[str] = "drawn"
    paper: ClassVar[str] = "nobody"
    cost: ClassVar[str] = "a rollout"
    mixes: ClassVar[bool] = False
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1
    heat: float = knob(1.0, "temperature")

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        if isinstance(constraint, Keywords) and constraint.words == ["never"]:
            raise SlalomError("drawn never says never")
        return {name: Preset(cls(heat), 2, temperature=heat) for name, heat in (("default", 1.0), ("hot", 2.0))}

    def stronger(self, strength: float) -> Drawn:
        return Drawn(strength * self.heat)

    def init(self, problem: Problem, rng: Rng) -> DrawnState:
        each = torch.ones(len(problem.rows))
        drawing = Drawing(self.heat * each, each, rng)
        out = rollout(problem.lm, problem.prompts, problem.rows, problem.limits, top_k=1, draw=drawing.draw)
        return DrawnState(out.draft)

    def step(self, problem: Problem, state: DrawnState, rng: Rng) -> DrawnState:
        return self.init(problem, rng)

    def read(self, problem: Problem, state: DrawnState) -> Draft:
        return state.draft


def cells(strengths: tuple[float, ...] = (1.0,), presets: tuple[str, ...] = ("default", "hot")) -> tuple[Cell, ...]:
    return tuple(Cell("soup", "drawn", preset, strength) for preset in presets for strength in strengths)


def run(
    out: Path,
    task: Task,
    chosen: tuple[Cell, ...] | None = None,
    judged_by: dict[str, LoadJudge] | None = None,
    lm: Callable[[], SteerableModel] | None = None,
    anew: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate into a folder."""
    chosen_settings = RunSettings(
        chosen or cells(), **({"preset": "quick", "model": "tiny", "engine": "torch"} | settings)
    )
    load = lm or (lambda: tiny_lm("llama-tied"))
    return run_evaluation(out, chosen_settings, [task], load, judged_by or judges(), lambda progress: None, anew)


class Slow(SteerableModel):
    """Takes its time, so that it can be killed half-way."""

    def steer(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.05)
        return super().steer(*args, **kwargs)


if __name__ == "__main__":
    SAMPLERS["drawn"] = Drawn
    where, tasks = map(Path, sys.argv[1:])
    fast = tiny_lm("llama-tied")
    run(where, load_task(str(tasks)), judged_by=judges(0.05), lm=lambda: Slow(fast.model, fast.tokenizer, fast.name))
