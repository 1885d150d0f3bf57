"""A seed a row to random numbers that are a pure function of what they are for.

A number depends on the row's seed and the counters it is asked for (a step, a position, a token) and on nothing else:
not on the batch mates, not on the order of candidates, not on the engine. So the same seed gives the same text.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from slalom.backbone.placement import double_device

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


class Rng(NamedTuple):
    """One stream of random numbers a row.

    Devices without float64 get theirs from the CPU.
    """

    keys: torch.Tensor  # [B] int64, where float64 can be computed
    device: torch.device  # where the numbers are wanted

    @staticmethod
    def from_seeds(seeds: list[int], device: torch.device) -> Rng:
        """A stream for each seed."""
        return Rng(_mix(torch.tensor(seeds, dtype=torch.long, device=double_device(device))), device)

    def fold(self, number: int | torch.Tensor) -> Rng:
        """The streams with a number of their own: a step's, say; one for all rows, or each row its own [B]."""
        if isinstance(number, torch.Tensor):
            number = number.to(self.keys.device)
        return self._replace(keys=_mix(_mix(self.keys) ^ number))

    def join(self, other: Rng) -> Rng:
        """The streams of both."""
        return self._replace(keys=torch.cat([self.keys, other.keys]))

    def select(self, rows: list[int] | torch.Tensor) -> Rng:
        """Only these rows' streams."""
        return self._replace(keys=self.keys[rows.to(self.keys.device) if isinstance(rows, torch.Tensor) else rows])

    def uniform(self, counters: torch.Tensor) -> torch.Tensor:
        """A number in (0, 1), ends excluded, for each counter: [B, ...] int64 to [B, ...] float64, beside the keys."""
        counters = counters.to(self.keys.device)
        keys = self.keys.view(-1, *[1] * (counters.dim() - 1))
        bits = _unsigned_shift(
            _mix(keys + _mix(counters)), 12
        )  # 52 bits: with the half added, float64 holds it exactly
        return (bits.double() + 0.5) / (1 << 52)

    def gumbel(self, counters: torch.Tensor) -> torch.Tensor:
        """Gumbel noise for each counter: argmax of log-weights plus this samples from the weights."""
        return (-torch.log(-torch.log(self.uniform(counters)))).float().to(self.device)

    def normal(self, counters: torch.Tensor) -> torch.Tensor:
        """A standard normal number for each counter, by Box and Muller."""
        radius = (-2 * torch.log(self.uniform(2 * counters))).sqrt()
        return (radius * torch.cos(2 * math.pi * self.uniform(2 * counters + 1))).float().to(self.device)

    def normals(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers for a whole vocabulary, [B, *shape]: torch's own, each row's from its key.

        Ten times as fast as `normal`, but another kind of device has other numbers.
        """
        streams = [torch.Generator(self.device).manual_seed(key) for key in self.keys.tolist()]
        return torch.stack([torch.randn(shape, generator=stream, device=self.device) for stream in streams])


def _mix(numbers: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser: every input bit changes half of the output's."""
    numbers = numbers + _GOLDEN
    numbers = (numbers ^ _unsigned_shift(numbers, 30)) * _MIX_1
    numbers = (numbers ^ _unsigned_shift(numbers, 27)) * _MIX_2
    return numbers ^ _unsigned_shift(numbers, 31)


def _unsigned_shift(numbers: torch.Tensor, by: int) -> torch.Tensor:
    return (numbers >> by) & ((1 << (64 - by)) - 1)
