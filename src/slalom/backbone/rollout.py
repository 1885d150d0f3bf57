"""Prompts to a draft: n tokens a row, each the best by the logits and whatever bias is passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers import RepetitionPenaltyLogitsProcessor

from slalom.backbone.ending import before_stop, ends_sentence, tokens_for, whole_sentences
from slalom.backbone.passes import count_passes
from slalom.types import Draft, Prompt

if TYPE_CHECKING:
    from slalom.backbone.engine import Memory, Pass, Prefix
    from slalom.backbone.model import LanguageModel
    from slalom.backbone.vocabulary import Vocabulary

REPETITION_PENALTY = 1.2
FREE = -1  # where a rollout may choose a token itself
SENTENCE_MARKS = frozenset(".!?")  # one of them is in a token that ends a sentence
GROUP = 16  # logits whose highest is looked at before the rest of them

# Positions [a] of some rows [a] and their logits [a, V] → which of those rows are biased [b], and what to add [b, V].
Bias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

# Positions [a] of some rows [a] and their scores [a, V] → scores whose best token is the one drawn, [a, V].
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Some rows [a], what each has written [a, i] and their scores [a, V] → the scores to choose by, [a, V].
Tilt = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Prompts(NamedTuple):
    """Different prompts the engine has read, ready to be continued many times."""

    prompts: list[Prompt]
    prefix: Prefix

    def select(self, rows: list[int]) -> Prompts:
        """Only these, in this order."""
        return Prompts([self.prompts[row] for row in rows], self.prefix.select(rows))

    def join(self, other: Prompts) -> Prompts:
        """Those of both."""
        return Prompts(self.prompts + other.prompts, self.prefix.join(other.prefix))


class Rollout(NamedTuple):
    """A draft, and at every position its candidates: the token itself, the LM's k favourites, extra ones asked for."""

    draft: Draft
    memory: Memory  # the engine's, to go on from any position
    candidates: torch.Tensor  # [B, n, c]
    log_probs: torch.Tensor  # [B, n, c], the LM's before any bias
    repeated: torch.Tensor  # bool [B, n, c], a candidate that stands there already

    def where(self, take: torch.Tensor, other: Rollout) -> Rollout:
        """This rollout's rows where `take` says so, bool [B], the other's elsewhere; its memory is reused for that."""
        pairs = zip(self[2:], other[2:], strict=True)
        merged = (torch.where(take.view(-1, *[1] * (mine.dim() - 1)), mine, their) for mine, their in pairs)
        return Rollout(self.draft.where(take, other.draft), self.memory.where(take, other.memory), *merged)

    def select(self, rows: list[int] | torch.Tensor) -> Rollout:
        """Only these rows, in this order."""
        return Rollout(self.draft.select(rows), self.memory.select(rows), *(tensor[rows] for tensor in self[2:]))

    def join(self, other: Rollout, prompts: tuple[int, int]) -> Rollout:
        """The rows of both, whose prompts took so many columns each."""
        n, c = (max(own.candidates.shape[dim] for own in (self, other)) for dim in (1, 2))
        return Rollout(
            self.draft.join(other.draft),
            self.memory.join(other.memory, prompts),
            *(
                torch.cat([per_candidate(tensor, n, c, filling) for tensor in pair])
                for *pair, filling in zip(self[2:], other[2:], (0, 0, True), strict=True)
            ),
        )


def per_candidate(tensor: torch.Tensor, n: int, c: int, filling: float) -> torch.Tensor:
    """A tensor of candidates [B, _, _] with n positions and c candidates each, the new ones filled."""
    wide = tensor.new_full((len(tensor), n, c), filling)
    wide[:, : tensor.shape[1], : tensor.shape[2]] = tensor
    return wide


class Forbidden(NamedTuple):
    """What may never be written."""

    tokens: torch.Tensor  # bool [V], never proposed
    written: Callable[[Prompt, list[int]], bool]  # whether a prompt's continuation holds anything forbidden


class Limits(NamedTuple):
    """How far and under which rules a row goes; the same for every sampler."""

    length: int
    free: bool = False  # free length: EOS ends a row, line breaks are allowed
    repetition_penalty: float = REPETITION_PENALTY  # on generated tokens
    forbidden: Forbidden | None = None
    stops: tuple[str, ...] = ()  # a text ends before the first of these
    whole: bool = False  # a text that reaches the length ends after its last whole sentence
    sentence_from: int | None = None  # a text of so many tokens or more ends with the sentence it is in
    line_breaks: bool = False  # they are allowed in fixed length too
    ends_with: tuple[str, ...] = ()  # a text ends with the token that completes one of these


