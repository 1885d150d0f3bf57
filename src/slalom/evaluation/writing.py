"""Planned chunks to texts in generations.jsonl; interrupted at any moment, a later call completes the same file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

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


def write_texts(run: Run, planned: list[Chunk], load_lm: Callable[[], SteerableModel], on_progress: OnProgress) -> None:
    """Write every chunk that is not there yet; then put the file into the plan's order."""
    done = finished_chunks(run, planned)
    speed = WritingSpeed()
    for chunk in planned:
        if chunk.key in done:
            speed.add(chunk, done[chunk.key][0]["seconds"])
    remaining = [chunk for chunk in planned if chunk.key not in done]
    lm: SteerableModel | None = None
    constraints: dict[str, Constraint] = {}
    for number, chunk in enumerate(remaining):
        if chunk.cell.id in run.skipped:
            continue
        seconds_left = speed.seconds_left(remaining[number:], run.skipped)
        on_progress(Progress(f"{chunk.cell.task}: {chunk.cell.label}", len(done), len(planned), seconds_left))
        lm = lm or load_lm()
        parts = json.dumps(chunk.items[0].parts)
        try:
            if parts not in constraints:
                constraints[parts] = constraint_of(chunk.items[0].parts)
            records = write_chunk(lm, chunk, constraints[parts], run)
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


def write_chunk(lm: SteerableModel, chunk: Chunk, constraint: Constraint, run: Run) -> list[Record]:
    """One chunk's records: its texts, each with all that is needed to write it again."""
    from slalom.backbone.passes import counted_passes
    from slalom.decoding.presets import preset_for

    cell, settings = chunk.cell, run.settings
    temperature = run.tasks[cell.task].size(settings.preset).temperature
    preset = preset_for(
        cell.preset, constraint, lm.name, knobs=dict(cell.knobs), sampler=cell.sampler, temperature=temperature
    )
    # Strengths are factors here; a sampler with a strength of its own takes it as it is.
    strength = None if cell.strength == 1 else cell.strength * getattr(preset.sampler, "strength", 1.0)
    if strength is not None:
        preset = replace(preset, sampler=preset.sampler.stronger(strength))
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
            temperature=temperature,
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
            "knobs": asdict(preset.sampler),  # type: ignore[call-overload]
            "most_steps": preset.steps,
            "choice": preset.choice,
            "temperature": preset.temperature,
            "top_p": preset.top_p,
            "model": out.model,
            "engine": out.engine,
            "versions": run.versions,
            "seconds": round(out.seconds, 3),  # of the whole chunk
            "passes": passes.count,  # of the LM for the whole chunk
            "rows": len(out.rows),  # in the chunk
        }
        for record_id, item, row in zip(chunk.record_ids(settings.seed), items, out.rows, strict=True)
    ]
