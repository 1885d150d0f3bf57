"""Public data sets and rated drafts to the rows that the sentiment guide and its judge learn from.

    python -m slalom.training.rated_rows DATA_FOLDER data/drafts_rated.jsonl.gz OUT_FOLDER

writes guide.jsonl.gz and judge.jsonl.gz. DATA_FOLDER holds sentiment3, general_text and drafts_read;
the second file is more drafts of the LM, rated in the same way (data/README.md). Guide and judge share no source of
labelled sentences, no collection of neutral ones, and no prompt of the LM's drafts, so that the judge has seen nothing
the guide learned from.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

NEGATIVE, NEUTRAL, POSITIVE = 0, 1, 2
DRAFT_COPIES = 3  # drafts are few and nearest to what is judged
# A mild rating is a near miss of the next one: the shares of negative, neutral and positive that go with each.
SENTIMENT_SHARES = {-2: [1, 0, 0], -1: [0.75, 0.25, 0], 0: [0.125, 0.75, 0.125], 1: [0, 0.25, 0.75], 2: [0, 0, 1]}
CALIBRATION = 6  # of so many prompts of drafts, one is kept for the temperature


class Side(NamedTuple):
    """What one of the two learns from."""

    labelled: tuple[str, ...]  # sources of sentiment3
    neutral: tuple[str, ...]  # sources of general_text
    most_labelled: int  # rows of a label and a source at the most
    most_neutral: int


SIDES = {
    "guide": Side(("sst5", "goemotions"), ("boolq-wikipedia",), 1200, 1200),
    "judge": Side(("tweeteval", "customer-reviews"), ("wikitext103-valid-tokens", "brown"), 1200, 1200),
}


def rows_of(name: str, data: Path, rated: Path) -> list[dict[str, Any]]:
    """All rows of the guide or the judge, each with text, label, source and split."""
    side, rng = SIDES[name], random.Random(0)
    rated_drafts = [data / "drafts_read.jsonl.gz", rated]
    rows = [*labelled(data, side, rng), *neutral(data, side, rng), *drafts(rated_drafts, name)]
    rng.shuffle(rows)
    return rows


def labelled(data: Path, side: Side, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Sentences that people labelled; of the training ones at most so many a label and a source."""
    rows = [row for row in read(data / "sentiment3.jsonl.gz") if row["source"] in side.labelled]
    rng.shuffle(rows)
    counts: dict[tuple[str, int], int] = {}
    for row in rows:
        if row["split"] == "train":
            group = row["source"], row["label"]
            counts[group] = counts.get(group, 0) + 1
            if counts[group] > side.most_labelled:
                continue
        yield {"text": row["text"], "label": row["label"], "source": row["source"], "split": row["split"]}


def neutral(data: Path, side: Side, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Single sentences of encyclopedias and the like that say nothing good or bad, some broken off as drafts are."""
    sentences = [
        (sentence, row["source"])
        for row in read(data / "general_text.jsonl.gz")
        if row["source"] in side.neutral
        for sentence in re.split(r"(?<=[.!?])\s+", clean(row["text"]).partition(" -- ")[2] or clean(row["text"]))
        if 6 <= len(sentence.split()) <= 40 and not OPINION.search(sentence)
    ]
    rng.shuffle(sentences)
    for sentence, source in sentences[: side.most_neutral]:
        words = sentence.split()
        if rng.random() < 0.5 and len(words) > 12:
            sentence = " ".join(words[: rng.randint(10, len(words))])
        yield {"text": sentence, "label": NEUTRAL, "source": source, "split": "train"}


# A sentence with one of these is not taken for neutral.
OPINION = re.compile(
    r"\b(good|great|best|better|excellent|beautiful|success\w*|love\w*|happ\w+|win\w*|won|award\w*|prais\w+|popular|"
    r"bad|worst|worse|poor\w*|terribl\w+|awful|kill\w*|murder\w*|die[sd]?|dead|death\w*|fail\w*|hate\w*|angry|sad\w*|war|"
    r"attack\w*|destroy\w*|critici\w+|disease|cancer|victim\w*|suffer\w*|crime\w*|fear\w*|problem\w*|wrong|damag\w+|"
    r"unfortunately|fortunately|wonderful|brilliant|ugly|pain\w*|injur\w+|suicide|disaster\w*|enjoy\w*|perfect\w*)\b",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    """WikiText's marks as people write them."""
    text = text.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".").replace("<unk>", "it")
    return re.sub(r" ([,.;:!?)'])", r"\1", text).replace("( ", "(")


def drafts(files: list[Path], name: str) -> Iterator[dict[str, Any]]:
    """The LM's drafts as readers rated them: the guide has two of three training prompts, the judge the third.

    Of the prompts one has, some are kept for its temperature; the dev part is for measuring alone. Measured is against
    what the reader said: only what is learned from has shares.
    """
    for row in [row for file in files for row in read(file)]:
        rating, judges = row["sentiment"], _number(row["prompt"]) % 3 == 0
        out = _draft(row, NEUTRAL + (rating > 0) - (rating < 0))
        if out["split"] != "train":
            if out["split"] == "test" or judges == (name == "judge"):
                yield out
        elif judges == (name == "judge"):
            yield from [out | {"label": SENTIMENT_SHARES[rating]}] * DRAFT_COPIES


def _draft(row: dict[str, Any], label: int) -> dict[str, Any]:
    """A rated draft as a row of its split: test, calibration or train, by its prompt."""
    kept = "calibration" if _number(row["prompt"]) // 3 % CALIBRATION == 0 else "train"
    split = kept if row["split"] == "train" else "test"
    return {"text": row["prompt"] + row["text"], "label": label, "source": "drafts as read", "split": split}


def _number(prompt: str) -> int:
    return int(hashlib.sha256(prompt.encode()).hexdigest(), 16)


def read(path: Path) -> Iterable[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def main() -> None:
    """Write both files."""
    if len(sys.argv) != 4:
        sys.exit("usage: python -m slalom.training.rated_rows DATA_FOLDER DRAFTS_RATED OUT_FOLDER")
    data, rated, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for name in SIDES:
        rows = rows_of(name, data, rated)
        with gzip.open(out / f"{name}.jsonl.gz", "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


if __name__ == "__main__":
    main()
