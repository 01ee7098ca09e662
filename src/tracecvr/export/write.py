"""An export, written completely or not at all, after a check that it answers as the engine does."""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from inspect import getsource
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from tracecvr.base.errors import UserError
from tracecvr.base.files import sha256, write_json, write_text
from tracecvr.data import scorer
from tracecvr.data.encoder import Encoder, describe_column
from tracecvr.data.table import Ints, atomic_directory
from tracecvr.learn.engine import Engine
from tracecvr.learn.fast_scores import probes

TOLERANCE = 1e-4
"""How far log-odds of an export may be from torch's."""

_NEEDED = ("onnx", "onnxscript", "onnxruntime")

_HASHING = "xxh3_64 of the value as UTF-8 text, a missing one as the empty text, modulo the feature's size"


def export(engine: Engine, encoder: Encoder, source: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write a model and return its manifest; `source` says what it was taken from."""
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed; it is in an extra: pip install 'tracecvr[export]'")
    with atomic_directory(out) as folder:
        difference = _write_score(engine, folder / "score.onnx")
        features = [describe_column(column) for column in encoder.columns]
        write_text(folder / "scorer.py", getsource(scorer))
        files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        manifest = _manifest(engine, source, features) | {"max_difference": difference, "files": files}
        write_json(folder / "manifest.json", manifest)
        return manifest


def _write_score(engine: Engine, path: Path) -> float:
    """Write what scores clicks; returns how far its answers are from the engine's."""
    batches = [probes(engine, size) for size in BATCHES]
    expected = [engine.score(torch.from_numpy(ids)) for ids in batches]  # first: tracing leaves no usable tensors
    try:
        with engine.exporting():
            write_onnx(trace(Score(engine), batches[-1]), path)
        score = scorer.load(path)
        answers = [score(ids=ids) for ids in batches]
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch and onnx have no common kind of error for what they cannot trace or run
        method = engine.method
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"the score of method {method.name!r} with backbone {method.backbone!r} cannot be exported ({reason}); "
            "nothing was written. Its code must be tensor operations for any number of rows: x.shape[0] where it says "
            "len(x), no `if` on values, no numpy"
        ) from error
    finally:
        engine.forget()
    difference = max(float(np.abs(f - e).max()) for f, e in zip(answers, expected, strict=True))
    if not difference <= TOLERANCE:
        raise UserError(
            f"{engine.method.name}: the exported score is {difference:.3g} from torch's log-odds, more than "
            f"{TOLERANCE:g}; nothing was written. Tell us"
        )
    return difference


def _manifest(engine: Engine, source: dict[str, Any], features: list[dict[str, Any]]) -> dict[str, Any]:
    schema = engine.schema
    return {
        "format": 1,
        "model": source | {"state_sha256": engine.fingerprint()},
        "method": engine.method.name,
        "options": engine.resolve_options(),
        "dataset": schema.dataset,
        "features": features,
        "hashing": _HASHING,
        "actions": list(schema.actions),
        "horizons": list(engine.method.ends),
        "d_max": schema.d_max,
        "negatives_kept": schema.negatives_kept,
        "checked": {"batches": list(BATCHES), "tolerance": TOLERANCE},
        "versions": {package: version(package) for package in ("tracecvr", "torch", *_NEEDED)},
    }


# What is exported: tensors alone.


BATCHES = (1, 2, 1000)
"""How many clicks are asked about at once."""


class Score(nn.Module):
    """`Engine.score`: a method's nets, and what clicks that were left out of the log do to its odds."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.method, self.nets = engine.method, engine.method.nets
        self.kept = engine.schema.negatives_kept

    def forward(self, ids: Tensor) -> Tensor:  # (B, F) -> (B,)
        log_odds = self.method.log_odds(ids).float()
        return log_odds if self.kept == 1 else log_odds + math.log(self.kept)


# From modules to ONNX files: the graph of a module, and how it is written.


def trace(module: nn.Module, ids: Ints) -> ExportedProgram:
    """The graph of a module, for any number of rows."""
    with _quiet(), torch.no_grad():
        program = torch.export.export(module.eval(), (torch.from_numpy(ids),), dynamic_shapes=({0: Dim("batch")},))
    for node in program.graph.nodes:  # paths of source files differ between machines
        node.meta.pop("stack_trace", None)
    return program


def write_onnx(program: ExportedProgram, path: Path) -> None:
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
