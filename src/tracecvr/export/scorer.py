"""Conversion rates of clicks from raw features: python scorer.py < clicks.jsonl. Needs onnxruntime and xxhash alone."""

import hashlib
import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import xxhash


class Scorer:
    """Log-odds of conversion, one for each click: a list of dictionaries of raw features, None where one is missing."""

    def __init__(self, folder: Path = Path(__file__).parent) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        for name, digest in self.manifest["files"].items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise SystemExit(f"{name} is not the file that manifest.json names: export the model again")
        self.models = {name: loaded(folder / model["file"]) for name, model in self.manifest["models"].items()}

    def ids(self, clicks: list[dict[str, Any]]) -> Any:
        columns = self.manifest["features"]
        ids = [[identified(column, click[column["raw"]]) for column in columns] for click in clicks]
        return np.array(ids, np.int64).reshape(-1, len(columns))

    def score(self, clicks: list[dict[str, Any]]) -> Any:
        return self.models["score"](ids=self.ids(clicks))

    def posterior(self, clicks: list[dict[str, Any]], elapsed: list[int], ages: list[list[int | None]]) -> Any:
        age = [[self.manifest["never"] if one is None else one for one in row] for row in ages]
        return self.models["posterior"](ids=self.ids(clicks), elapsed=np.array(elapsed), age=np.array(age))


def identified(column: dict[str, Any], value: Any) -> int:
    size = column["size"]
    if column["kind"] == "hashed":
        return int(xxhash.xxh3_64_intdigest(text(value).encode()) % size)
    if column["kind"] == "modulo":
        return int((0 if value is None else value) % size)
    number = -1.0 if value is None else float(value)
    number = math.log(max(number, -1.0) + 2.0) if column["scale"] == "log" else number
    position = (number - column["low"]) * (1 / max(column["high"] - column["low"], 1e-9)) * size
    return int(min(max(position, 0), size - 1))


def text(value: Any) -> str:
    if isinstance(value, float):
        short = repr(float(value)).replace("nan", "NaN")
        return format(Decimal(short), "f") if short.endswith("e-05") else short.replace("e-0", "e-")
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def loaded(file: Path) -> Any:
    if file.suffix == ".pt2":
        import torch

        net: Any = torch.export.load(file).module()
        return lambda **inputs: net(*map(torch.from_numpy, inputs.values())).detach().numpy()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda **inputs: session.run(None, inputs)[0]


if __name__ == "__main__":
    for log_odds in Scorer().score([json.loads(line) for line in sys.stdin]):
        sys.stdout.write(f"{1 / (1 + math.exp(-log_odds))}\n")
