"""Conversion rates of clicks from raw features, a JSON object per line: python scorer.py < clicks.jsonl

It needs numpy and onnxruntime, and xxhash if a feature is hashed. `manifest.json` says how features become ids.
"""

import hashlib
import json
import math
import re
import sys
from bisect import bisect
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
        self.score = load(folder / "score.onnx")

    def ids(self, clicks: list[dict[str, Any]]) -> Any:
        columns = self.manifest["features"]
        rows = [[identify(column, click[column["raw"]]) for column in columns] for click in clicks]
        return np.array(rows, np.int64).reshape(-1, len(columns))

    def predict(self, clicks: list[dict[str, Any]]) -> Any:
        return 1 / (1 + np.exp(-self.log_odds(clicks)))

    def log_odds(self, clicks: list[dict[str, Any]]) -> Any:
        return self.score(ids=self.ids(clicks))


def identify(column: dict[str, Any], value: Any) -> int:
    if column["kind"] == "hashed":
        import xxhash

        return int(xxhash.xxh3_64_intdigest(text(value).encode()) % column["size"])
    if column["kind"] == "vocabulary":
        return int(column["ids"].get(text(value), 1))
    value = number(value, column.get("decimal", "."))
    if column["kind"] == "binned":
        return bisect(column["edges"], -1.0 if value is None else float(value))
    return 0 if value is None or not -(2**63) <= value < 2**63 else math.floor(value) % int(column["size"])


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


def text(value: Any) -> str:
    if isinstance(value, float):
        if 1e-5 <= abs(value) < 1e-4:
            return np.format_float_positional(value)
        return repr(float(value)).replace("e-0", "e-").replace("nan", "NaN")
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def load(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda **inputs: session.run(None, inputs)[0]


if __name__ == "__main__":
    for rate in Scorer().predict([json.loads(line) for line in sys.stdin]):
        sys.stdout.write(f"{rate}\n")
