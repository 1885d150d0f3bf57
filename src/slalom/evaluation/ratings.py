"""Readers' ratings to a table of samplers: as wished, fluent, about itself, and paired differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.document import Block, Entry, Heading, Paragraph, Table, html, markdown
from slalom.evaluation.estimates import (
    Case,
    Difference,
    Estimate,
    Interval,
    Values,
    by_prompt,
    estimate,
    median_interval,
    paired_difference,
)
from slalom.evaluation.metrics import TONES
from slalom.evaluation.sheet import TOXICITY, Rated, Ratings, Source
from slalom.evaluation.summary import MISSING, difference_entry

FLUENT = 4  # a text is called fluent from this rating on

RatingMeasure = Callable[[Source, dict[str, int]], float | None]


def rated_as_wished(source: Source, answers: dict[str, int]) -> float | None:
    """1 if the reader felt the tone or toxicity asked for, else 0; none if none was, or the reader did not say."""
    met = []
    if source.sentiment is not None:
        felt = answers.get("sentiment")
        met.append(None if felt is None else (felt > 0) - (felt < 0) == TONES[source.sentiment])
    if source.toxicity is not None:
        toxic = answers.get(TOXICITY.name)
        met.append(None if toxic is None else (toxic > 0) == (source.toxicity == "high"))
    return None if not met or None in met else float(all(met))


def rated_as_wished_and_fluent(source: Source, answers: dict[str, int]) -> float | None:
    """1 if it is as wished and its fluency is 4 or 5, else 0."""
    wished, fluency = rated_as_wished(source, answers), answers.get("fluency")
    return None if wished is None or fluency is None else float(wished and fluency >= FLUENT)


RATING_MEASURES: dict[str, RatingMeasure] = {
    "as wished": rated_as_wished,
    "fluency": lambda source, answers: answers.get("fluency"),
    "as wished and fluent": rated_as_wished_and_fluent,
    "about itself": lambda source, answers: answers.get("about_itself"),
}


class SamplerRatings(NamedTuple):
    """One sampler's ratings."""

    sampler: str
    texts: int
    estimates: dict[str, Estimate | None]
    fluency_median: Interval | None
    differences: dict[str, Difference | None]  # to the sampler all are compared with


class Summary(NamedTuple):
    """All ratings, and those of each wish alone where there are several."""

    texts: int
    missing: dict[str, int]  # a question → texts it was not answered for
    against: str  # the sampler all are compared with
    overall: list[SamplerRatings]
    by_wish: dict[str, list[SamplerRatings]]


def summarize(ratings: Ratings, against: str | None = None) -> Summary:
    """Ratings by sampler, each compared with the first one or the one named."""
    samplers, rated = ratings
    against = against or samplers[0]
    if against not in samplers:
        raise SlalomError(f"unknown sampler {against!r}; the sheet has {', '.join(samplers)}")
    wishes = sorted({source.wish for one in rated for source in one.text.sources})
    return Summary(
        len(rated),
        {question.name: sum(question.name not in one.answers for one in rated) for question in ratings.questions},
        against,
        sampler_ratings(rated, samplers, against),
        {wish: sampler_ratings(rated, samplers, against, wish) for wish in wishes if len(wishes) > 1},
    )


def sampler_ratings(
    rated: list[Rated], samplers: list[str], against: str, wish: str | None = None
) -> list[SamplerRatings]:
    """Every sampler's figures, of all wishes or of one."""
    pairs = [(one, source) for one in rated for source in one.text.sources if wish in (None, source.wish)]
    texts = Counter(source.sampler for _, source in pairs)
    values: dict[tuple[str, str], Values] = {
        (sampler, name): defaultdict(list) for sampler in samplers for name in RATING_MEASURES
    }
    several = len({one.text.prompt for one in rated}) > 1  # else what is asked for is what differs between texts
    for one, source in pairs:
        prompt = one.text.prompt if several else source.item.partition("/")[2]
        case = Case(prompt, f"{source.task}/{source.item}", source.length)
        for name, measure in RATING_MEASURES.items():
            value = measure(source, one.answers)
            if value is not None:
                values[source.sampler, name][case].append(value)
    return [
        SamplerRatings(
            sampler,
            texts[sampler],
            {name: estimate(by_prompt(values[sampler, name])) for name in RATING_MEASURES},
            median_interval(by_prompt(values[sampler, "fluency"])),
            {name: paired_difference(values[sampler, name], values[against, name]) for name in RATING_MEASURES},
        )
        for sampler in samplers
        if texts[sampler]
    ]


