"""What an operator decides about a server: which LM, what requests may name, and how much they may ask for."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from slalom.errors import SlalomError
from slalom.frontends.specs import LoadSpec, folder_name


class Limits(BaseModel):
    """How much one request may ask for; each is shown in /props."""

    model_config = ConfigDict(extra="forbid")

    max_body: int = Field(1_000_000, ge=1, description="bytes of a request's body at the most (default 1,000,000)")
    max_prompt: int = Field(20_000, ge=1, description="characters of a prompt or chat at the most (default 20,000)")
    max_tokens: int = Field(512, ge=1, description="new tokens of a text at the most (default 512)")
    max_texts: int = Field(16, ge=1, description="texts of a request at the most: prompts times n (default 16)")
    max_steps: int = Field(200, ge=1, description="drafts of a text, or of a block of it, at the most (default 200)")
    max_whole_tokens: int = Field(
        2048, ge=1, description="max_tokens times texts of dab or rerank, which write texts as a whole (default 2,048)"
    )
    max_gradient_tokens: int = Field(
        640, ge=1, description="max_tokens times texts of bolt, cold, lm-steer or mucola at the most (default 640)"
    )
    max_constraints: int = Field(8, ge=1, description="wishes of a request at the most (default 8)")
    max_words: int = Field(64, ge=1, description="keywords, words to avoid and topic words at the most (default 64)")
    max_seconds: float = Field(120.0, gt=0, description="seconds a request may take, waiting included (default 120)")


class ServeSpec(Limits, LoadSpec):
    """A server: its model, where it listens, what it offers, and its limits."""

    host: str = Field("127.0.0.1", description="the address to listen on (default 127.0.0.1: this machine alone)")
    port: int = Field(8000, ge=0, le=65535, description="the port to listen on (default 8000); 0 takes a free one")
    name: str | None = Field(None, description="what requests call the model (default: its own name)")
    api_key: str | None = Field(
        None, min_length=1, repr=False, description="the key every request must bring; better in SLALOM_API_KEY"
    )
    queue: int = Field(32, ge=1, description="requests that may wait or be under way; more get 429 (default 32)")
    grace: float = Field(30.0, ge=0, description="seconds that requests under way get at shutdown (default 30)")
    allow_classifier: list[str] = Field(
        [], description="a classifier requests may name, NAME=FOLDER or hub name; may be repeated"
    )
    allow_constraint: list[str] = Field(
        [], description="a constraint of another package that requests may name; may be repeated"
    )
    allow_regex: bool = Field(
        False, description="let requests bring regular expressions; a bad one can block the server"
    )
    shipped: bool = Field(True, description="load the shipped classifiers at start: sentiment, detoxify, similar")
    log_prompts: bool = Field(False, description="write prompts and texts to the log")

    @property
    def limits(self) -> dict[str, float]:
        """The limits by name, and the length of the queue."""
        return {name: getattr(self, name) for name in (*Limits.model_fields, "queue")}

    @property
    def classifiers(self) -> dict[str, str]:
        """The classifiers that requests may name, and where each comes from."""
        pairs = [one.partition("=") for one in self.allow_classifier]
        for name, equals, source in pairs:
            if not (name and equals and source):
                raise SlalomError(f"--allow-classifier is {name + equals!r}; it must look like NAME=FOLDER")
            if [one for one, *_ in pairs].count(name) > 1:
                raise SlalomError(f"--allow-classifier has {name!r} twice; give each classifier a name of its own")
        return {name: source for name, _, source in pairs}

    def served_name(self, loaded: str) -> str:
        """What requests call the model: a folder's last part, for its path is nobody's business."""
        return self.name or (folder_name(loaded) if Path(loaded).is_dir() else loaded)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host.lower() == "localhost"
