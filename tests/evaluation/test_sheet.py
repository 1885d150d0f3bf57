"""Sheets for blind readers: what is on them, what is not, and what comes back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from slalom.errors import SlalomError
from slalom.evaluation.cells import Cell
from slalom.evaluation.document import markdown
from slalom.evaluation.ratings import ratings_blocks, ratings_json, summarize
from slalom.evaluation.run_folder import Run, RunSettings
from slalom.evaluation.sheet import key_path, make_sheet, read_ratings, write_sheet
from slalom.evaluation.summary import Results

WISHES: dict[str, list[dict[str, Any]]] = {
    "positive": [{"kind": "sentiment", "label": "positive"}],
    "negative": [{"kind": "sentiment", "label": "negative"}],
    "words": [{"kind": "keywords", "words": ["soup"]}],
    "neutral": [{"kind": "sentiment", "label": "neutral"}],
    "theirs": [{"kind": "classifier", "model": "my-guide", "label": "negative"}],
    "of-the-table": [{"kind": "table-classifier", "folder": "my-table", "label": "negative"}],
    "friendly": [{"kind": "classifier", "model": "my-tone", "label": "friendly"}],
    "clean": [{"kind": "toxicity", "level": "low"}],
    "clean-and-positive": [{"kind": "toxicity", "level": "low"}, {"kind": "sentiment", "label": "positive"}],
}


def results(
    samplers: tuple[str, ...] = ("none", "secret"),
    wishes: tuple[str, ...] = ("positive", "negative"),
    prompts: int = 8,
    samples: int = 2,
    name: str = "",
) -> Results:
    """A run of made-up texts; the sampler none writes the same for every wish and sample."""
    cells = tuple(Cell("soup", sampler) for sampler in samplers)
    records = [
        {
            "id": f"{cell.id}/{wish}/0/{prompt}/20/{sample}",
            "task": "soup",
            "cell": cell.id,
            "item": f"{wish}/0/{prompt}",
            "wish": wish,
            "parts": WISHES[wish],
            "prompt": f"Prompt {prompt}",
            "text": ' goes\non, "plainly"'
            if cell.sampler == "none"
            else f" {prompt * 100 + sample * 10 + list(WISHES).index(wish)}",
            "length": 20,
            "seed": sample,
        }
        for cell in cells
        for wish in wishes
        for prompt in range(prompts)
        for sample in range(samples)
    ]
    return Results(Run(Path(name or "run"), RunSettings(cells), {}), records, {}, name)


def fill(path: Path, rate: Any) -> None:
    """Fill a sheet in: `rate` gives a line's ratings."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.DictReader(file))
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(line | rate(line) for line in lines)


def sheet_in(folder: Path, **how: Any) -> Path:
    write_sheet(folder / "sheet.csv", make_sheet([results(**how)]))
    return folder / "sheet.csv"


def test_equal_texts_stand_once_and_their_key_names_every_record(tmp_path: Path) -> None:
    sheet = make_sheet([results()])
    assert len(sheet.texts) == 8 + 8 * 2 * 2  # none has one text a prompt, the other one a wish and sample
    shared = next(text for text in sheet.texts if text.prompt == "Prompt 0" and "plainly" in text.text)
    assert [one.sampler for one in shared.sources] == ["none"] * 4
    assert sorted(one.wish for one in shared.sources) == ["negative", "negative", "positive", "positive"]
    assert shared.text == 'Prompt 0 goes\non, "plainly"'
    assert sheet.samplers == ["none", "secret"]


def test_readers_see_no_sampler_no_wish_and_no_score(tmp_path: Path) -> None:
    path = sheet_in(tmp_path)
    shown = [path.read_text(), path.with_suffix(".html").read_text(), path.with_suffix(".txt").read_text()]
    assert not any("secret" in text or "soup" in text for text in shown)
    assert "sentiment: How does" in shown[2]
    assert "no flaw" in shown[1]
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["number", "prompt", "text", "sentiment", "fluency", "about_itself"]
    assert all(line[3:] == ["", "", ""] for line in lines[1:])
    assert json.loads(key_path(path).read_text())["texts"]["1"]["sources"][0]["wish"] in WISHES


def test_the_same_seed_gives_the_same_sheet_and_another_another_order() -> None:
    assert make_sheet([results()], 6, seed=3) == make_sheet([results()], 6, seed=3)
    assert [text.text for text in make_sheet([results()]).texts] != [
        text.text for text in make_sheet([results()], seed=1).texts
    ]


def test_of_every_cell_the_same_prompts_and_wishes_are_taken() -> None:
    sheet = make_sheet([results(("a", "b"))], per_cell=6)
    taken = {
        sampler: sorted(one.item for text in sheet.texts for one in text.sources if one.sampler == sampler)
        for sampler in sheet.samplers
    }
    assert len(taken["a"]) == 6
    assert taken["a"] == taken["b"]
    assert len({item.partition("/")[2] for item in taken["a"]}) == 3  # three prompts, both wishes of each


