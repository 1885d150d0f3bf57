"""Reports: what was measured, marked, beside the paper's; what was not, named."""

from __future__ import annotations

import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from slalom.evaluation import plots, report, store
from slalom.evaluation.cells import Cell, parse_sampler
from slalom.evaluation.document import Table, markdown
from slalom.evaluation.estimates import Case, Values, estimate
from slalom.evaluation.judges import JudgeInfo, LoadJudge
from slalom.evaluation.run_evaluation import read_several
from slalom.evaluation.run_folder import Run, RunSettings
from slalom.evaluation.summary import TableRow, is_own_text, rank, read_results
from slalom.evaluation.tasks import Task, load_task
from slalom.evaluation.typed import TypedRun, checked
from tests.evaluation import tiny


def row(sampler: str, values: list[float], metric: str = "perplexity") -> TableRow:
    """A sampler with one value a prompt."""
    by_prompt: Values = {Case(str(prompt), "w", 20): [value] for prompt, value in enumerate(values)}
    found = estimate({str(prompt): [value] for prompt, value in enumerate(values)})
    return TableRow(sampler, Cell("soup", sampler), len(values), {metric: found}, {metric: by_prompt}, {})


def around(mean: float, spread: float = 0.1, prompts: int = 8) -> list[float]:
    return [mean - spread, mean + spread] * (prompts // 2)


def test_the_best_and_the_second_are_marked_by_the_metrics_own_direction() -> None:
    rows = [row("bolt", around(30)), row("dab", around(20)), row("cold", []), row("mucola", around(25))]
    assert rank(rows, "perplexity") == ["", "best", "", "second"]
    up = [row("bolt", around(0.7), "success"), row("dab", around(0.9), "success")]
    assert rank(up, "success") == ["", "best"]  # the last is not ahead of anything


def test_nothing_is_marked_whose_paired_difference_to_one_behind_it_may_be_0() -> None:
    rows = [row("dab", around(20, 5)), row("bolt", around(21, -5)), row("cold", around(90))]
    assert rank(rows, "perplexity") == ["", "", ""]
    together = [row("dab", around(20, 5)), row("bolt", around(21, 5)), row("cold", around(90))]
    assert rank(together, "perplexity") == ["best", "second", ""]  # prompt by prompt it is always ahead
    outlier = [row("dab", around(20)), row("bolt", [*around(19, 0.1, 6), 19.0, 500.0])]
    assert rank(outlier, "perplexity") == ["", ""]  # ahead in the mean only, because of one text


def test_nothing_is_marked_over_a_handful_of_prompts() -> None:
    assert rank([row("dab", around(20, 0, 4)), row("bolt", around(30, 0, 4))], "perplexity") == ["", ""]


def test_the_unsteered_text_is_never_marked() -> None:
    rows = [row("none", around(5)), row("dab", around(20)), row("bolt", around(30))]
    assert rank(rows, "perplexity") == ["", "best", ""]
    assert rank(rows[:2], "perplexity") == ["", ""]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with several strengths and a judge missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.SAMPLERS, "drawn", tiny.Drawn)
        home = tmp_path_factory.mktemp("report")
        missing = tiny.judges(missing=("bertscore",))
        tiny.run(home / "out", tiny.task_in(home), tiny.cells((0.5, 1.0, 2.0)), judged_by=missing)
        return home / "out"


def test_the_report_has_tables_intervals_the_papers_figures_examples_and_judges(out: Path) -> None:
    text = (out / "report.md").read_text()
    assert re.search(r"\| drawn<br>24 texts \| .*± .*<br>n 24; paper 0\.990 \| — \|", text)  # BERTScore is missing
    assert re.search(r"± \d+\.\d \(median \d+\.\d\)(\*\*|</u>)?<br>n 24; paper 23\.4 ± 0\.3", text)  # a perplexity
    assert "| sampler | Distinct texts ↑ | Distinct-1 ↑" in text
    assert "Paired differences to drawn: same prompt, wish and length." in text
    costs = r"\| \d\.\d\d \| 1\.00 \|"  # seconds and passes: ratios without intervals
    assert re.search(r"\| drawn:hot<br>3 prompts \| [+-]\d.*<br>.* to .* \| \d.*<br>.* to .* " + costs, text)
    assert "95 % bootstrap intervals" in text
    assert re.search(r"\| drawn \| \d\.\d+ to \d\.\d+<br>n 24 \| — \|", text)
    assert "Nonsense ahead." in text
    assert "*the food*" in text
    assert "| perplexity | a ruler | r1 | 0.750 rulers | 0.500 rulers |" in text
    assert "judge bertscore: no bertscore today" in text
    assert "Self-BLEU: BLEU-4" in text
    assert "--strengths 0.5,1,2" in text


