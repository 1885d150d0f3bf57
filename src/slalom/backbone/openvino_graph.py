"""A converted model's folder to its compiled graph: an LM's with its cache in blocks, or an encoder's."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from slalom.backbone import cache

SETTINGS = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
}
COMPILED = "compiled"  # in a converted model's folder: what OpenVINO keeps of it to compile it faster

_COMPILING = threading.Lock()


def cores() -> int:
    """How many this process may use. OpenVINO takes other kernels for one than for several, and last bits differ."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiled(folder: Path, group: str) -> ov.CompiledModel:
    """The graph of a converted LM, compiled; activations quantised to eight bits by groups of so many, if not 0.

    Anew in every process: OpenVINO cannot keep a graph whose cache lies in blocks.
    """
    with _COMPILING:
        graph = ov.Core().read_model(folder / "model.xml")
    _use_blocks(graph)
    return ov.Core().compile_model(graph, "CPU", SETTINGS | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": group})


def _use_blocks(graph: ov.Model) -> None:
    """Put the cache into blocks, and compute only the logits that are wanted: of these tokens of all that are read."""
    paged_attention_transformation(graph)
    for parameter in list(graph.get_parameters()):
        if not parameter.output(0).get_target_inputs():
            graph.remove_parameter(parameter)
    graph.input("input_ids").get_node().set_partial_shape(ov.PartialShape([-1]))
    wanted = ops.parameter([-1], ov.Type.i64, name="wanted")
    wanted.output(0).get_tensor().set_names({"wanted"})
    head = graph.outputs[0].get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    chosen = ops.gather(head.input_value(0), wanted, ops.constant(0))
    head.input(0).replace_source_output(chosen.output(0))
    graph.add_parameters([wanted])
    graph.validate_nodes_and_infer_types()


def compile_model(folder: Path, settings: dict[str, str], keep: bool = True) -> ov.CompiledModel:
    """The graph in a folder, compiled; what OpenVINO can use of that next time is kept if it may be.

    Not beside anything else: to read what it kept, OpenVINO changes the locale of the whole process for a moment.
    """
    kept = folder / COMPILED
    if not keep or not os.access(folder, os.W_OK):
        return ov.Core().compile_model(folder / "model.xml", "CPU", settings)
    # With its weights: without them (OPTIMIZE_SIZE), OpenVINO 2026.4 reads back other numbers than it wrote.
    settings = settings | {"CACHE_DIR": str(kept), "CACHE_MODE": "OPTIMIZE_SPEED"}
    with _COMPILING, contextlib.nullcontext() if any(kept.glob("*.blob")) else cache.file_lock(folder):
        return ov.Core().compile_model(folder / "model.xml", "CPU", settings)
