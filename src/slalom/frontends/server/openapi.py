"""An app's routes to its OpenAPI document, with the names and limits of this very server."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from slalom.decoding import SAMPLERS
from slalom.frontends.server.settings import ServeSpec

BODIES = ("CompletionBody", "ChatBody", "SteerBody")


def document(app: FastAPI, model: str, settings: ServeSpec) -> dict[str, Any]:
    """The description of the API. A wrong body gets 400 in our shape, so FastAPI's 422 is left out."""
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = found["components"]["schemas"]
    for operations in found["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for body in (schemas[name]["properties"] for name in BODIES):
        body["model"]["enum"] = [model]
        for name, most in (("max_tokens", settings.max_tokens), ("n", settings.max_texts)):
            _number(body[name])["maximum"] = most
    wish = schemas["SlalomBody"]["properties"]
    wish["sampler"]["enum"] = list(SAMPLERS)
    _number(wish["steps"])["maximum"] = settings.max_steps
    if settings.api_key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
        found["paths"]["/health"]["get"]["security"] = []
    return found


def _number(field: dict[str, Any]) -> dict[str, Any]:
    """Of a field that may be null the other choice."""
    choice: dict[str, Any] = next(one for one in field["anyOf"] if one["type"] != "null")
    return choice