def test_a_record_with_a_prompt_is_no_prompt_of_its_own(out: Path, soup: Task, tmp_path: Path) -> None:
    """The tiny task tries two records on each of three prompts."""
    estimated = read_results(out).row(Cell("soup", "drawn"), ["success"])
    assert {case.prompt for case in estimated.values["success"]} == {"the food", "we", "a day by the river"}
    assert len(estimated.values["success"]) == 3 * 2 * 2
    tiny.run(tmp_path / "out", soup.model_copy(update={"prompts": ["we"]}))
    assert "| drawn:hot<br>2 prompts |" in (tmp_path / "out" / "report.md").read_text()  # its records


def test_the_report_says_what_intervals_are_over(out: Path) -> None:
    text = (out / "report.md").read_text()
    assert "so intervals are over other prompts, not over other seeds." in text
    assert "where a task has a single prompt, its records count as prompts" in text


def test_what_is_missing_is_never_0(out: Path) -> None:
    rows = [line.split(" | ") for line in (out / "report.md").read_text().splitlines() if "<br>24 texts |" in line]
    assert [cells[2] for cells in rows] == ["—", "—"]


def test_the_papers_figures_stand_beside_dab_only_where_it_is_the_papers_dab() -> None:
    task = load_task("sentiment")
    assert report.paper_figure(task, Cell("sentiment", "dab", "paper"), "perplexity") == "11.8 ± 0.2"
    assert report.paper_figure(task, Cell("sentiment", "dab"), "perplexity") == ""
    assert report.paper_figure(task, Cell("sentiment", "dab", "thorough"), "perplexity") == ""
    assert report.paper_figure(task, Cell("sentiment", "bolt"), "perplexity") == ""


def test_the_papers_figures_do_not_stand_beside_what_was_told() -> None:
    sentiment, keywords = load_task("sentiment"), load_task("keywords")
    assert report.paper_figure(sentiment, Cell("sentiment", "dab", "paper", told=True), "perplexity") == ""
    prefixed = Cell("keywords", "dab", "paper", prefix=True)  # as in the paper's Table 8
    assert report.paper_figure(keywords, prefixed, "success") == "0.990"
    assert report.paper_figure(keywords, prefixed._replace(told=True), "success") == ""
    assert report.paper_figure(keywords, prefixed._replace(prefix=False), "success") == ""


class Links(HTMLParser):
    """Everything a page would fetch, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href") and value]


def test_the_page_needs_nothing_else_and_holds_the_plot(out: Path) -> None:
    page = Links()
    page.feed((out / "report.html").read_text())
    assert [link for link in page.fetched if not link.startswith("#")] == []
    assert "svg" in page.tags
    assert "script" not in page.tags
    svg = (out / "figures" / "soup-front.svg").read_text()
    assert svg.strip() in (out / "report.html").read_text()


def test_reporting_twice_gives_the_same(out: Path) -> None:
    before = {name: (out / name).read_text() for name in ("report.md", "report.html")}
    results = [read_results(out)]
    report.write(out, report.title_of(results), report.blocks_of(results))
    assert {name: (out / name).read_text() for name in before} == before


def test_several_runs_stand_side_by_side(out: Path, soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "other", soup, tiny.cells(presets=("default",)), seed=5)
    text = markdown(report.blocks_of(read_several([out, tmp_path / "other"])))
    assert "| drawn (out)<br>24 texts" in text
    assert "| drawn (other)<br>24 texts" in text
    assert "seed 5" in text
    assert "### Example texts (out)" in text


def test_a_column_that_only_one_of_several_folders_has_is_shown(out: Path, soup: Task, tmp_path: Path) -> None:
    fewer = soup.model_copy(update={"columns": ["success", "perplexity"]})
    tiny.run(tmp_path / "older", fewer, tiny.cells(presets=("default",)))
    text = markdown(report.blocks_of(read_several([tmp_path / "older", out])))
    assert "| sampler | Success ↑ | PPL ↓ | BERTScore ↑ | CoLA ↑ |" in text


class Yardstick(tiny.Counting):
    """Another model in the place of a judge."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.info = JudgeInfo(name, "a yardstick", "y1")


def other_perplexity() -> dict[str, LoadJudge]:
    return tiny.judges() | {"perplexity": lambda: Yardstick("perplexity")}


