"""Names that are typed: the language model taken unless another is named, and the engines."""

from __future__ import annotations

from typing import Literal

DEFAULT = "smollm2-135m-instruct"
EngineName = Literal["auto", "torch", "openvino"]
