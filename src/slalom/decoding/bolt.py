"""BOLT: a bias of the logits, tuned by gradient descent through the whole text, to the next draft."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch.nn import functional as F

from slalom.backbone.engine import Prefix, TransformersEngine
from slalom.backbone.graph import GraphPass, frozen, input_table, output_table
from slalom.backbone.rollout import Limits, best_allowed, finished, penalise
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import Constraint
from slalom.decoding.bias import NORMS, SCHEDULES
from slalom.decoding.bleu import bleu
from slalom.decoding.knobs import knob
from slalom.decoding.none import own_text
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem, Stop
from slalom.types import Draft, Relaxed

BETAS, EPSILON = (0.9, 0.999), 1e-6  # AdamW's, as in the original
BLEU = 1  # RNG stream id of the noise in the loss of words


class Learned(NamedTuple):
    """Parameters and what AdamW remembers of them; every tensor has a row per row."""

    value: torch.Tensor
    gradient: torch.Tensor  # the last one, or the sum of all
    mean: torch.Tensor
    square: torch.Tensor

    @staticmethod
    def new(value: torch.Tensor) -> Learned:
        """Parameters that have not moved yet."""
        nothing = torch.zeros_like(value)
        return Learned(value, nothing, nothing, nothing)

    def updated(self, gradient: torch.Tensor, rate: float, decay: float, count: int) -> Learned:
        """One step of AdamW, the `count`-th."""
        mean = BETAS[0] * self.mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * self.square + (1 - BETAS[1]) * gradient.square()
        size = (square / (1 - BETAS[1] ** count)).sqrt() + EPSILON
        value = (1 - rate * decay) * self.value - rate * mean / (1 - BETAS[0] ** count) / size
        return Learned(value, gradient, mean, square)

    def select(self, rows: list[int]) -> Learned:
        """Only these rows."""
        return Learned(*(tensor[rows] for tensor in self))


class BOLTState(NamedTuple):
    """What the next step needs: the latest draft, the prompts as the model read them, and the bias with its weights."""

    latest: Draft
    prefix: Prefix  # a row per row
    unit: torch.Tensor  # [B], in which the bias is given
    bias: Learned  # [B, n, d], before the head
    weights: Learned  # [B, n], of the positions
    steps: int

    def select(self, rows: list[int]) -> BOLTState:
        """Only these rows."""
        return BOLTState(
            self.latest.select(rows),
            self.prefix.select(rows),
            self.unit[rows],
            self.bias.select(rows),
            self.weights.select(rows),
            self.steps,
        )


class Written(NamedTuple):
    """A draft and the graph from it back to the bias. m is n, or less if every row ended before that."""

    draft: Draft
    log_probs: torch.Tensor  # [B, m], the LM's own of the tokens
    biased: torch.Tensor  # [B, m, V], log-probabilities after penalty and bias
    mixtures: torch.Tensor  # [B, m, V], one-hots with the gradient of the biased probabilities


@dataclass(frozen=True)
class BOLT:
    """Tunable biases: one at every position, moved by gradient descent through the whole decoding."""

    name: ClassVar[str] = "bolt"
    paper: ClassVar[str] = "Liu et al., ACL 2023"
    cost: ClassVar[str] = "a rollout with its graph, and a gradient of f and of the LM back through all its positions"
    mixes: ClassVar[bool] = False
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1

    weight: float = knob(1.0, "factor on the bias", least=0)
    schedule: str = knob(
        "learned", "the weight over positions, learned with the bias or fixed", choices=("learned", *SCHEDULES)
    )
    norm: str = knob("none", "the size of the logits that the bias is matched to", choices=("none", *NORMS))
    units: str = knob(
        "spread",
        "what start, rate, noise and drift are measured in: 1 is a random bias as spread as the LM's logits after the "
        "prompt, or simply 1 before the head, as in the original",
        choices=("spread", "raw"),
    )
    start: float = knob(0.15, "standard deviation of the first bias", least=0)
    rate: float = knob(0.03, "learning rate of AdamW", least=0)
    decay: float = knob(0.01, "weight decay of AdamW", least=0)
    noise: float = knob(0.006, "standard deviation of what is added to the bias after each update", least=0)
    drift: float = knob(0.0, "mean of what is added to the bias after each update (the noise's size in the original)")
    accumulate: bool = knob(False, "add each gradient to all before it (yes in the original, which never clears them)")
    control: float = knob(1.0, "weight of the wish in the energy", least=0)
    lm_weight: float = knob(0.1, "weight of the LM's mean negative log-likelihood of a token in the energy", least=0)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Ours, re-tuned on the default LM, and the original's own numbers, which were made for GPT-2 large.

        Of several wishes those for keywords where there are any: they need the most drafts.
        """
        own, paper = cls(), replace(cls(), units="raw", start=0.5, rate=0.025, noise=0.01, drift=0.01, accumulate=True)
        if not has_words(constraint):
            return {"default": Preset(own, steps=9), "paper": Preset(paper, steps=9)}
        own, paper = (replace(one, schedule="increasing", control=0.3, lm_weight=1.0) for one in (own, paper))
        return {
            "default": Preset(replace(own, rate=0.1), steps=101, stop=Stop(constraint.sure)),
            "paper": Preset(replace(paper, rate=0.4), steps=101, stop=Stop(constraint.sure)),
        }

    def stronger(self, strength: float) -> Self:
        """The factor on the bias times the strength."""
        return replace(self, weight=strength * self.weight)

    def init(self, problem: Problem, rng: Rng) -> BOLTState:
        """The LM's own draft, and a random bias."""
        lm, n = problem.lm, problem.limits.length
        prefix = lm.read(problem.prompts.prompts, TransformersEngine(lm.model)).prefix.select(problem.rows)
        head = output_table(lm.model)
        unit = torch.ones_like(prefix.logits[:, 0])
        if self.units == "spread":
            unit = prefix.logits.std(-1) / head.float().var(0).sum().sqrt()  # its square: the mean |W_v - mean of W|^2
        bias = self.start * _normal(rng, len(problem.rows), n, head.shape[1])
        weights = torch.ones_like(bias[..., 0])
        if self.schedule != "learned":
            weights *= torch.tensor([SCHEDULES[self.schedule](i, n) for i in range(n)], device=lm.device)
        return BOLTState(own_text(problem), prefix, unit, Learned.new(bias), Learned.new(weights), 0)

    def step(self, problem: Problem, state: BOLTState, rng: Rng) -> BOLTState:
        """The draft of the present bias, and the bias one update further.

        The original has one set of weights for the whole batch; here each row has its own, so that a row's text does
        not depend on its batch mates.
        """
        bias, weights = state.bias.value.clone().requires_grad_(), state.weights.value.clone().requires_grad_()
        with torch.enable_grad(), frozen(problem.lm.model):
            written = self._write(problem, state, bias, weights)
            energy = self._energy(problem, written, rng.fold(BLEU))
            gradients = torch.autograd.grad(energy.sum(), (bias, weights))
        tuned = self._updated(state.bias, gradients[0], state.steps + 1)
        noisy = tuned.value + self.drift + self.noise * _normal(rng, *tuned.value.shape)
        learned = state.weights
        if self.schedule == "learned":
            learned = self._updated(learned, gradients[1], state.steps + 1)
        return state._replace(
            latest=written.draft, bias=tuned._replace(value=noisy), weights=learned, steps=state.steps + 1
        )

    def read(self, problem: Problem, state: BOLTState) -> Draft:
        """The latest draft."""
        return state.latest

    def _updated(self, parameters: Learned, gradient: torch.Tensor, count: int) -> Learned:
        total = parameters.gradient + gradient if self.accumulate else gradient
        return parameters.updated(total, self.rate, self.decay, count)

    def _write(self, problem: Problem, state: BOLTState, bias: torch.Tensor, weights: torch.Tensor) -> Written:
        """Decode with the bias, keeping the graph: each next input is a one-hot with its probabilities' gradient."""
        model, vocabulary, n = problem.lm.model, problem.lm.vocabulary, problem.limits.length
        head, table = output_table(model), input_table(model)
        vectors = ((state.unit[:, None, None] * bias).to(head.dtype) @ head.T).float()  # [B, n, V]
        eos = torch.tensor(vocabulary.eos, device=head.device)
        run, logits = GraphPass(model, state.prefix), state.prefix.logits
        tokens, lengths = problem.rows.new_empty(len(problem.rows), 0), torch.full_like(problem.rows, n)
        log_probs, biased, mixtures = [], [], []
        for i in range(n):
            vector = self.weight * weights[:, i, None] * self._matched(vectors[:, i], logits)
            scores = _allowed(problem.limits, vocabulary, logits, tokens) + vector
            chosen = _choose(problem, scores.detach(), tokens)
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
            log_probs.append(logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1))
            biased.append(scores.log_softmax(-1))
            mixtures.append(straight_through(biased[-1], chosen))
            lengths[(lengths > i) & torch.isin(chosen, eos)] = i
            if i + 1 == n or (lengths <= i).all():
                break
            logits = run.read((mixtures[-1].to(table.dtype) @ table)[:, None])[:, -1]
        return _written(problem, tokens, lengths, *(torch.stack(one, 1) for one in (log_probs, biased, mixtures)))

    def _matched(self, vectors: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Bias vectors [B, V] with the norm of the logits [B, V], if that is wished (DAB's r_i)."""
        if self.norm == "none":
            return vectors
        ratio = NORMS[self.norm](logits) / vectors.norm(dim=-1).clamp(min=1e-9)
        return ratio[:, None] * vectors

    def _energy(self, problem: Problem, written: Written, rng: Rng) -> torch.Tensor:
        """The wish's loss and the LM's mean negative log-likelihood of a token, weighed: [B].

        The original takes the likelihood from a second pass over the same inputs; it is the same function of them, and
        so is its gradient. It also counts the prompt, which is constant.
        """
        draft, m = written.draft, written.log_probs.shape[1]
        likelihood = (written.log_probs * draft.real[:, :m]).sum(-1) / draft.lengths.clamp(min=1)
        ends, loss = draft.lengths.clamp(min=1), torch.zeros_like(likelihood)
        for end in ends.unique().tolist():
            rows = (ends == end).nonzero()[:, 0]
            loss = loss.index_add(0, rows, _loss(problem.constraint, written, rows, end, rng.select(rows)))
        return self.control * loss - self.lm_weight * likelihood


@dataclass(frozen=True)
class NormalisedBOLT(BOLT):
    """BOLT with DAB's norm matching: at every position the bias has the size of the logits, times the weight."""

    name: ClassVar[str] = "bolt-normalised"
    paper: ClassVar[str] = "Pynadath and Zhang, ICLR 2025, after Liu et al."

    norm: str = knob("centred", "the size of the logits that the bias is matched to", choices=("none", *NORMS))
    weight: float = knob(0.5, "factor on the bias, after the norms are matched", least=0)
    start: float = knob(0.3, "standard deviation of the first bias", least=0)
    rate: float = knob(0.015, "learning rate of AdamW", least=0)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """BOLT's, for keywords with twice the weight, and faster: a single word must win outright."""
        found = super().presets(constraint)
        if not has_words(constraint):
            return found
        found = {name: replace(one, sampler=one.sampler.stronger(2.0)) for name, one in found.items()}
        return found | {"default": replace(found["default"], sampler=replace(found["default"].sampler, rate=0.25))}


def has_words(constraint: Constraint) -> bool:
    """Whether words are among what is wished."""
    return any(part.kind == "words" for _, part in constraint.terms())


def _loss(constraint: Constraint, written: Written, rows: torch.Tensor, end: int, rng: Rng) -> torch.Tensor:
    """The parts' losses, weighed, of some rows that all have `end` tokens: [a].

    A part with a probability has its cross-entropy, one that spells words out has BLEU of the biased log-probabilities
    (the one-hots' gradient vanishes with the probability of a word), any other part has its score.
    """
    draft = written.draft.select(rows)
    relaxed = Relaxed(draft.vocabulary, draft.prompts, written.mixtures[rows, :end])
    loss = torch.zeros(len(rows), device=rows.device)
    for weight, part in constraint.terms():
        if groups := part.spelling_groups(draft.vocabulary):
            loss = loss - weight * bleu(groups, written.biased[rows, :end], rng)
        else:
            score = part.relaxed_score(relaxed).float()
            loss = loss + weight * (-score if part.probability(score) is None else F.softplus(-score))
    return loss


def straight_through(log_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The tokens [B] as one-hots [B, V], exactly, with the gradient of the probabilities."""
    probabilities = log_probs.exp()
    hot = torch.zeros_like(probabilities).scatter_(-1, tokens[:, None], 1.0)
    return hot + (probabilities - probabilities.detach())


def _allowed(limits: Limits, vocabulary: Vocabulary, logits: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Logits [B, V] under the rules of every rollout; the penalty on the tokens before [B, i] has no gradient."""
    penalty = penalise(logits.detach(), before, limits.repetition_penalty) - logits.detach()
    banned = vocabulary.banned_free if limits.free else vocabulary.banned_fixed
    return (logits + penalty).masked_fill(banned.clone(), -torch.inf)  # a copy, for it may have been made in inference


def _choose(problem: Problem, scores: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Each row's next token after those before it [B, i]: the best, or the one drawn, that writes nothing forbidden."""
    if problem.draw is not None:
        rows = torch.arange(len(scores), device=scores.device)
        scores = problem.draw(torch.full_like(rows, before.shape[1]), rows, scores)
    if problem.limits.forbidden is None:
        return scores.argmax(-1)
    return best_allowed(scores, problem.owners, before.tolist(), problem.limits.forbidden)


def _written(
    problem: Problem,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    log_probs: torch.Tensor,
    biased: torch.Tensor,
    mixtures: torch.Tensor,
) -> Written:
    """What was decoded, with its draft padded to the asked length."""
    missing = (0, problem.limits.length - tokens.shape[1])
    padded, own = F.pad(tokens, missing), F.pad(log_probs.detach(), missing)
    ended = lengths < problem.limits.length
    draft = finished(problem.lm, problem.owners, padded, lengths, own, ended, problem.limits)
    return Written(draft, log_probs, biased, mixtures)


def _normal(rng: Rng, rows: int, n: int, width: int) -> torch.Tensor:
    """A standard normal number for every row, position and coordinate: [B, n, d]."""
    counters = torch.arange(n * width, device=rng.device).view(n, width)
    return rng.normal(counters.expand(rows, -1, -1))