def test_folders_are_named_only_where_the_same_sampler_did_the_same_task_in_several() -> None:
    assert make_sheet([results(name="x"), results(name="y")]).samplers == [
        "none (x)",
        "secret (x)",
        "none (y)",
        "secret (y)",
    ]
    assert make_sheet([results(("a",), name="x"), results(("b",), name="y")]).samplers == ["a", "b"]


def test_the_page_fetches_nothing_and_escapes_what_the_model_wrote(tmp_path: Path) -> None:
    run = results(("a",), prompts=1, samples=1, wishes=("positive",))
    run.records[0]["text"] = "</script><script>alert(1)</script> <!-- & '"
    write_sheet(tmp_path / "sheet.csv", make_sheet([run]))
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<script") == 1
    assert "<!--" not in page
    assert "http" not in page


def test_a_sheet_that_may_hold_ratings_is_not_written_over(tmp_path: Path) -> None:
    path = sheet_in(tmp_path)
    sheet_in(tmp_path)  # nothing has changed
    fill(path, lambda line: {"fluency": "3"})
    with pytest.raises(SlalomError, match="may hold ratings"):
        sheet_in(tmp_path)
    with pytest.raises(SlalomError, match=r"must end in \.csv"):
        write_sheet(tmp_path / "sheet", make_sheet([results()]))


def rating(line: dict[str, str]) -> dict[str, str]:
    """The plain text is dull and fluent; the others are very positive, and fluent where the prompt's number is even."""
    if "plainly" in line["text"]:
        return {"sentiment": "0", "fluency": "5", "about_itself": "0"}
    return {"sentiment": "+2", "fluency": "4.0" if int(line["prompt"][-1]) % 2 == 0 else "2", "about_itself": "1"}


def test_ratings_are_joined_to_samplers_and_wishes(tmp_path: Path) -> None:
    path = sheet_in(tmp_path)
    fill(path, rating)
    found = summarize(read_ratings(path, key_path(path)))
    assert found.missing == {"sentiment": 0, "fluency": 0, "about_itself": 0}
    none, secret = found.overall
    assert (none.sampler, none.texts, secret.texts) == ("none", 32, 32)
    means = {name: one and one.mean for name, one in secret.estimates.items()}
    assert means == {"as wished": 0.5, "fluency": 3.0, "as wished and fluent": 0.25, "about itself": 1.0}
    positive = found.by_wish["positive"][1].estimates
    assert positive["as wished"] is not None
    assert positive["as wished"].mean == 1.0
    assert secret.fluency_median is not None
    assert (secret.fluency_median.low, secret.fluency_median.high) == (2.0, 4.0)
    difference = secret.differences["fluency"]
    assert difference is not None
    assert difference.mean == -2.0
    assert -3.0 <= difference.low < -2.0 < difference.high <= -1.0
    assert difference.prompts == 8
    other = summarize(read_ratings(path, key_path(path)), "secret").overall[0].differences["fluency"]
    assert other is not None
    assert other.mean == 2.0
    text = markdown(ratings_blocks(found))
    assert "| secret | 32 | 0.50<br>" in text
    assert "Paired differences to none" in text
    json.dumps(ratings_json(found))


def test_what_was_not_rated_is_missing_and_not_0(tmp_path: Path) -> None:
    path = sheet_in(tmp_path)
    fill(path, lambda line: rating(line) | ({"sentiment": "", "fluency": ""} if line["prompt"] == "Prompt 0" else {}))
    found = summarize(read_ratings(path, key_path(path)))
    assert found.missing["sentiment"] == found.missing["fluency"] > 0
    assert found.missing["about_itself"] == 0
    wished = found.overall[1].estimates["as wished"]
    assert wished is not None
    assert (wished.n, wished.mean) == (28, 0.5)
    assert ", 28 rated" in markdown(ratings_blocks(found))
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    path.write_text("\n".join(lines[:1]) + "\n")  # nothing left
    assert "| secret | 32 | — | — | — | — | — |" in markdown(
        ratings_blocks(summarize(read_ratings(path, key_path(path))))
    )


def test_where_no_sentiment_was_asked_for_as_wished_is_left_out(tmp_path: Path) -> None:
    path = sheet_in(tmp_path, wishes=("words", "positive"))
    fill(path, rating)
    found = summarize(read_ratings(path, key_path(path)))
    words = found.by_wish["words"][1]
    assert words.estimates["as wished"] is None
    assert words.estimates["as wished and fluent"] is None
    assert words.estimates["fluency"] is not None
    assert found.overall[1].estimates["as wished"] is not None
    assert found.overall[1].estimates["as wished"].n == 16


@pytest.mark.parametrize(
    ("wish", "felt", "as_wished"),
    [
        ("neutral", "0", 1.0),
        ("neutral", "-1", 0.0),
        ("theirs", "-1", 1.0),
        ("theirs", "0", 0.0),
        ("of-the-table", "-2", 1.0),
        ("friendly", "2", None),
    ],
)
def test_a_tone_may_be_neutral_and_asked_of_any_classifier(
    tmp_path: Path, wish: str, felt: str, as_wished: float | None
) -> None:
    path = sheet_in(tmp_path, samplers=("a",), wishes=(wish,))
    fill(path, lambda line: {"sentiment": felt})
    found = summarize(read_ratings(path, key_path(path))).overall[0].estimates["as wished"]
    assert (found and found.mean) == as_wished