def test_scores_of_different_judges_are_not_ranked_together() -> None:
    better, worse = row("dab", around(20)), row("bolt", around(30))
    by_one, by_other = {"perplexity": "a ruler, r1"}, {"perplexity": "a yardstick, y1"}
    assert rank([better._replace(judges=by_one), worse._replace(judges=by_one)], "perplexity") == ["best", ""]
    assert rank([better._replace(judges=by_one), worse._replace(judges=by_other)], "perplexity") == ["", ""]
    success = row("dab", around(0.9), "success"), row("bolt", around(0.7), "success")
    counted = [one._replace(judges=judges) for one, judges in zip(success, (by_one, by_other), strict=True)]
    assert rank(counted, "success") == ["best", ""]  # no judge's


def test_folders_with_different_judges_are_not_compared_by_their_scores(out: Path, soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "other", soup, tiny.cells(presets=("default",)), judged_by=other_perplexity())
    text = markdown(report.blocks_of(read_several([out, tmp_path / "other"])))
    assert re.search(r"\| drawn \(other\)<br>3 prompts \| [+-]\d\S*<br>\S+ to \S+ \| — \| \d", text)
    assert re.search(r"\| drawn:hot \(out\)<br>3 prompts \| [+-]\d\S*<br>\S+ to \S+ \| \d", text)
    assert "| perplexity (out) | a ruler | r1 |" in text
    assert "| perplexity (other) | a yardstick | y1 |" in text
    assert text.count("| acceptability | a ruler | r1 |") == 1
    assert "not the same in all folders: perplexity." in text


def test_folders_with_the_same_judges_are_compared(out: Path, soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "other", soup, tiny.cells(presets=("default",)))
    text = markdown(report.blocks_of(read_several([out, tmp_path / "other"])))
    assert re.search(r"\| drawn \(other\)<br>3 prompts \| [+-]\d\S*<br>\S+ to \S+ \| \d", text)
    assert text.count("| perplexity | a ruler | r1 |") == 1
    assert "not the same in all folders" not in text


def test_a_report_says_when_the_steered_lm_judges_its_own_perplexity(out: Path, soup: Task, tmp_path: Path) -> None:
    own = "The judge of perplexity is the steered LM itself"
    assert own not in (out / "report.md").read_text()
    assert "not the one steered" not in (out / "report.md").read_text()
    tiny.run(tmp_path / "out", soup, tiny.cells(presets=("default",)), model="a ruler")
    assert own in (tmp_path / "out" / "report.md").read_text()


def test_versions_are_those_that_the_texts_were_written_with(out: Path, soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "out", soup, tiny.cells(presets=("default",)))
    records = store.read(tmp_path / "out" / "generations.jsonl")
    before = records[0]["versions"] | {"slalom": "0.0.9"}
    store.rewrite(tmp_path / "out" / "generations.jsonl", [records[0] | {"versions": before}, *records[1:]])
    text = markdown(report.blocks_of([read_results(tmp_path / "out")]))
    assert f"(slalom 0.0.9 and {records[1]['versions']['slalom']}, torch {before['torch']}, transformers" in text


@pytest.mark.parametrize("drawn", [True, False])
def test_without_any_sampler_at_its_usual_strength_the_report_says_so_and_has_no_empty_tables(
    soup: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: bool
) -> None:
    monkeypatch.setattr(plots, "can_draw", lambda: drawn)
    tiny.run(tmp_path / "out", soup, tiny.cells((0.5, 2.0), ("default",)))
    blocks = report.blocks_of([read_results(tmp_path / "out")])
    assert all(block.rows for block in blocks if isinstance(block, Table))
    text = markdown(blocks)
    assert "There are none of drawn (strengths 0.5, 2)" in text
    assert ("in the plot of control against perplexity" in text) == drawn
    assert "Paired differences" not in text
    assert "Example texts" not in text


def test_a_sampler_that_has_no_usual_strength_is_named_beside_those_that_have(soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "out", soup, (Cell("soup", "drawn"), Cell("soup", "drawn", "hot", 2.0)))
    text = (tmp_path / "out" / "report.md").read_text()
    assert "There are none of drawn:hot (strength 2)" in text
    assert "| drawn<br>24 texts |" in text


def test_where_all_have_their_usual_strength_nothing_is_said_of_strengths(out: Path) -> None:
    assert "There are none of" not in (out / "report.md").read_text()


def test_speed_is_seconds_and_drafts_and_no_tokens_that_were_never_decoded(out: Path) -> None:
    text = (out / "report.md").read_text()
    assert "| sampler | seconds a text | drafts a text |\n" in text
    assert "tokens a second" not in text