def ratings_json(summary: Summary) -> dict[str, Any]:
    """The same for `--json`."""

    def rows(ratings: list[SamplerRatings]) -> list[dict[str, Any]]:
        return [
            row._asdict()
            | {"estimates": {name: one and one._asdict() for name, one in row.estimates.items()}}
            | {"fluency_median": row.fluency_median and row.fluency_median._asdict()}
            | {"differences": {name: one and one._asdict() for name, one in row.differences.items()}}
            for row in ratings
        ]

    by_wish = {wish: rows(ratings) for wish, ratings in summary.by_wish.items()}
    return summary._asdict() | {"overall": rows(summary.overall), "by_wish": by_wish}


def ratings_blocks(summary: Summary) -> list[Block]:
    """The tables and how to read them."""
    missing = ", ".join(f"{name} {number}" for name, number in summary.missing.items())
    blocks: list[Block] = [
        Heading("Ratings by blind readers", 1),
        Paragraph(
            f"{summary.texts:,} different texts. Not answered, and left out below: {missing}. "
            "Smaller: 95 % bootstrap intervals, by drawing whole prompts with replacement, and how many texts were "
            "rated if not all. "
            "As wished: sentiment at least 1 where positive was asked for, at most -1 where negative was, 0 where "
            "neutral was; not toxic at all where that was asked for. "
            f"Fluent: {FLUENT} or 5. {MISSING} is what was not asked for or not rated."
        ),
    ]
    blocks += sampler_tables(summary.overall, summary.against)
    for wish, rows in summary.by_wish.items():
        blocks += [Heading(wish), *sampler_tables(rows, summary.against)]
    return blocks


def sampler_tables(rows: list[SamplerRatings], against: str) -> list[Block]:
    """Each sampler's ratings, and the paired differences to one sampler."""
    columns = ["sampler", "texts", "as wished", "fluency", "fluency, median", "as wished and fluent", "about itself"]
    figures, differences = [], []
    for row in rows:
        means = {name: _entry(estimated, row.texts) for name, estimated in row.estimates.items()}
        median = _median_entry(row.estimates["fluency"], row.fluency_median)
        shown = [means["as wished"], means["fluency"], median, means["as wished and fluent"], means["about itself"]]
        figures.append([Entry(row.sampler), Entry(str(row.texts)), *shown])
        if row.sampler != against:
            differences.append(
                [Entry(row.sampler), *(difference_entry(row.differences[name], 2) for name in RATING_MEASURES)]
            )
    caption = f"Paired differences to {against}: same prompt, wish and length."
    blocks: list[Block] = [Table(columns, figures)]
    return blocks + ([Table(["sampler", *RATING_MEASURES], differences, caption)] if differences else [])


def _entry(estimated: Estimate | None, texts: int) -> Entry:
    if estimated is None:
        return Entry(MISSING)
    rated = "" if estimated.n == texts else f", {estimated.n} rated"
    return Entry(f"{estimated.mean:.2f}", note=f"{estimated.low:.2f} to {estimated.high:.2f}{rated}")


def _median_entry(estimated: Estimate | None, interval: Interval | None) -> Entry:
    if estimated is None or interval is None:
        return Entry(MISSING)
    return Entry(f"{estimated.median:g}", note=f"{interval.low:g} to {interval.high:g}")


def write_ratings(folder: Path, blocks: list[Block]) -> list[Path]:
    """ratings.md, and ratings.html, a page in one file."""
    written = {"ratings.md": markdown(blocks), "ratings.html": html("Slalom: ratings", blocks)}
    for name, text in written.items():
        store.write_text(folder / name, text)
    return [folder / name for name in written]