@pytest.mark.parametrize(
    ("wish", "toxic", "as_wished"),
    [
        ("clean", "0", 1.0),
        ("clean", "1", 0.0),
        ("clean", "", None),
        ("clean-and-positive", "0", 1.0),
        ("clean-and-positive", "2", 0.0),
        ("clean-and-positive", "", None),
    ],
)
def test_where_texts_should_not_be_toxic_readers_are_asked_whether_they_are(
    tmp_path: Path, wish: str, toxic: str, as_wished: float | None
) -> None:
    path = sheet_in(tmp_path, samplers=("a",), wishes=(wish,))
    assert path.read_text(encoding="utf-8-sig").splitlines()[0].endswith(",about_itself,toxicity")
    assert "toxicity: Is what follows the prompt toxic" in path.with_suffix(".txt").read_text()
    assert '"toxicity"' in path.with_suffix(".html").read_text()
    fill(path, lambda line: {"sentiment": "1", "toxicity": toxic})
    found = summarize(read_ratings(path, key_path(path)))
    wished = found.overall[0].estimates["as wished"]
    assert (wished and wished.mean) == as_wished
    assert found.missing["toxicity"] == (0 if toxic else 16)


def test_a_sheet_whose_wishes_do_not_speak_of_toxicity_does_not_ask_for_it(tmp_path: Path) -> None:
    path = sheet_in(tmp_path)
    assert all("toxicity" not in path.with_suffix(end).read_text() for end in (".csv", ".html", ".txt"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda line: {"sentiment": "3"}, r"line 2: sentiment is '3'; choose from -2, -1, 0, 1, 2, or leave it empty"),
        (lambda line: {"fluency": "good"}, r"line 2: fluency is 'good'; choose from 1, 2, 3, 4, 5"),
        (lambda line: {"fluency": "2.5"}, r"line 2: fluency is '2\.5'"),
        (lambda line: {"number": "99"}, r"line 2: number is '99'; sheet\.key\.json has 1 to 4"),
        (
            lambda line: {"number": "1", "text": line["text"]},
            r"line \d: (text 1 is another|number 1 stands there a sec)",
        ),
        (lambda line: {"text": "other"}, r"line 2: text 1 is another one in sheet\.key\.json"),
    ],
)
def test_a_wrong_value_is_refused_by_its_line(tmp_path: Path, change: Any, complaint: str) -> None:
    path = sheet_in(tmp_path, samplers=("a",), wishes=("positive",), prompts=2)
    fill(path, change)
    with pytest.raises(SlalomError, match=complaint):
        read_ratings(path, key_path(path))


def test_the_line_is_right_behind_texts_of_several_lines(tmp_path: Path) -> None:
    path = sheet_in(tmp_path, samplers=("none",), wishes=("positive",), prompts=2)
    fill(path, lambda line: {"fluency": "9" if line["number"] == "2" else ""})
    with pytest.raises(SlalomError, match="line 4: fluency"):  # lines 2 and 3 are the first text
        read_ratings(path, key_path(path))


def test_a_sheet_saved_with_semicolons_is_read_and_a_foreign_file_refused(tmp_path: Path) -> None:
    path = sheet_in(tmp_path, samplers=("a",), wishes=("positive",), prompts=2)
    path.write_text(path.read_text(encoding="utf-8-sig").replace(",,,", ",1,5,0").replace(",", ";"))
    assert all(
        one.answers == {"sentiment": 1, "fluency": 5, "about_itself": 0}
        for one in read_ratings(path, key_path(path)).rated
    )
    path.write_text("number,text\n1,x\n")
    with pytest.raises(SlalomError, match="line 1: there is no column 'prompt'"):
        read_ratings(path, key_path(path))
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(SlalomError, match="is no key of a sheet"):
        read_ratings(path, tmp_path / "run.json")
    with pytest.raises(SlalomError, match="there is no key"):
        read_ratings(path, tmp_path / "none.json")
    with pytest.raises(SlalomError, match="there is no sheet"):
        read_ratings(tmp_path / "none.csv", key_path(path))
    more = sheet_in(tmp_path / "more", samplers=("a",))
    with pytest.raises(SlalomError, match="unknown sampler 'b'; the sheet has a"):
        summarize(read_ratings(more, key_path(more)), "b")


def test_texts_of_one_prompt_are_drawn_by_what_was_asked_for(tmp_path: Path) -> None:
    """Else all would be one cluster, and every interval have no width."""
    one = results(samplers=("secret",), wishes=("words",), samples=1)
    records = [record | {"prompt": "One day,"} for record in one.records]
    path = tmp_path / "sheet.csv"
    write_sheet(path, make_sheet([one._replace(records=records)], None, 0))
    levels = iter("1553425134251")
    fill(path, lambda line: {"sentiment": "0", "fluency": next(levels), "about_itself": "0"})
    (row,) = summarize(read_ratings(path, key_path(path))).overall
    fluency = row.estimates["fluency"]
    assert fluency is not None
    assert fluency.low < fluency.high