def test_what_a_text_costs_stands_in_the_main_table_and_is_drawn(out: Path) -> None:
    text = (out / "report.md").read_text()
    assert "| PPL ↓ | Seconds ↓ | LM passes ↓ |" in text
    # Two drafts of four and of six tokens: ten passes a text on average.
    assert re.search(r"\| drawn<br>24 texts .* \| 10 \(median 10\)<br>n 24 \|", text)
    assert "figures/soup-time.svg" in text
    assert (out / "figures" / "soup-time.svg").read_text().startswith("<svg")


def test_asking_alone_is_ranked_and_the_lms_own_text_is_not() -> None:
    assert not is_own_text(Cell("everyday", "none", told=True))
    assert is_own_text(Cell("everyday", "none"))
    assert not is_own_text(Cell("keywords", "none", prefix=True))  # the prefix names the keywords
    assert not is_own_text(Cell("everyday", "climb"))


def test_the_command_of_a_report_names_what_was_told() -> None:
    cells = [Cell("everyday", "dab", told=True), Cell("everyday", "dab", "paper"), Cell("everyday", "none", told=True)]
    assert [cell.typed_sampler for cell in cells] == ["dab+told", "dab:paper", "none+told"]
    assert [parse_sampler(cell.typed_sampler) for cell in cells] == [
        (cell.sampler, cell.preset, cell.told) for cell in cells
    ]


def cells_typed(command: str) -> tuple[Cell, ...]:
    """The cells that a printed command makes."""
    words = shlex.split(command)
    assert words[:2] == ["slalom", "eval"]
    first = next(i for i, word in enumerate(words) if word.startswith("--"))
    typed: dict[str, Any] = {"tasks": words[2:first], "knobs": {}}
    rest = iter(words[first:])
    for word in rest:
        if word == "--prefix":
            typed["prefix"] = True
        elif word == "--knob":
            name, _, value = next(rest).partition("=")
            typed["knobs"][name] = value
        elif word != "--out":
            typed[word.removeprefix("--")] = next(rest)
        else:
            next(rest)
    return checked(TypedRun(**typed)).settings.cells


WARM = (("heat", 0.5),)


@pytest.mark.parametrize(
    ("cells", "commands"),
    [
        ((Cell("soup", "drawn"), Cell("soup", "drawn", "hot")), 1),
        ((Cell("soup", "drawn"), Cell("soup", "drawn", knobs=WARM)), 2),  # a knob set for one that was added later
        ((Cell("soup", "drawn", knobs=WARM), Cell("soup", "drawn", knobs=(("heat", 2.0),))), 2),
        ((Cell("soup", "drawn"), Cell("soup", "drawn", prefix=True)), 2),
        ((*tiny.cells((0.5, 1.0)), Cell("soup", "dab")), 2),
        ((*tiny.cells((0.5, 1.0)), Cell("soup", "none"), Cell("soup", "none", told=True)), 1),
        ((Cell("soup", "none"), Cell("soup", "drawn", knobs=WARM)), 1),  # the LM's own text takes no knobs
        ((Cell("soup", "none"), Cell("soup", "none", prefix=True)), 2),
        ((Cell("soup", "drawn"), Cell("soup", "dab"), Cell("rain", "dab")), 2),
        ((Cell("soup", "drawn"), Cell("soup", "dab"), Cell("rain", "drawn"), Cell("rain", "dab")), 1),
    ],
)
def test_the_commands_of_a_report_make_its_cells_and_no_others(
    tmp_path: Path, cells: tuple[Cell, ...], commands: int
) -> None:
    tasks = {}
    for name in ("soup", "rain"):
        path = tmp_path / f"my {name}.toml"
        path.write_text(tiny.TASK.replace('"soup"\n', f'"{name}"\n', 1))
        tasks[name] = load_task(str(path))
    printed = report.commands_of(Run(tmp_path / "my out", RunSettings(cells, "quick", "tiny", "torch"), tasks))
    assert len(printed) == commands
    made = [cell for command in printed for cell in cells_typed(command)]
    assert len(made) == len(set(made))
    assert set(made) == set(cells)
    assert all(command.endswith("--out 'my out'") for command in printed)


def test_a_study_is_one_command() -> None:
    unchanged = Cell("sentiment", "dab")
    cells = (unchanged, unchanged._replace(knobs=(("tau", 0.3),)), unchanged._replace(knobs=(("top_k", 50),)))
    settings = RunSettings(cells, "quick", "tiny", "torch", study="ablation")
    printed = report.commands_of(Run(Path("out"), settings, {"sentiment": load_task("sentiment")}))
    assert printed == [
        "slalom eval ablation --samplers dab --preset quick --model tiny --engine torch --seed 0 "
        "--judges ours --out out"
    ]
