"""The scorer of an export knows which values of a growing column have rows of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from grown import OPTIONS, Grown, key_of, log, warmed
from tracecvr.api.models import Model
from tracecvr.checks.subject import plan_for


def test_an_exports_scorer_knows_the_map(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    engine, source = warmed()
    plan = plan_for(log()[0])
    for number in range(6):
        engine.tick(source, *plan.bounds(number))
    Model(engine, log()[1], {"kind": "run"}).export(tmp_path / "export")
    raw = Grown(**OPTIONS).read(None).frame.tail(400).select("segment", "item", "device")
    clicks = [*raw.iter_rows(named=True), {"segment": 1, "item": "never seen", "device": 0}]
    lines = "\n".join(json.dumps(click) for click in clicks)
    words = [sys.executable, str(tmp_path / "export" / "scorer.py")]
    rates = [
        float(line)
        for line in subprocess.run(words, input=lines, text=True, check=True, capture_output=True).stdout.split()
    ]
    columns = {name: [click[name] for click in clicks] for name in raw.columns}
    x = torch.from_numpy(log()[1].encode_values(columns)[0])
    assert (engine.growing.maps["item"].rows(key_of(x)) > 0).sum() > 100
    np.testing.assert_allclose(rates, 1 / (1 + np.exp(-engine.score(x))), atol=1e-5)
