"""One specification, checked once, with sentences for complaints."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from slalom.api import Options, SteerableModel
from slalom.constraints import Custom, Keywords
from slalom.errors import SlalomError
from slalom.frontends.specs import OPTIONS, GenerateSpec, make_spec

GOOD = {"prompts": ["The chicken"], "keywords": ["soup"]}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"length": 0}, "length is 0; input should be greater than or equal to 1"),
        ({"steps": -3}, "steps is -3; input should be greater than or equal to 1"),
        ({"until": 1.5}, "until is 1.5; input should be less than or equal to 1"),
        ({"samples": 0}, "samples is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"strength": -1.0}, "strength is -1.0"),
        ({"sentiment": "angry"}, "sentiment is 'angry'; input should be 'positive', 'neutral' or 'negative'"),
        ({"classifier": "x"}, "a classifier and its label go together"),
        ({"keywords": []}, "nothing to steer towards"),
        ({"prompts": []}, "prompts is"),
        ({"repetition_penalty": 0.9}, "repetition_penalty is 0.9; input should be greater than or equal to 1"),
        ({"colour": "red"}, "colour is 'red'"),
        ({"weights": {"keywords": 0}}, "weights.keywords is 0; input should be greater than 0"),
        ({"weights": {"keywords": 1001}}, "weights.keywords is 1001; input should be less than or equal to 1000"),
        ({"weights": {"keywords": float("nan")}}, "weights.keywords is nan; input should be a finite number"),
        ({"weights": {"topic": 2}}, "weights has 'topic', which is not asked for; ask for it too, or weigh any of key"),
        ({"weights": {"rhyme": 2}, "constraints": {"rhyme": "x"}}, "or weigh any of keywords, constraints.rhyme"),
        ({"weights": {"avoid": 2}, "avoid": ["rain"]}, "weights has 'avoid', but no draft ever holds those words"),
    ],
)
def test_a_bad_value_is_named_with_its_rule(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(SlalomError) as error:
        make_spec(GOOD | given)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_given_goes_before_what_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "wish.toml"
    file.write_text('prompts = ["The lake"]\nkeywords = ["boat"]\nlength = 12\nrepetition_penalty = 1.5\n')
    spec = make_spec({"length": 30, "steps": None}, file)
    assert (spec.prompts, spec.keywords, spec.length) == (["The lake"], ["boat"], 30)
    assert spec.repetition_penalty == 1.5


def test_a_setting_nobody_gave_is_what_python_takes_by_default() -> None:
    spec, python = make_spec(GOOD), inspect.signature(SteerableModel.requests).parameters
    said = {name: getattr(spec, name) or None for name in OPTIONS}
    assert said == {name: python[name].default or None for name in OPTIONS}


def test_python_the_command_and_toml_have_the_same_options() -> None:
    python = set(inspect.signature(SteerableModel.requests).parameters) - {"self", "prompts", "constraint"}
    assert python == set(Options.__annotations__) == OPTIONS
    assert python <= set(GenerateSpec.model_fields)


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("prompts = [")
    with pytest.raises(SlalomError, match="cannot be read as TOML"):
        make_spec(GOOD, tmp_path / "bad.toml")
    with pytest.raises(SlalomError, match="there is no file"):
        make_spec(GOOD, tmp_path / "none.toml")


def test_all_that_is_named_is_summed() -> None:
    spec = make_spec(GOOD | {"mode": "all"})
    assert spec.constraint().name == "keywords:all(soup)"
    soft = make_spec(GOOD | {"topic": "space", "avoid": ["rain"]})
    assert soft.constraint().name == "keywords:any(soup) + topic:space + avoid:rain"
    both = make_spec(GOOD | {"regex": "s.up", "whole_sentences": True})
    assert both.constraint().name == "keywords:any(soup) + regex:s.up + ends-with-sentence"


def test_what_is_weighed_counts_so_many_times_and_the_rest_once() -> None:
    wishes = GOOD | {"topic": "space", "avoid": ["rain"], "whole_sentences": True}
    spec = make_spec(wishes | {"weights": {"whole_sentences": 0.5, "keywords": 2, "topic": 1}})
    assert spec.constraint().name == "2 * keywords:any(soup) + topic:space + avoid:rain + 0.5 * ends-with-sentence"


def test_a_constraint_that_exists_already_is_weighed_by_the_name_it_is_handed_over_by() -> None:
    spec = make_spec(GOOD | {"constraints": {"rhyme": "x"}, "weights": {"constraints.rhyme": 3}})
    rhyme = Custom(lambda prompt, text: 0.0, name="rhyme")
    assert [weight for weight, _ in spec.constraint({"constraints.rhyme": rhyme}).terms()] == [1, 3]


def test_a_weight_of_one_leaves_the_constraint_as_it_is() -> None:
    assert isinstance(make_spec(GOOD | {"weights": {"keywords": 1}}).constraint(), Keywords)


def test_weights_stand_in_a_table_of_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "wish.toml"
    file.write_text('prompts = ["The lake"]\nkeywords = ["boat"]\ntopic = "space"\n[weights]\ntopic = 0.5\n')
    assert make_spec({}, file).constraint().name == "keywords:any(boat) + 0.5 * topic:space"
