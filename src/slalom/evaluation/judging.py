"""Texts in generations.jsonl to judges' scores in scores.jsonl; interrupted, a later call completes the same file."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.plan import Chunk
from slalom.evaluation.progress import OnProgress, Progress, time_left
from slalom.evaluation.run_folder import Run
from slalom.evaluation.store import Record
from slalom.evaluation.tasks import Reads, Task

if TYPE_CHECKING:
    from slalom.evaluation.judges import JudgeInfo, LoadJudge

Scores = dict[str, Record]  # a text's id → what was read of it → a judge's name → its score


def judge_texts(run: Run, planned: list[Chunk], judges: dict[str, LoadJudge], on_progress: OnProgress) -> None:
    """Every text's scores by every judge its task names, judge by judge; then one line a text, in the plan's order."""
    texts: dict[str, list[Record]] = defaultdict(list)
    for record in store.read(run.generations):
        texts[record["chunk"]].append(record)
    scores = read_scores(run)
    for name, load_judge in judges.items():
        if any(name in task.judges for task in run.tasks.values()):
            judge_with(name, load_judge, run, planned, dict(texts), scores, on_progress)
    in_order = [
        {"id": record["id"], **scores.get(record["id"], {})} for chunk in planned for record in texts[chunk.key]
    ]
    if store.read(run.scores) != in_order:
        store.rewrite(run.scores, in_order)


def judge_with(
    name: str,
    load_judge: LoadJudge,
    run: Run,
    planned: list[Chunk],
    texts: dict[str, list[Record]],
    scores: Scores,
    on_progress: OnProgress,
) -> None:
    """One judge's scores of the texts it has not scored yet, chunk by chunk; why, if it cannot be loaded.

    If it is another model or revision than the one that scored before, it scores all texts.
    """
    todo = unscored(name, run, planned, texts, scores)
    if not todo:
        return
    from slalom.evaluation.judges import JudgeInput

    try:
        on_progress(Progress(f"judging: loading {name}", 0, len(todo), None))
        judge = load_judge()
    except SlalomError as error:
        run.missing_judges[name] = str(error)
        run.save()
        return
    run.missing_judges.pop(name, None)
    if is_another(judge.info, run.judge_info.get(name)):
        remove_scores(name, run, scores)
        todo = unscored(name, run, planned, texts, scores)
    run.judge_info[name] = judge.info._asdict()
    run.save()
    started = time.perf_counter()
    for number, (chunk, reads) in enumerate(todo):
        on_progress(Progress(f"judging: {name}", number, len(todo), time_left(started, number, len(todo) - number)))
        records = texts[chunk.key]
        references = {item.id: item.references for item in chunk.items}
        inputs = [JudgeInput(record["prompt"], record["text"], references[record["item"]]) for record in records]
        lines = [
            {"id": record["id"], reads: {name: None if score is None else float(f"{score:.6g}")}}
            for record, score in zip(records, judge.score(inputs, reads), strict=True)
        ]
        store.append(run.scores, lines)
        for line in lines:
            _add(line, scores)


def unscored(
    name: str, run: Run, planned: list[Chunk], texts: dict[str, list[Record]], scores: Scores
) -> list[tuple[Chunk, Reads]]:
    """The chunks with a text that a judge has not scored, with what it is to read."""
    return [
        (chunk, reads)
        for chunk in planned
        for reads in what_is_read(run.tasks[chunk.cell.task], name, run.settings.both)
        if any(name not in scores.get(record["id"], {}).get(reads, {}) for record in texts.get(chunk.key, []))
    ]


def is_another(judge: JudgeInfo, before: Record | None) -> bool:
    """Whether a judge is another model or revision than the one of this name before."""
    return before is not None and (judge.model, judge.revision) != (before["model"], before["revision"])


def remove_scores(name: str, run: Run, scores: Scores) -> None:
    """A judge's scores out of the file, before its successor's are added: no kill leaves both."""
    for of_text in scores.values():
        for by_judge in of_text.values():
            by_judge.pop(name, None)
    store.rewrite(run.scores, [{"id": text, **of_text} for text, of_text in scores.items()])


def what_is_read(task: Task, judge: str, both: bool) -> list[Reads]:
    """What a judge reads of a task's texts: prompt and continuation, the continuation alone, both, or nothing."""
    if judge not in task.judges:
        return []
    return ["text", "continuation"] if both else [task.reads.get(judge, "text")]


def read_scores(run: Run) -> Scores:
    """All scores of a run."""
    scores: Scores = {}
    for line in store.read(run.scores):
        _add(line, scores)
    return scores


def _add(line: Record, scores: Scores) -> None:
    of_text = scores.setdefault(line["id"], {})
    for reads, by_judge in line.items():
        if reads != "id":
            of_text[reads] = of_text.get(reads, {}) | by_judge