class Resumed(NamedTuple):
    """An earlier rollout, which of its rows each row goes on from, and the position from which it is written anew."""

    origin: Rollout
    starts: torch.Tensor  # [B]
    rows: torch.Tensor | None = None  # [B]; each its own if left out


@torch.inference_mode()
def rollout(
    lm: LanguageModel,
    prompts: Prompts,
    rows: torch.Tensor,
    limits: Limits | list[Limits],
    bias: Bias | None = None,
    top_k: int = 0,
    extra: list[list[int]] | None = None,
    resumed: Resumed | None = None,
    draw: Draw | None = None,
    forced: torch.Tensor | None = None,
    tilt: Tilt | None = None,
) -> Rollout:
    """Continue prompt `rows[i]` in row i, greedily or as `draw` says, adding `bias` to the logits of each position.

    Limits are those of all rows, or a list of each row's own. `extra` are each row's own candidates, wanted at every
    position. `forced` [B, n] are tokens to be written whatever the LM thinks, unless they would write something
    forbidden; -1 leaves a position to the LM. `tilt` changes the scores by what each row has written so far, before
    anything is drawn; not of rollouts that go on from an earlier one. Those begin where each row begins: no row waits
    for another's position.
    """
    device, owners = rows.device, [prompts.prompts[row] for row in rows.tolist()]
    listed = [limits] * len(rows) if isinstance(limits, Limits) else limits
    room = 0 if resumed is None else resumed.origin.candidates.shape[-1] - 1 - top_k
    asked = _padded(extra or [[]] * len(rows), device, room)
    begins = torch.zeros_like(rows) if resumed is None else resumed.starts
    order = _order(begins.tolist(), [one.length for one in listed], device)
    starts, ends = begins[order], torch.tensor([listed[row].length for row in order.tolist()], device=device)
    if resumed is None:
        out, memory = _blank(ends, 1 + top_k + asked.shape[1], lm.vocabulary.pad), None
    else:
        source = order if resumed.rows is None else resumed.rows[order]
        out, memory = _copy(resumed.origin, source, starts, ends), resumed.origin.memory.select(source)
    rules = _Rules.of(lm.vocabulary, [listed[row] for row in order.tolist()], [owners[row] for row in order.tolist()])
    eos, asked = torch.tensor(lm.vocabulary.eos, device=device), asked[order]
    n = out.tokens.shape[1]

    def choose(scores: torch.Tensor, which: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """The best token of some rows, each at its position, or the one drawn, or the one forced."""
        if tilt is not None:
            assert resumed is None, "rows at positions of their own have no text of one length"
            scores = tilt(order[which], out.tokens[which, : int(at[0])], scores)
        if draw is not None:
            scores = draw(at, order[which], scores)
        if forced is not None:
            tokens = forced[order[which], at]
            fixed = (tokens != FREE).nonzero()[:, 0]
            scores = scores.index_put((fixed, tokens[fixed]), scores.new_tensor(torch.inf))
        return rules.best(scores, which, out.tokens, at)

    run = lm.engine.start(prompts.prefix, rows[order], (starts - 1).tolist(), n, memory)
    for step in range(int((ends - starts).max()) if len(starts) else 0):
        places = starts + step
        live = (places < out.lengths).nonzero()[:, 0]  # the rows that are written
        if not len(live):
            break
        at = places[live]
        logits = _logits(run, prompts.prefix.logits, rows[order], step, out.tokens, places, live)
        count_passes(len(live))
        scores = rules.allowed(logits, live, out.tokens, at)
        chosen = choose(scores, live, at)
        if bias is not None:
            biased, vectors = bias(at, order[live], logits)
            chosen[biased] = choose(scores[biased] + vectors, live[biased], at[biased])

        ended = torch.isin(chosen, eos)
        out.lengths[live[ended]] = at[ended]
        out.ended[live] |= ended
        out.tokens[live, at] = chosen
        complete = rules.complete(lm.vocabulary, live, out.tokens, at)
        out.lengths[live[complete]] = at[complete] + 1

        extras = asked[live].clamp(min=0)
        total = logits.logsumexp(-1, keepdim=True)
        first, last = (logits.gather(-1, tokens) for tokens in (chosen[:, None], extras))
        logits.masked_fill_(_of(rules.never, live), -torch.inf)  # the last use of these logits
        values, favourites = highest(logits, top_k)
        out.candidates[live, at] = torch.cat([chosen[:, None], favourites, extras], dim=-1)
        out.candidate_log_probs[live, at] = torch.cat([first, values, last], dim=-1) - total
        out.log_probs[live, at] = (first - total)[:, 0]
    back = order.argsort()
    written = (out.tokens[back], out.lengths[back], out.log_probs[back], out.ended[back])
    draft = finished(lm, owners, *written, listed)
    candidates = out.candidates[back]
    candidates[..., 0] = draft.tokens
    again = repeated(candidates, top_k)
    again[..., 1 + top_k :] |= (asked[back] < 0)[:, None]
    memory = run.memory if order.equal(torch.arange(len(order), device=device)) else run.memory.reorder(back)
    return Rollout(draft, memory, candidates, out.candidate_log_probs[back], again)


def unwritten(
    lm: LanguageModel,
    prompts: Prompts,
    rows: torch.Tensor,
    limits: list[Limits],
    top_k: int = 0,
    extra: list[list[int]] | None = None,
) -> Rollout:
    """Rows in which nothing stands yet, to be written from their first position on beside others that go on."""
    ends = torch.tensor([one.length for one in limits], device=rows.device)
    asked = _padded(extra or [[]] * len(rows), rows.device)
    out = _blank(ends, 1 + top_k + asked.shape[1], lm.vocabulary.pad)
    owners = [prompts.prompts[row] for row in rows.tolist()]
    memory = lm.engine.start(prompts.prefix, rows, [-1] * len(rows), out.tokens.shape[1], None).memory
    draft = lm.draft(owners, out.tokens, torch.zeros_like(ends), out.log_probs)
    nothing = torch.ones_like(out.candidates, dtype=torch.bool)
    return Rollout(draft, memory, out.candidates, out.candidate_log_probs, nothing)


def highest(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest of logits [a, V] and their tokens, [a, k] each: topk's, several times as fast where k << V.

    They stand in the k groups whose own highest logits are the highest, so nothing else need be sorted.
    """
    groups = logits.shape[-1] // GROUP
    if groups < 4 * k:
        return logits.topk(k)
    rest = torch.arange(groups * GROUP, logits.shape[-1], device=logits.device)
    grouped = logits[:, : groups * GROUP].view(-1, groups, GROUP)
    chosen = grouped.amax(-1).topk(k, sorted=False).indices
    tokens = (chosen[..., None] * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    tokens = torch.cat([tokens, rest.expand(len(logits), -1)], dim=-1)
    best = logits.gather(-1, tokens).topk(k)
    return best.values, tokens.gather(-1, best.indices)


def _order(starts: list[int], ends: list[int], device: torch.device) -> torch.Tensor:
    """Rows in the order in which an engine takes them: those first that have the most to write."""
    left = [end - start for start, end in zip(starts, ends, strict=True)]
    return torch.tensor(sorted(range(len(left)), key=lambda row: -left[row]), device=device).long()


def _logits(
    run: Pass,
    after_prompts: torch.Tensor,
    owners: torch.Tensor,
    step: int,
    tokens: torch.Tensor,
    places: torch.Tensor,
    live: torch.Tensor,
) -> torch.Tensor:
    """The logits [a, V] at the places of some rows [a]: after the prompt, or after the token before."""
    if step:
        return run.read(step, _before(tokens, places), live)
    going = (places[live] > 0).nonzero()[:, 0]
    logits = after_prompts[owners[live]]
    if len(going):
        logits[going] = run.read(step, _before(tokens, places), live[going])
    return logits


def _before(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of tokens [B, n] each row's last one before its place: [B]."""
    return tokens.gather(1, (places - 1).clamp(0, tokens.shape[1] - 1)[:, None])[:, 0]


def _banned(vocabulary: Vocabulary, limits: Limits) -> torch.Tensor:
    """What may not be written under these limits: bool [V]."""
    if limits.free:
        return vocabulary.banned_free
    return vocabulary.special if limits.line_breaks else vocabulary.banned_fixed


class _Rules(NamedTuple):
    """What each row may write."""

    limits: list[Limits]
    prompts: list[Prompt]
    banned: torch.Tensor  # bool [B, V], never written
    never: torch.Tensor  # bool [B, V], never a candidate
    begun: torch.Tensor  # [B, b], tokens of earlier blocks, filled up with -1
    penalty: float | None  # on repeated tokens, if all rows have the same
    may_end_early: bool  # whether some row ends with a sentence, or with some string

    @staticmethod
    def of(vocabulary: Vocabulary, limits: list[Limits], prompts: list[Prompt]) -> _Rules:
        never = vocabulary.never_candidates
        banned = [_banned(vocabulary, one) for one in limits]
        return _Rules(
            limits,
            prompts,
            _stacked(banned, vocabulary.banned_fixed),
            _stacked([never if one.forbidden is None else never | one.forbidden.tokens for one in limits], never),
            _padded([list(prompt.begun_ids) for prompt in prompts], never.device),
            limits[0].repetition_penalty if len({one.repetition_penalty for one in limits}) == 1 else None,
            any(one.sentence_from is not None or one.ends_with for one in limits),
        )

    def allowed(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Logits [a, V] of some rows after the repetition penalty, without what may not be written: a new tensor."""
        scores, banned = self.penalised(logits, rows, tokens, places), _of(self.banned, rows)
        return scores.masked_fill(banned, -torch.inf) if scores is logits else scores.masked_fill_(banned, -torch.inf)

    def penalised(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Logits [a, V] of some rows, the tokens [B, n] of each up to its place [a] penalised for being repeated."""
        if self.penalty == 1.0:
            return logits
        written = torch.arange(tokens.shape[1], device=places.device) < places[:, None]
        seen = torch.cat([self.begun[rows], torch.where(written, tokens[rows], FREE)], dim=1)
        if not seen.shape[1]:
            return logits
        some = seen.amax(1, keepdim=True)  # a token of the row's own stands for the filling
        seen = torch.where(seen < 0, some, seen)
        if self.penalty is not None:  # the usual case, without asking the device which rows have written anything
            penalised = penalise(logits, seen.clamp(min=0), self.penalty)
            penalised[:, 0] = torch.where(some[:, 0] < 0, logits[:, 0], penalised[:, 0])
            return penalised
        penalties = [self.limits[row].repetition_penalty for row in rows.tolist()]
        for penalty in set(penalties) - {1.0}:
            wanted = [one == penalty for one in penalties]
            own = (torch.tensor(wanted, device=logits.device) & (some[:, 0] >= 0)).nonzero()[:, 0]
            if len(own) == len(logits):
                logits = penalise(logits, seen, penalty)
            elif len(own):
                logits = logits.index_copy(0, own, penalise(logits[own], seen[own], penalty))
        return logits

    def best(
        self, scores: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Of scores [a, V] of some rows [a], each row's best token that writes nothing forbidden after those before."""
        chosen = scores.argmax(-1)
        if all(one.forbidden is None for one in self.limits):
            return chosen
        for number, (row, place) in enumerate(zip(rows.tolist(), places.tolist(), strict=True)):
            if (forbidden := self.limits[row].forbidden) is not None:
                own, before = scores[number : number + 1], tokens[row, :place].tolist()
                chosen[number] = best_allowed(own, [self.prompts[row]], [before], forbidden)[0]
        return chosen

    def complete(
        self, vocabulary: Vocabulary, rows: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Which of some rows [a] end with the token at their place, before their length: numbers of them."""
        if not self.may_end_early:
            return rows.new_empty(0)
        complete = []
        for number, (row, place) in enumerate(zip(rows.tolist(), places.tolist(), strict=True)):
            limits = self.limits[row]
            late_enough = limits.sentence_from is not None and place + 1 >= limits.sentence_from
            if not late_enough and not limits.ends_with:
                continue
            written = tokens[row, : place + 1].tolist()
            if self._ends_with_string(vocabulary, row, written) or (
                late_enough and self._ends_sentence(vocabulary, row, written)
            ):
                complete.append(number)
        return torch.tensor(complete, dtype=torch.long, device=rows.device)

    def _ends_sentence(self, vocabulary: Vocabulary, row: int, written: list[int]) -> bool:
        if SENTENCE_MARKS.isdisjoint(vocabulary.texts[written[-1]]):
            return False
        return ends_sentence(vocabulary.continuations([self.prompts[row]], [written])[0])

    def _ends_with_string(self, vocabulary: Vocabulary, row: int, written: list[int]) -> bool:
        if not (strings := self.limits[row].ends_with):
            return False
        (text,) = vocabulary.continuations([self.prompts[row]], [written])
        return before_stop(self.prompts[row].begun + text, strings) is not None


def _stacked(masks: list[torch.Tensor], usual: torch.Tensor) -> torch.Tensor:
    """Masks [V] as [B, V]; a view of one if all are the same."""
    if all(mask is masks[0] for mask in masks):
        return (masks[0] if masks else usual).expand(len(masks), -1)
    return torch.stack(masks)


def _of(masks: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Some rows of masks [B, V]; [1, V] if all are the same one, which is not copied then."""
    return masks[:1] if masks.stride(0) == 0 else masks[rows]


def _padded(rows: Sequence[list[int]], device: torch.device, least: int = 0) -> torch.Tensor:
    """Lists of tokens as [B, longest], or so many columns at the least, filled up with -1."""
    longest = max([least, *map(len, rows)])
    filled = [row + [-1] * (longest - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.long, device=device).view(len(rows), longest)


def finished(
    lm: LanguageModel,
    prompts: list[Prompt],
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    log_probs: torch.Tensor,
    ended: torch.Tensor,
    limits: Limits | list[Limits],
) -> Draft:
    """Tokens [B, n] as they were written to a draft that ends where the limits say; past its end is padding."""
    draft = lm.draft(prompts, tokens, lengths, log_probs, ended)
    return ended_by(draft, [limits] * len(tokens) if isinstance(limits, Limits) else limits)


def ended_by(draft: Draft, limits: list[Limits]) -> Draft:
    """Each row up to its first stop string or, if it ran into the limit, its last whole sentence; then padding."""
    lengths, ended, texts = draft.lengths.clone(), draft.ended.clone(), list(draft.texts)
    for row, (text, own) in enumerate(zip(texts, limits, strict=True)):
        end = before_stop(text, own.stops)
        if end is None and own.whole and lengths[row] == own.length:
            end = whole_sentences(text)
        if end is not None:
            tokens = draft.tokens[row, : lengths[row]].tolist()
            lengths[row] = tokens_for(draft.vocabulary, draft.prompts[row], tokens, end)
            texts[row], ended[row] = text[:end], False
    past = torch.arange(draft.tokens.shape[1], device=lengths.device) >= (lengths + ended)[:, None]
    return draft._replace(
        tokens=draft.tokens.masked_fill(past, draft.vocabulary.pad),
        lengths=lengths,
        texts=texts,
        log_probs=draft.log_probs.masked_fill(past, 0),
        ended=ended,
    )


class _Written(NamedTuple):
    """What a rollout fills in, position by position."""

    tokens: torch.Tensor  # [B, n]
    lengths: torch.Tensor  # [B]
    ended: torch.Tensor  # bool [B]
    log_probs: torch.Tensor  # [B, n]
    candidates: torch.Tensor  # [B, n, c]
    candidate_log_probs: torch.Tensor  # [B, n, c]


def _blank(ends: torch.Tensor, candidates: int, pad: int) -> _Written:
    size, n = len(ends), int(ends.max()) if len(ends) else 0
    return _Written(
        ends.new_full((size, n), pad),
        ends.clone(),
        torch.zeros_like(ends, dtype=torch.bool),
        torch.zeros(size, n, device=ends.device),
        ends.new_zeros(size, n, candidates),
        torch.zeros(size, n, candidates, device=ends.device),
    )


def _copy(origin: Rollout, rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> _Written:
    """What stands before the starts is kept; a row written anew may be longer than it was."""
    draft = origin.draft
    again = starts <= draft.lengths[rows]
    return _Written(
        draft.tokens[rows],
        torch.where(again, ends, draft.lengths[rows]),
        draft.ended[rows] & ~again,
        draft.log_probs[rows],
        origin.candidates[rows],
        origin.log_probs[rows],
    )


def best_allowed(
    scores: torch.Tensor, prompts: list[Prompt], before: list[list[int]], forbidden: Forbidden
) -> torch.Tensor:
    """Of scores [B, V] each row's best token that, after the tokens before it, writes nothing forbidden: [B]."""
    chosen = scores.argmax(-1)
    for row, (prompt, tokens) in enumerate(zip(prompts, before, strict=True)):
        if forbidden.written(prompt, [*tokens, int(chosen[row])]):
            order = scores[row].argsort(descending=True).tolist()
            chosen[row] = next(token for token in order if not forbidden.written(prompt, [*tokens, token]))
    return chosen


def repeated(candidates: torch.Tensor, favourites: int) -> torch.Tensor:
    """Which candidates [..., c] stand there already: as the token itself or, extra ones, among the favourites."""
    again = torch.zeros_like(candidates, dtype=torch.bool)
    again[..., 1:] = candidates[..., 1:] == candidates[..., :1]
    for column in range(1 + favourites, candidates.shape[-1]):
        again[..., column] |= (candidates[..., 1:column] == candidates[..., column, None]).any(-1)
    return again


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """CTRL's repetition penalty: logits of the tokens already generated move away from being chosen."""
    if penalty == 1.0 or seen.shape[1] == 0:
        return logits
    return RepetitionPenaltyLogitsProcessor(penalty)(seen, logits)
