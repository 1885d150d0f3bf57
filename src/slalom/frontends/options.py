"""The fields of a specification to options of a command, and what was typed back to fields."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel

from slalom.errors import SlalomError
from slalom.frontends.specs import DETAILS, WISHES, LoadSpec

# Fields that are typed in another way than `--name VALUE`: the flags, and the type on the command line.
TYPED: dict[str, tuple[tuple[str, ...], Any]] = {
    "mode": (("--all/--any",), bool),
    "tell": (("--tell/--no-tell",), bool),
    "constraints": (("--constraint",), list[str]),
    "weights": (("--weight",), list[str]),
    "knobs": (("--knob",), list[str]),
    "shipped": (("--shipped/--no-shipped",), bool),
}
COMMA_SEPARATED = ("keywords", "avoid")

# Headings of `--help`, and the fields below each.
PANELS: dict[str, tuple[str, ...]] = {
    "What the text should be like": (*WISHES, *DETAILS),
    "How it is steered": ("tell", "sampler", "preset", "strength", "steps", "until", "select", "knobs"),
    "How it is written": ("length", "samples", "seed", "free", "stop", "temperature", "top_p", "repetition_penalty"),
    "The model": tuple(LoadSpec.model_fields),
}
PANEL_OF = {field: panel for panel, fields in PANELS.items() for field in fields}
TELL_AS = Annotated[
    str | None,
    typer.Option(help="The sentence to tell it, 'Write a gloomy story.' say.", rich_help_panel=PANEL_OF["tell"]),
]


def takes(model: type[BaseModel], *, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """A command whose last parameter, `given`, is filled with the fields of this specification that were typed."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "given"]
        names = [name for name in model.model_fields if name not in without]
        options = [_option(name, model) for name in names]
        if "tell" in names:
            options.append(
                inspect.Parameter("tell_as", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TELL_AS)
            )

        @functools.wraps(command)
        def run(**typed: Any) -> None:
            mine = {one.name: typed.pop(one.name) for one in own}
            command(**mine, given=_fields(typed))

        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        run.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in [*parameters, *options]}
        return run

    return decorate


def _option(name: str, model: type[BaseModel]) -> inspect.Parameter:
    """One field as an option that is None if it is not typed."""
    field = model.model_fields[name]
    flag = f"--{name.replace('_', '-')}"
    flags, kind = TYPED[name] if name in TYPED else ((flag,), _kind(name, field.annotation))
    text = field.description or ""
    said = typer.Option(
        *flags, help=text[:1].upper() + text[1:] + ".", show_default=False, rich_help_panel=PANEL_OF.get(name)
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Union[kind, None], said],  # noqa: UP007
    )


def _kind(name: str, annotation: Any) -> Any:
    """The type on the command line: the field's own; a choice is checked with the rest of the specification."""
    if name in COMMA_SEPARATED:
        return str
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    (kind,) = [one for one in choices if one is not type(None)]
    return str if get_origin(kind) is Literal else kind


def _fields(typed: dict[str, Any]) -> dict[str, Any]:
    """What was typed as fields of the specification; what was not is left out."""
    given = {name: value for name, value in typed.items() if value is not None and value != []}
    for name in COMMA_SEPARATED:
        if name in given:
            given[name] = [word.strip() for word in given[name].split(",") if word.strip()]
    if "mode" in given:
        given["mode"] = "all" if given["mode"] else "any"
    if "tell_as" in given:
        given["tell"] = given.pop("tell_as")
    if "constraints" in given:
        given["constraints"] = _pairs("--constraint", given["constraints"])
    if "weights" in given:
        given["weights"] = {_wish(name): value for name, value in _pairs("--weight", given["weights"]).items()}
    if "knobs" in given:
        given["knobs"] = knobs(given["knobs"])
    return given


def knobs(given: list[str]) -> dict[str, str]:
    """Knobs as typed after --knob, by their names."""
    return {name.replace("-", "_"): value for name, value in _pairs("--knob", given).items()}


def _wish(name: str) -> str:
    """A wish as typed by its field's name; the name that another package gave its constraint is left as it is."""
    return name if name.startswith("constraints.") else name.replace("-", "_")


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    """name=value, as often as it was given."""
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not equals:
            raise SlalomError(f"{option} is {name!r}; it must look like name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}
