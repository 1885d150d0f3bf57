"""Task files: the shipped ones are whole, and anyone's own is one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slalom.constraints import Keywords
from slalom.errors import SlalomError
from slalom.evaluation.tasks import NAMES, constraint_of, evenly_spaced, load_task

OWN = """
name = "own"
what = "soup"
prompts = ["we", "they", "the food", "a day"]
judges = ["perplexity"]
columns = ["success", "perplexity"]
control = "success"
prefix = "About $thing: "
records = "things.jsonl"
[[wishes]]
name = "words"
parts = [{ kind = "keywords", words = "$words" }]
[presets.quick]
prompts = 2
samples = 3
lengths = [5]
"""

COPIED_WISH = """[[wishes]]
name = "words"
parts = [{ kind = "avoid", words = "$words" }]
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "things.jsonl").write_text('{"thing": "rain", "words": ["rain", "cold"]}\n')
    (tmp_path / "broken.jsonl").write_text('{"thing": "rain", "words": ["rain"]}\n\n{"thing\n')
    (tmp_path / "own.toml").write_text(OWN)
    return tmp_path / "own.toml"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_task_has_three_presets_that_grow(name: str) -> None:
    task = load_task(name)
    sizes = [task.size(name) for name in ("quick", "standard", "paper")]
    texts = [len(task.items(size)) * size.samples * len(size.lengths) for size in sizes]
    assert list(task.presets)[:3] == ["quick", "standard", "paper"]
    assert texts == sorted(texts)
    assert len({item.id for item in task.items(task.size("paper"))}) == len(task.items(task.size("paper")))


def test_the_paper_preset_is_what_the_paper_did() -> None:
    sentiment, detox, keywords = (load_task(name) for name in ("sentiment", "detox", "keywords"))
    assert (len(sentiment.prompts), sentiment.size("paper").lengths) == (15, [12, 20, 50])
    assert len(detox.items(detox.size("paper"))) == 1000
    assert len(keywords.items(keywords.size("paper"))) == 7 * 15
    assert all(len(record["keywords"]) == 4 for record in keywords.records)


def test_a_task_of_ones_own_is_one_file(own: Path) -> None:
    task = load_task(str(own))
    first, second = task.items(task.size("quick"), prefixed=True)
    assert (first.prompt, second.prompt) == ("we", "the food")
    assert first.prefix == "About rain: "
    assert first.parts == [{"kind": "keywords", "words": ["rain", "cold"]}]
    assert isinstance(constraint_of(first.parts), Keywords)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"success", "perplexity"', '"sucess"', "unknown metric 'sucess'; choose from guide"),
        ('judges = ["perplexity"]', 'judges = ["me"]', "unknown judge 'me'; choose from sentiment, sentiment-yelp"),
        ("samples = 3", "samples = 0", "presets.quick.samples: Input should be greater than or equal to 1"),
        ("samples = 3", 'wishes = ["x"]\nsamples = 3', "unknown wish 'x'; choose from words"),
        ("things.jsonl", "nothing.jsonl", "names the file nothing.jsonl, which cannot be read"),
        ("name =", "name", "cannot be read as TOML"),
        ('what = "soup"', 'whut = "soup"', "what: Field required"),
        ('name = "words"', 'name = "words/two"', "own.toml: the wish 'words/two' has a / in its name"),
        ("[presets.quick]", COPIED_WISH + "[presets.quick]", "own.toml: two wishes are called 'words'"),
        ("lengths = [5]", "lengths = [5, 6, 5]", "own.toml: the preset quick has the length 5 twice"),
        ('"$words"', '"$word"', "own.toml: record 1 has no field 'word'; its fields are thing, words"),
        ("$thing", "$thin", "own.toml: record 1 has no field 'thin'; its fields are thing, words"),
        (
            "$thing",
            "$5 for $thing",
            "own.toml: the prefix 'About $5 for $thing: ' has a $ that no field's name follows",
        ),
        ("things.jsonl", "broken.jsonl", "names the file broken.jsonl, whose line 3 is no JSON"),
        ("lengths = [5]", "lengths = [5]\ntop_p = 0", "presets.quick.top_p: Input should be greater than 0"),
    ],
)
def test_a_wrong_task_file_is_named_with_its_fault(own: Path, old: str, new: str, complaint: str) -> None:
    own.write_text(OWN.replace(old, new, 1))
    with pytest.raises(SlalomError) as error:
        load_task(str(own))
    assert complaint in str(error.value)


def test_an_unknown_task_preset_or_constraint_is_refused(own: Path) -> None:
    with pytest.raises(SlalomError, match="unknown task 'poems'; choose from sentiment, detox"):
        load_task("poems")
    with pytest.raises(SlalomError, match="unknown preset 'huge' of own; choose from quick"):
        load_task(str(own)).size("huge")
    with pytest.raises(SlalomError, match="unknown kind of constraint 'joy'"):
        constraint_of([{"kind": "joy"}])
    with pytest.raises(SlalomError, match=r"no constraint can be made from .*colour"):
        constraint_of([{"kind": "keywords", "colour": "red"}])
    with pytest.raises(SlalomError, match=r"no constraint can be made from .*words"):
        constraint_of([{"kind": "keywords", "words": 3}])


def test_blank_lines_of_the_records_are_passed_over(own: Path) -> None:
    (own.parent / "things.jsonl").write_text('{"thing": "rain", "words": [1, 2]}\n\n{"thing": "sun", "words": []}\n\n')
    own.write_text(OWN.replace("About", "$$ about"))
    task = load_task(str(own))
    assert [item.prefix for item in task.items(task.size("quick"), prefixed=True)][::2] == [
        "$ about rain: ",
        "$ about sun: ",
    ]


def test_the_drawn_texts_of_detox_are_drawn_from_all_tokens() -> None:
    drawn = load_task("detox").size("drawn")
    assert (drawn.temperature, drawn.top_p) == (1.0, 1.0)
    assert load_task("detox").size("standard").top_p is None


def test_only_a_task_with_a_prefix_takes_one() -> None:
    task = load_task("sentiment")
    with pytest.raises(SlalomError, match="has no prefix"):
        task.items(task.size("quick"), prefixed=True)


def test_fewer_of_a_list_are_taken_evenly() -> None:
    assert evenly_spaced([0, 1, 2, 3, 4, 5], 3) == [0, 2, 4]
    assert evenly_spaced([0, 1], 5) == [0, 1]
