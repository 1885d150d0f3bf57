"""Values by prompt to means with standard errors, bootstrap intervals and paired differences."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from slalom.errors import SlalomError

RESAMPLES = 1000
FEWEST_PROMPTS = 6  # with 5, all differences have the same sign by chance once in 16 times: too often

Clusters = dict[str, list[float]]  # a prompt → its texts' values, which are not independent


class Estimate(NamedTuple):
    """A mean and its uncertainty."""

    mean: float
    error: float | None  # standard error: sample standard deviation / sqrt(n); none for a single value
    low: float  # 95 % bootstrap interval
    high: float
    n: int
    median: float


class Interval(NamedTuple):
    """A 95 % bootstrap interval."""

    low: float
    high: float


class Case(NamedTuple):
    """What is asked of a text; samplers are compared on equal cases."""

    prompt: str
    wish: str
    length: int
    record: str = ""  # of the task's records, the one that fills in the wish


Values = dict[Case, list[float]]


class Difference(NamedTuple):
    """How much higher one sampler is than another."""

    mean: float
    low: float  # 95 % bootstrap interval
    high: float
    prompts: int

    def significant(self, higher: bool = True) -> bool:
        """Whether it is higher (or lower): the interval excludes 0, over enough prompts."""
        return self.prompts >= FEWEST_PROMPTS and (self.low > 0 if higher else self.high < 0)


def estimate(clusters: Clusters, seed: int = 0) -> Estimate | None:
    """The mean of all values, its standard error, a 95 % percentile bootstrap interval, the median; none of no values.

    The standard error takes all values as independent, as the paper's does. The interval does not: it draws whole
    clusters (the texts of one prompt) with replacement, 1,000 times.
    """
    kept = [values for values in clusters.values() if values]
    if not kept:
        return None
    values = np.concatenate([np.asarray(own, dtype=float) for own in kept])
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    sums, sizes = np.array([sum(own) for own in kept]), np.array([len(own) for own in kept])
    low, high = bootstrap_interval((sums, sizes), lambda s, n, axis: s.sum(axis) / n.sum(axis), seed, vectorized=True)
    return Estimate(float(values.mean()), error, low, high, len(values), float(np.median(values)))


def median_interval(clusters: Clusters, seed: int = 0) -> Interval | None:
    """The median's 95 % percentile bootstrap interval, whole clusters drawn as for the mean's; none of no values."""
    kept = [values for values in clusters.values() if values]
    if not kept:
        return None

    def median(drawn: np.ndarray) -> float:
        return float(np.median(np.concatenate([kept[i] for i in drawn])))

    return bootstrap_interval((np.arange(len(kept)),), median, seed, vectorized=False)


def bootstrap_interval(
    clusters: tuple[np.ndarray, ...], statistic: Callable[..., Any], seed: int, vectorized: bool
) -> Interval:
    """95 % percentile interval of a statistic by drawing clusters with replacement; each array has one entry for each.

    Of a single cluster there is only one draw, which scipy refuses.
    """
    if len(clusters[0]) == 1:
        only = float(statistic(*clusters, axis=0) if vectorized else statistic(*clusters))
        return Interval(only, only)
    found = scipy_bootstrap()(
        clusters,
        statistic,
        n_resamples=RESAMPLES,
        vectorized=vectorized,
        paired=True,
        confidence_level=0.95,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def scipy_bootstrap() -> Callable[..., Any]:
    """`scipy.stats.bootstrap`, or an error that says how to install it."""
    try:
        from scipy.stats import bootstrap
    except ImportError:
        raise SlalomError("bootstrap intervals need scipy: pip install 'slalom[eval]'") from None
    return bootstrap


def by_prompt(values: Values) -> Clusters:
    """All values of a prompt together, whatever the wish and the length; where there is one prompt, of a record."""
    several = len({case.prompt for case in values}) > 1
    clusters: Clusters = defaultdict(list)
    for case, listed in values.items():
        clusters[case.prompt if several else case.record] += listed
    return clusters


def paired_difference(own: Values, other: Values) -> Difference | None:
    """The mean over all common cases of mean minus mean, its interval by drawing prompts; none without common cases."""
    clusters = by_prompt(
        {
            case: [fmean(own[case]) - fmean(other[case])] if own.get(case) and other.get(case) else []
            for case in [*own, *other]
        }
    )
    estimated = estimate(clusters)
    prompts = sum(1 for differences in clusters.values() if differences)
    return estimated and Difference(estimated.mean, estimated.low, estimated.high, prompts)
