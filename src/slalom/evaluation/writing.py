"""Planned chunks to texts in generations.jsonl; interrupted at any moment, a later call completes the same file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.plan import Chunk
from slalom.evaluation.progress import OnProgress, Progress, WritingSpeed
from slalom.evaluation.run_folder import Run
from slalom.evaluation.store import Record
from slalom.evaluation.tasks import constraint_of

if TYPE_CHECKING:
    from slalom.api import SteerableModel
    from slalom.constraints.constraint import Constraint
    from slalom.decoding.sampler import Preset


def write_texts(
    run: Run,
    planned: list[Chunk],
    load_lm: Callable[[], SteerableModel],
    on_progress: OnProgress,
    anew: bool = False,
) -> None:
    """Write every chunk that is not there yet; then put the file into the plan's order.

    Texts of other prompts or settings than today's are refused, or with `anew` written once more.
    """
    made: dict[str, Constraint] = {}
    done = finished_chunks(run, planned)
    changed = {chunk.key: why for chunk in planned if (why := change_since(run, chunk, done.get(chunk.key), made))}
    if changed and not anew:
        raise SlalomError(
            f"{run.folder}: {next(iter(changed.values()))}; give another folder with --out, or write what has changed "
            "once more with --anew"
        )
    remove_texts(run, {record["id"] for key in changed for record in done.pop(key)})
    speed = WritingSpeed()
    for chunk in planned:
        if chunk.key in done:
            speed.add(chunk, done[chunk.key][0]["seconds"])
    remaining = [chunk for chunk in planned if chunk.key not in done]
    lm: SteerableModel | None = None
    for number, chunk in enumerate(remaining):
        if chunk.cell.id in run.skipped:
            continue
        seconds_left = speed.seconds_left(remaining[number:], run.skipped)
        on_progress(Progress(f"{chunk.cell.task}: {chunk.cell.label}", len(done), len(planned), seconds_left))
        lm = lm or load_lm()
        try:
            records = write_chunk(lm, chunk, constraint_for(chunk, made), run)
        except SlalomError as error:
            run.skipped[chunk.cell.id] = str(error)
            run.save()
            continue
        store.append(run.generations, records)
        done[chunk.key] = records
        speed.add(chunk, records[0]["seconds"])
    if not done:
        raise SlalomError(next(iter(run.skipped.values()), "nothing to evaluate"))
    in_order = [record for chunk in planned for record in done.get(chunk.key, [])]
    if store.read(run.generations) != in_order:
        store.rewrite(run.generations, in_order)


def constraint_for(chunk: Chunk, made: dict[str, Constraint]) -> Constraint:
    """What a chunk's texts are asked for; each wish's constraint is made once."""
    parts = json.dumps(chunk.items[0].parts)
    if parts not in made:
        made[parts] = constraint_of(chunk.items[0].parts)
    return made[parts]


def finished_chunks(run: Run, planned: list[Chunk]) -> dict[str, list[Record]]:
    """The complete chunks of the file, by key. Incomplete ones, as a kill leaves them, are removed from it."""
    records = store.read(run.generations)
    by_chunk: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_chunk[record["chunk"]].append(record)
    planned_ids = {chunk.key: chunk.record_ids(run.settings.seed) for chunk in planned}
    for key, found in by_chunk.items():
        if unknown := {record["id"] for record in found} - set(planned_ids.get(key, [])):
            raise SlalomError(
                f"{run.generations} holds texts that are not planned now ({min(unknown)}); "
                "was a task changed meanwhile? Give another folder with --out"
            )
    complete = {key: found for key, found in by_chunk.items() if len(found) == len(planned_ids[key])}
    if len(complete) < len(by_chunk):
        store.rewrite(run.generations, [record for record in records if record["chunk"] in complete])
    return complete


def change_since(run: Run, chunk: Chunk, written: list[Record] | None, made: dict[str, Constraint]) -> str | None:
    """In words what was otherwise when a chunk's texts were written; none if nothing was, or it cannot be told."""
    if written is None:
        return None
    items = {item.id: item for item in chunk.items}
    for record in written:
        for name in ("prompt", "prefix", "parts"):
            if record[name] != (now := getattr(items[record["item"]], name)):
                return changed_in_words(chunk, name, record[name], now)
    try:
        preset, _ = setup(chunk, constraint_for(chunk, made), run, written[0]["model"])
    except SlalomError:
        return None  # its classifier is not on this machine any more
    then = _flat(written[0])
    for name, value in _flat(json.loads(json.dumps(settings_of(preset)))).items():
        if then.get(name, value) != value:
            return changed_in_words(chunk, name, then[name], value)
    return None


