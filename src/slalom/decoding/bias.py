"""Bias tokens to bias vectors: minus the squared embedding distance to each token, its norm matched to the logits'."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.placement import double, double_device
from slalom.backbone.vocabulary import Vocabulary

Ready = dict[int, torch.Tensor]  # b~ of some tokens, [V] each


class Geometry(NamedTuple):
    """What the distances need of an embedding table, computed once per LM."""

    table: torch.Tensor  # [V, d] float32
    squares: torch.Tensor  # [V], n_j = ||e_j||^2
    distance_norms: torch.Tensor  # [V], ||b~|| for each token as the bias token
    recent: Ready  # of the tokens asked for last: from step to step most stay


RECENT = 128  # of these at the most
PART = 1024  # rows of a table taken at a time


_GEOMETRIES: WeakKeyDictionary[Vocabulary, Geometry] = WeakKeyDictionary()
_MEASURING, _PREPARING = threading.Lock(), threading.Lock()


def geometry(vocabulary: Vocabulary) -> Geometry:
    """The vocabulary's geometry, from memory after the first time."""
    with _MEASURING:
        if vocabulary not in _GEOMETRIES:
            _GEOMETRIES[vocabulary] = _measure(vocabulary.embeddings)
        return _GEOMETRIES[vocabulary]


@torch.inference_mode()
def _measure(embeddings: torch.Tensor) -> Geometry:
    """Squared norms, and the norms of all V distance vectors in closed form through the d x d Gram matrix.

    In double precision, a part of the table at a time: a whole table in double would be the largest thing in memory.
    """
    size, width = embeddings.shape
    device = double_device(embeddings.device)
    squares, products, total, weighted = (
        torch.zeros(shape, dtype=torch.double, device=device) for shape in (size, size, width, width)
    )
    gram = total.new_zeros(width, width)
    for start in range(0, size, PART):
        some = slice(start, start + PART)
        part = double(embeddings[some])
        squares[some] = part.square().sum(-1)
        gram += part.T @ part
        total += part.sum(0)
        weighted += squares[some] @ part
    for start in range(0, size, PART):
        some = slice(start, start + PART)
        part = double(embeddings[some])
        products[some] = ((part @ gram) * part).sum(-1) - squares[some] * (part @ total) - part @ weighted
    norms = size * squares**2 + squares.square().sum() + 2 * squares * squares.sum() + 4 * products
    squares, norms = (tensor.float().to(embeddings.device) for tensor in (squares, norms.clamp(min=0).sqrt()))
    return Geometry(embeddings.float(), squares, norms, {})


def distances(shape: Geometry, tokens: torch.Tensor, ready: Ready) -> torch.Tensor:
    """b~: the squared distance of every vocabulary token to each bias token: [B] → [B, V] (the paper's bias vector).

    Taken from what is ready, if all of it is.
    """
    listed = tokens.tolist()
    if not listed or not all(token in ready for token in listed):
        return _distances(shape, tokens)
    return torch.stack([ready[token] for token in listed])


def prepare(shape: Geometry, tokens: torch.Tensor) -> Ready:
    """b~ of these tokens, the new ones all in one product; nothing if they are too many to be kept.

    The recent ones are shared by all threads, what is returned is the caller's.
    """
    listed = dict.fromkeys(tokens.tolist())
    if len(listed) > RECENT:
        return {}
    with _PREPARING:
        new = [token for token in listed if token not in shape.recent]
        spare = [token for token in shape.recent if token not in listed]
        for token in spare[: max(0, len(new) + len(shape.recent) - RECENT)]:
            del shape.recent[token]
        if new:
            vectors = _distances(shape, torch.tensor(new, device=tokens.device))
            shape.recent.update((token, vector.clone()) for token, vector in zip(new, vectors, strict=True))
        return {token: shape.recent[token] for token in listed}


def _distances(shape: Geometry, tokens: torch.Tensor) -> torch.Tensor:
    products = shape.table[tokens] @ shape.table.T
    return shape.squares[tokens, None] - 2 * products + shape.squares


# The size of the logits that the bias is matched to. Argmax ignores a constant added to all logits; only the
# centred form ignores it too, which is why it carries over between models.

Norm = Callable[[torch.Tensor], torch.Tensor]  # logits [B, V] → [B]


def centred_norm(logits: torch.Tensor) -> torch.Tensor:
    """||logits - their mean||."""
    return (logits - logits.mean(-1, keepdim=True)).norm(dim=-1)


def raw_norm(logits: torch.Tensor) -> torch.Tensor:
    """||logits||, as the authors' code has it."""
    return logits.norm(dim=-1)


def log_probability_norm(logits: torch.Tensor) -> torch.Tensor:
    """||log-probabilities||, as the paper has it."""
    return logits.log_softmax(-1).norm(dim=-1)


NORMS: dict[str, Norm] = {"centred": centred_norm, "logits": raw_norm, "log-probabilities": log_probability_norm}

# The weight over positions.

Schedule = Callable[[int, int], float]  # position and length → factor

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda i, n: 1.0,
    "decreasing": lambda i, n: 1 - i / n,
    "increasing": lambda i, n: i / n,
}


def bias_vector(
    shape: Geometry, tokens: torch.Tensor, logits: torch.Tensor, weights: torch.Tensor, norm: Norm, ready: Ready
) -> torch.Tensor:
    """- w r b~ for one position (the paper's Eq. for y_i): bias tokens [b], logits [b, V], weights [b] → [b, V]."""
    # Match norms first and weigh once after: any earlier factor on the bias would cancel here.
    ratio = norm(logits) / shape.distance_norms[tokens]
    return -(weights * ratio)[:, None] * distances(shape, tokens, ready)
