"""From modules to ONNX files: the graph of a module, and how it is written."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from tracecvr.base.errors import UserError
from tracecvr.data.table import Ints

_NEEDED = ("onnx", "onnxscript", "onnxruntime")


def refuse_missing_packages() -> None:
    """Refuse to begin where a package is missing."""
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed; it is in an extra: pip install 'tracecvr[export]'")


def versions() -> dict[str, str]:
    """Of the packages that an export is written with."""
    return {package: version(package) for package in _NEEDED}


def trace(module: nn.Module, ids: Ints) -> ExportedProgram:
    """The graph of a module, for any number of rows."""
    with _quiet(), torch.no_grad():
        program = torch.export.export(module.eval(), (torch.from_numpy(ids),), dynamic_shapes=({0: Dim("batch")},))
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


# Logarithms and exponentials that keep their digits.


def log1p(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 0.5, _log1p_near_zero(x), torch.log(1 + x))


def expm1(x: Tensor) -> Tensor:
    return torch.tanh(x / 2) * (torch.exp(x) + 1)


def log_sigmoid(x: Tensor) -> Tensor:
    return x.clamp_max(0.0) - _log1p_near_zero(torch.exp(-x.abs()))


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    return torch.maximum(a, b) + _log1p_near_zero(torch.exp(-(a - b).abs()))


def _log1p_near_zero(x: Tensor) -> Tensor:
    """For x from -0.5 to 1: far from there the quotient is too near 1."""
    return 2 * torch.atanh(x / (2 + x))


FORMS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.log1p.default: log1p,
    torch.ops.aten.expm1.default: expm1,
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.logaddexp.default: logaddexp,
}
"""By the operator that each is written in place of. ONNX has none of these four: the exporter writes log(1 + x),
exp(x) - 1, log(sigmoid(x)) and log(exp(a) + exp(b)), which lose all digits near 0 and are infinite far from it. Rates
are near 0, and the difference of two infinities is no number at all."""
