"""Reports: what was measured, marked, beside the paper's; what was not, named."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slalom.evaluation import report
from slalom.evaluation.cells import Cell, parse_sampler
from slalom.evaluation.document import markdown
from slalom.evaluation.estimates import Case, Values, estimate
from slalom.evaluation.run_evaluation import read_several
from slalom.evaluation.summary import TableRow, is_own_text, rank, read_results
from slalom.evaluation.tasks import Task, load_task
from tests.evaluation import tiny


def row(sampler: str, values: list[float], metric: str = "perplexity") -> TableRow:
    """A sampler with one value a prompt."""
    by_prompt: Values = {Case(str(prompt), "w", 20): [value] for prompt, value in enumerate(values)}
    found = estimate({str(prompt): [value] for prompt, value in enumerate(values)})
    return TableRow(sampler, Cell("soup", sampler), len(values), {metric: found}, {metric: by_prompt})


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
    assert re.search(r"\| drawn:hot<br>6 prompts \| [+-]\d.*<br>.* to .* \| \d.*<br>.* to .* " + costs, text)
    assert "95 % bootstrap intervals" in text
    assert re.search(r"\| drawn \| \d\.\d+ to \d\.\d+<br>n 24 \| — \|", text)
    assert "Nonsense ahead." in text
    assert "*the food*" in text
    assert "| perplexity | a ruler | r1 | 0.750 rulers | 0.500 rulers |" in text
    assert "judge bertscore: no bertscore today" in text
    assert "Self-BLEU: BLEU-4" in text
    assert "--strengths 0.5,1,2" in text


def test_what_is_missing_is_never_0(out: Path) -> None:
    rows = [line.split(" | ") for line in (out / "report.md").read_text().splitlines() if "<br>24 texts |" in line]
    assert [cells[2] for cells in rows] == ["—", "—"]


def test_the_papers_figures_stand_beside_dab_only_where_it_is_the_papers_dab() -> None:
    task = load_task("sentiment")
    assert report.paper_figure(task, Cell("sentiment", "dab", "paper"), "perplexity") == "11.8 ± 0.2"
    assert report.paper_figure(task, Cell("sentiment", "dab"), "perplexity") == ""
    assert report.paper_figure(task, Cell("sentiment", "dab", "thorough"), "perplexity") == ""
    assert report.paper_figure(task, Cell("sentiment", "bolt"), "perplexity") == ""


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


def test_a_run_without_any_sampler_at_its_usual_strength_is_reported_too(soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "out", soup, tiny.cells((0.5,), ("default",)))
    assert "Paired differences" not in (tmp_path / "out" / "report.md").read_text()


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
    assert not is_own_text(Cell("everyday", "climb"))


def test_the_command_of_a_report_names_what_was_told() -> None:
    cells = [Cell("everyday", "dab", told=True), Cell("everyday", "dab", "paper"), Cell("everyday", "none", told=True)]
    assert [cell.typed_sampler for cell in cells] == ["dab+told", "dab:paper", "none+told"]
    assert [parse_sampler(cell.typed_sampler) for cell in cells] == [
        (cell.sampler, cell.preset, cell.told) for cell in cells
    ]
