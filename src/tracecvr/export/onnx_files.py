"""From modules to ONNX files: the graph of a module, and how it is written."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from tracecvr.base.errors import UserError
from tracecvr.export.outputs import Inputs
from tracecvr.export.stable_functions import FORMS

_NEEDED = ("onnx", "onnxscript", "onnxruntime")


def refuse_missing_packages() -> None:
    """Refuse to begin where a package is missing."""
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed; it is in an extra: pip install 'tracecvr[export]'")


def versions() -> dict[str, str]:
    """Of the packages that an export is written with."""
    return {package: version(package) for package in _NEEDED}


def trace(module: nn.Module, example: Inputs) -> ExportedProgram:
    """The graph of a module, for any number of rows."""
    rows = Dim("batch")
    with _quiet(), torch.no_grad():
        inputs = tuple(map(torch.from_numpy, example))
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=tuple({0: rows} for _ in inputs))
    for node in program.graph.nodes:  # paths of source files differ between machines
        node.meta.pop("stack_trace", None)
    return program


def write(program: ExportedProgram, path: Path) -> None:
    """Write a graph to a file. The same graph gives the same bytes."""
    with _quiet(), torch.no_grad():
        stable = program.run_decompositions(FORMS)
        made = torch.onnx.export(stable, dynamo=True, output_names=["log_odds"], verbose=False)
    assert made is not None
    proto = made.model_proto
    for described in (proto, proto.graph, *proto.graph.node, *proto.graph.input, *proto.graph.output):
        described.ClearField("doc_string")
        described.ClearField("metadata_props")
    proto.graph.ClearField("value_info")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    path.write_bytes(proto.SerializeToString(deterministic=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages of torch's exporters."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
