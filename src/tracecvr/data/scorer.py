"""Conversion rates of clicks from raw features, a JSON object per line: python scorer.py < clicks.jsonl

It needs numpy and onnxruntime, and xxhash if a feature is hashed. `manifest.json` says how features become ids.
"""

import hashlib
import json
import math
import re
import sys
from bisect import bisect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Scorer:
    """P(conversion) of clicks: a list of dictionaries of raw features, None where one is missing."""

    def __init__(self, folder: Path = Path(__file__).parent) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        for name, digest in self.manifest["files"].items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise SystemExit(f"{name} is not the file that manifest.json names: export the model again")
        features = self.manifest["features"]
        self.columns = [(column["raw"], make_reader(column), column["missing"]) for column in features]
        self.score = load(folder / "score.onnx")

    def ids(self, clicks: list[dict[str, Any]]) -> Any:
        ids = np.empty((len(clicks), len(self.columns)), np.int64)
        for place, (raw, read, missing) in enumerate(self.columns):
            known = (read(click[raw]) for click in clicks)
            ids[:, place] = [missing if one is None else one for one in known]
        return ids

    def predict(self, clicks: list[dict[str, Any]]) -> Any:
        return 1 / (1 + np.exp(-self.log_odds(clicks)))

    def log_odds(self, clicks: list[dict[str, Any]]) -> Any:
        return self.score(ids=self.ids(clicks))


def make_reader(column: dict[str, Any]) -> Callable[[Any], int | None]:
    """A function of a raw value of a column: its id, or None if the value is missing or cannot be read."""
    kind = column["kind"]
    if kind == "hashed":
        import xxhash

        digest, size = xxhash.xxh3_64_intdigest, column["size"]

        def read_hashed(value: Any) -> int | None:
            written = value if type(value) is str else text(value)  # most are: to ask takes as long as the hash
            return None if written is None else digest(written.encode()) % size

        return read_hashed
    if kind == "vocabulary":
        known = column["ids"]
        return lambda value: None if (written := text(value)) is None else known.get(written, 1)
    if kind == "binned":
        edges, decimal = column["edges"], column["decimal"]
        return lambda value: None if (one := number(value, decimal)) is None else bisect(edges, float(one))

    def read_remainder(value: Any) -> int | None:
        one = number(value)
        return None if one is None or not -(2**63) <= one < 2**63 else math.floor(one) % int(column["size"])

    return read_remainder


def number(value: Any, decimal: str = ".") -> Any:
    if isinstance(value, str) and decimal == ",":
        written = re.fullmatch(r"\s*[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?\s*", value, re.ASCII)
        value = value.strip().replace(".", "").replace(",", ".") if written else None
    if isinstance(value, str) and value.isascii() and not set(value) & set("_ \t\r\n\v\f"):
        try:
            value = int(value) if value.strip("+-").isdigit() else float(value)
        except ValueError:
            return None
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value if known and -sys.float_info.max <= value <= sys.float_info.max else None


def text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return str(value)
        value = to_float(value)
    if isinstance(value, float):
        if 1e-5 <= abs(value) < 1e-4:
            return np.format_float_positional(value)
        return repr(float(value)).replace("e-0", "e-").replace("nan", "NaN")
    return value if isinstance(value, str) else None


def to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def load(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda **inputs: session.run(None, inputs)[0]


if __name__ == "__main__":
    for rate in Scorer().predict([json.loads(line) for line in sys.stdin]):
        sys.stdout.write(f"{rate}\n")
