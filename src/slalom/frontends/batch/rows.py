"""One row's fields and the command's to a checked specification of its text."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from slalom.errors import SlalomError
from slalom.frontends.specs import DETAILS, WISHES, LoadSpec, TextSpec, checked

WISH_FIELDS = (*WISHES, *DETAILS)  # all that a constraint is made of


class BatchSpec(LoadSpec, TextSpec):
    """What `slalom batch` takes as options: the model, and what rows leave open."""


class RowSpec(TextSpec):
    """One row of a batch: what to continue or answer, what the text should be like, and what to keep beside it."""

    prompt: str | None = Field(None, description="the text to continue")
    messages: list[dict[str, str]] | None = Field(
        None, description="a chat to answer: messages with a role and a content"
    )
    id: str | int | None = Field(None, description="a name for the row, kept in the output")
    metadata: Any = Field(None, description="anything else to be kept in the output as it is")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a row has a prompt or messages: give one of them")
        if not self.wishes:
            raise ValueError(f"nothing to steer towards: give any of {', '.join(WISHES)}")
        self.check_weights()
        return self


def row_spec(fields: dict[str, Any], defaults: dict[str, Any]) -> RowSpec:
    """A row's specification; its own fields come before the command's."""
    known = RowSpec.model_fields
    for name in fields:
        if name not in known:
            raise SlalomError(
                f"unknown field {name!r}; choose from {', '.join(known)}; metadata keeps anything as it is"
            )
    return checked(RowSpec, defaults | fields)


def kept(spec: RowSpec) -> dict[str, Any]:
    """What a row's records have from the row itself."""
    return {name: value for name in ("id", "metadata") if (value := getattr(spec, name)) is not None}
