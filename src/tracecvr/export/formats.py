"""From modules to files: the graph of a module, and the formats that it is written in."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from tracecvr.base.errors import UserError
from tracecvr.export import scorer
from tracecvr.export.outputs import Inputs
from tracecvr.export.stable_functions import FORMS


@dataclass(frozen=True)
class Format:
    """A kind of file: the packages that it needs, how a graph is written to it, and how a scorer reads it."""

    needs: tuple[str, ...]
    write: Callable[[ExportedProgram, Path], None]
    load: Callable[[Path], Any]

    def check(self) -> None:
        """Refuse to begin where a package is missing."""
        for package in self.needs:
            if importlib.util.find_spec(package) is None:
                raise UserError(f"{package} is not installed; it is in an extra: pip install 'tracecvr[export]'")

    def versions(self) -> dict[str, str]:
        return {package: version(package) for package in self.needs}


def trace(module: nn.Module, example: Inputs) -> ExportedProgram:
    rows = Dim("batch")
    with quiet(), torch.no_grad():
        inputs = tuple(map(torch.from_numpy, example))
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=tuple({0: rows} for _ in inputs))
    for node in program.graph.nodes:  # paths of source files differ between machines
        node.meta.pop("stack_trace", None)
    return program


def _write_onnx(program: ExportedProgram, path: Path) -> None:
    with quiet(), torch.no_grad():
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


def _write_pt2(program: ExportedProgram, path: Path) -> None:
    with quiet():
        torch.export.save(program, path)


def load(file: Path) -> Any:
    import torch

    net: Any = torch.export.load(file).module()
    return lambda **inputs: net(*map(torch.from_numpy, inputs.values())).detach().numpy()


FORMATS = {
    "onnx": Format(("onnx", "onnxscript", "onnxruntime"), _write_onnx, scorer.load),
    "pt2": Format((), _write_pt2, load),
}


@contextmanager
def quiet() -> Iterator[None]:
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
