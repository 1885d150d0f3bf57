"""Small things several tests need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Bias, Limits, Rollout, rollout
from slalom.backbone.steering import Steers
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import Constraint
from slalom.decoding import scheduler
from slalom.decoding.none import Unsteered
from slalom.decoding.sampler import Preset, Problem, Request, Sampler, Stop
from slalom.decoding.scheduler import Callback, Finished
from slalom.training.steer import save
from slalom.types import Draft, Relaxed


def draft_of(lm: LanguageModel, rows: list[tuple[str, str]]) -> Draft:
    """Given continuations as a draft; all must have the same number of tokens."""
    tokens = torch.tensor([lm.vocabulary.pieces(text) for _, text in rows])
    lengths = torch.full((len(rows),), tokens.shape[1])
    prompts = [lm.encode(prompt, 1) for prompt, _ in rows]
    draft = lm.draft(prompts, tokens, lengths, torch.zeros(tokens.shape))
    return draft._replace(log_probs=lm.log_probs(draft))


def count_decoded(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, how many tokens each decoded list has."""
    counts: list[int] = []
    decode = vocabulary.decode

    def counting(ids: list[list[int]]) -> list[str]:
        counts.extend(map(len, ids))
        return decode(ids)

    monkeypatch.setattr(vocabulary, "decode", counting)
    return counts


def unsteered(lm: LanguageModel, prompts: list[str], length: int = 8, **limits: object) -> Rollout:
    """The LM's own greedy text."""
    read = lm.read([lm.encode(prompt, length) for prompt in prompts])
    return rollout(lm, read, torch.arange(len(prompts)), Limits(length, **limits), top_k=5)  # type: ignore[arg-type]


def problem_of(
    lm: LanguageModel, prompts: list[str], constraint: Constraint, length: int = 8, drawn: list[int] | None = None
) -> Problem:
    """One row a prompt; with seeds, its tokens are drawn."""
    limits = Limits(length, forbidden=constraint.forbids(lm.vocabulary))
    settings = Preset(Unsteered(), steps=1, temperature=1.0 if drawn else 0.0)
    seeds = drawn or [0] * len(prompts)
    rows = zip(prompts, seeds, strict=True)
    return Problem.of(
        lm, [Request(lm.encode(prompt, length), seed, constraint, limits, settings) for prompt, seed in rows]
    )


def limited(problem: Problem, **limits: object) -> Problem:
    """The same under other limits."""
    changed = [request._replace(limits=request.limits._replace(**limits)) for request in problem.requests]  # type: ignore[arg-type]
    return problem._replace(requests=changed)


def decode(
    problem: Problem,
    sampler: Sampler,
    seeds: list[int],
    steps: int,
    stop: Stop | None = None,
    choice: str = "score",
    callbacks: tuple[Callback, ...] = (),
) -> list[Finished]:
    """A problem's rows, each with a seed of its own, by a sampler."""
    requests = [
        request._replace(
            seed=seed,
            settings=replace(request.settings, sampler=sampler, steps=steps, stop=stop, choice=choice),
        )
        for request, seed in zip(problem.requests, seeds, strict=True)
    ]
    return scheduler.decode(problem.lm, requests, callbacks)


def steer_folder(folder: Path, scale: float = 1.0, seed: int = 0, width: int = 16) -> Path:
    """A random steer between bad and good, as `slalom train steer` would have saved it."""
    generator = torch.Generator().manual_seed(seed)
    down, up = (torch.randn(2, width, 3, generator=generator) for _ in range(2))
    card = {"labels": ["bad", "good"], "lm": "tiny", "epsilon": 0.1 * scale}
    save(Steers(down, up, 0.1 * scale), folder, card)
    return folder


def push_at(places: torch.Tensor, token: int) -> Bias:
    """A bias that makes row i write a token at `places[i]`, and nothing else."""

    def push(at: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pushed = (places[rows] == at).nonzero()[:, 0]
        vectors = torch.zeros(len(pushed), logits.shape[1])
        vectors[:, token] = 1e4
        return pushed, vectors

    return push


def one_hots(draft: Draft) -> Relaxed:
    """A draft as mixtures that are no mixtures."""
    hot = torch.nn.functional.one_hot(draft.tokens, draft.vocabulary.size).double()
    return Relaxed(draft.vocabulary, draft.prompts, hot)
