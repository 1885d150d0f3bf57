"""Tasks of the lm-evaluation-harness that generate to steered texts: the model `slalom` of `lm_eval`.

    python -m slalom.frontends.lm_eval_model run --model slalom --model_args sentiment=positive,tell=False --tasks TASK

The harness finds models by import alone, so this module is the command `lm_eval` with one model more.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from slalom.errors import SlalomError
from slalom.frontends.batch.lines import Line
from slalom.frontends.batch.reading import from_cell
from slalom.frontends.batch.rows import BatchSpec
from slalom.frontends.batch.texts import TextWriter, Work
from slalom.frontends.specs import LoadSpec, checked

LENGTH = 256  # new tokens of a task that does not say, as elsewhere in the harness
IGNORED = ("batch_size", "max_batch_size")  # the scheduler decides
ONLY = "slalom answers tasks that generate (generate_until) only: steering changes what is written, not likelihoods"


@register_model("slalom")
class SlalomLM(LM):  # type: ignore[misc]
    """A steered LM. Its arguments are the fields of `slalom generate`: model, sentiment, keywords, sampler, ..."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        texts = {name: from_cell(name, value) for name, value in fields.items() if isinstance(value, str)}
        given = {name: value for name, value in (fields | texts).items() if name not in IGNORED}
        if str(given.get("device", "")).startswith("cuda") and not torch.cuda.is_available():
            del given["device"]  # the harness's default, whether there is such a device or not
        checked(BatchSpec, given)
        load = {name: given.pop(name) for name in LoadSpec.model_fields if name in given}
        self._writer = TextWriter(Work(load, given))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Each request's text, in the order asked; all share the scheduler's batch."""
        lines = (Line(number, number + 1, _fields(*request.args)) for number, request in enumerate(requests))
        texts: dict[int, str] = {}
        for one in itertools.chain.from_iterable(self._writer.write(lines)):
            if one.error is not None:
                raise SlalomError(f"request {one.line}: {one.error}")
            texts[one.number] = one.records[0]["text"]
        return [texts[number] for number in range(len(requests))]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Refused."""
        raise SlalomError(ONLY)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Refused."""
        raise SlalomError(ONLY)


def _fields(context: str, asked: dict[str, Any]) -> dict[str, Any]:
    """A request of the harness as a row; what would change its text and cannot be applied is refused by name."""
    asked = dict(asked)
    until = asked.pop("until", [])
    row: dict[str, Any] = {
        "prompt": context,
        "stop": [one for one in ([until] if isinstance(until, str) else until) if one],
        "length": asked.pop("max_gen_toks", LENGTH),
        "free": True,
    }
    drawn: dict[str, Any] = {name: asked.pop(name) for name in ("temperature", "top_p") if name in asked}
    if asked.pop("do_sample", False):
        row |= drawn
    if asked:
        raise SlalomError(
            f"a task asks for {', '.join(asked)}, which slalom cannot apply; leave them out (--gen_kwargs)"
        )
    return row


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