def changed_in_words(chunk: Chunk, name: str, then: Any, now: Any) -> str:
    """A difference as a clause."""
    return f"texts of {chunk.cell.label} were written with {name} {then!r}, which is {now!r} now"


def _flat(settings: Record) -> Record:
    return settings | {f"the knob {name}": value for name, value in settings["knobs"].items()} | {"knobs": None}


def remove_texts(run: Run, ids: set[str]) -> None:
    """Texts and their scores out of the files; the scores first, so that no kill leaves scores of other texts."""
    for path in (run.scores, run.generations) if ids else ():
        store.rewrite(path, [record for record in store.read(path) if record["id"] not in ids])


def setup(chunk: Chunk, constraint: Constraint, run: Run, lm: str) -> tuple[Preset, float | None]:
    """The settings that a chunk's texts are written with, and the sampler's strength if it is not its own."""
    from slalom.decoding.presets import preset_for

    cell, size = chunk.cell, run.tasks[chunk.cell.task].size(run.settings.preset)
    preset = preset_for(
        cell.preset,
        constraint,
        lm,
        knobs=dict(cell.knobs),
        sampler=cell.sampler,
        temperature=size.temperature,
        top_p=size.top_p,
    )
    # Strengths are factors here; a sampler with a strength of its own takes it as it is.
    strength = None if cell.strength == 1 else cell.strength * getattr(preset.sampler, "strength", 1.0)
    if strength is not None:
        preset = replace(preset, sampler=preset.sampler.stronger(strength))
    return preset, strength


def settings_of(preset: Preset) -> Record:
    """What is kept of the settings with every text."""
    return {
        "knobs": asdict(preset.sampler),  # type: ignore[call-overload]
        "most_steps": preset.steps,
        "choice": preset.choice,
        "temperature": preset.temperature,
        "top_p": preset.top_p,
    }


def write_chunk(lm: SteerableModel, chunk: Chunk, constraint: Constraint, run: Run) -> list[Record]:
    """One chunk's records: its texts, each with all that is needed to write it again."""
    from slalom.backbone.passes import counted_passes

    cell, settings = chunk.cell, run.settings
    size = run.tasks[cell.task].size(settings.preset)
    preset, strength = setup(chunk, constraint, run, lm.name)
    with counted_passes() as passes:
        out = lm.steer(
            [item.prefix + item.prompt for item in chunk.items],
            constraint,
            length=chunk.length,
            samples=chunk.samples,
            seed=settings.seed,
            sampler=cell.sampler,
            preset=cell.preset,
            strength=strength,
            knobs=dict(cell.knobs),
            temperature=size.temperature,
            top_p=size.top_p,
            tell=cell.told,
        )
    items = [item for item in chunk.items for _ in range(chunk.samples)]
    return [
        {
            "id": record_id,
            "chunk": chunk.key,
            "task": cell.task,
            "cell": cell.id,
            "item": item.id,
            "wish": item.wish,
            "topic": item.topic,
            "parts": item.parts,
            "prefix": item.prefix,
            "prompt": item.prompt,
            "text": row.text,
            "length": chunk.length,
            "seed": row.seed,
            "score": row.score,
            "constraints": [one._asdict() for one in row.constraints],
            "perplexity": row.perplexity,
            "told": row.told,
            "told_perplexity": row.told_perplexity,
            "steps": row.steps,
            "sampler": cell.sampler,
            "preset": cell.preset,
            "strength": cell.strength,
            **settings_of(preset),
            "model": out.model,
            "engine": out.engine,
            "versions": run.versions,
            "seconds": round(out.seconds, 3),  # of the whole chunk
            "passes": passes.count,  # of the LM for the whole chunk
            "rows": len(out.rows),  # in the chunk
        }
        for record_id, item, row in zip(chunk.record_ids(settings.seed), items, out.rows, strict=True)
    ]
