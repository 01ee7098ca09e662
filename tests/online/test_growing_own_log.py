"""A log of one's own with a growing column: from a CSV to a run, a resumed run, an export and a live model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import Call

from own_logs import GOOD
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.learn.engine import Engine
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import verify_log

CLICKS, DAYS = 1200, 12
SCHEMA = GOOD.replace("origin = 2026-01-01", "origin = 0").replace('observed_until = "20d"', 'observed_until = "14d"')
SCHEMA += 'product = {kind = "growing", after = 3, forget = "3d"}\n'
QUICK = (
    "--set",
    "hidden=16,8",
    "--set",
    "warm_epochs=1",
    "--set",
    "warm_batch_size=256",
    "--set",
    "interval=1d",
    "--set",
    "until=9d",
    "--threads",
    "1",
)
BY_ROWS = ("--set", "stream.optimiser=lazy_adam", "--set", "stream.learning_rate=0.02")


def write_log(path: Path) -> None:
    """Products come and go: each is clicked for a few days."""
    rng = np.random.default_rng(3)
    at = np.sort(rng.integers(0, DAYS * DAY, CLICKS))
    product = (8 * at / DAY + rng.exponential(6, CLICKS)).astype(int)
    bought = rng.random(CLICKS) < 0.1 + 0.3 * (product % 3 == 0)
    sold = at + np.minimum(rng.exponential(DAY / 2, CLICKS).astype(int), 2 * DAY)
    columns = {
        "id": [f"c{number}" for number in range(CLICKS)],
        "at": at,
        "bought": [int(time) if happened else None for time, happened in zip(sold, bought, strict=True)],
        "site": [f"s{number}" for number in rng.integers(0, 5, CLICKS)],
        "product": [f"p-{number}" for number in product],
    }
    pl.DataFrame(columns).write_csv(path)


def scores(run: Path) -> pl.DataFrame:
    return pl.read_parquet(run / "scores.parquet")


def stop_after(patch: pytest.MonkeyPatch, ticks: int) -> None:
    """The run ends in the tick after so many."""
    plain, done = Engine.tick, 0

    def tick(self: Engine, *args: object) -> int:
        nonlocal done
        done += 1
        if done > ticks:
            raise UserError("stopped")
        return plain(self, *args)  # type: ignore[arg-type]

    patch.setattr(Engine, "tick", tick)


@pytest.mark.slow
def test_a_growing_column_from_a_csv_to_a_live_model(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.csv")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    run = ("run", "--method", "es_dfm", "--schema", "schema.toml", *QUICK, *BY_ROWS)
    assert call(*run, "--out", "whole") == 0, capsys.readouterr().err
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert call(*run, "--out", "stopped", "--checkpoint-every", "0") == 2
    assert call(*run, "--out", "stopped", "--resume") == 0
    assert scores(tmp_path / "stopped").equals(scores(tmp_path / "whole"))

    rows = exported_rows(tmp_path, call)
    assert 10 < rows < 100, "those that are gone have none"

    capsys.readouterr()
    assert call("events", "--model", "whole") == 0
    (tmp_path / "events.jsonl").write_text(capsys.readouterr().out)
    assert call("init", "store", "--model", "whole", "--lateness", "1h") == 0, capsys.readouterr().err
    half = (tmp_path / "events.jsonl").read_text().splitlines(keepends=True)
    for part in (half[: len(half) // 2], half[len(half) // 2 :]):  # the second learner restarts from a version
        (tmp_path / "part.jsonl").write_text("".join(part))
        assert call("ingest", "store", "part.jsonl") == 0
        assert call("tick", "store") == 0
    store = Store.open(tmp_path / "store")
    newest = Versions(store.home, store.settings.keep).newest()
    assert newest is not None
    assert newest["intervals"] >= 3
    assert verify_log(store).same


def exported_rows(folder: Path, call: Call) -> int:
    """Export a run; its scorer gives the rates of a torch model. How many values have rows of their own."""
    pytest.importorskip("onnxruntime")
    assert call("export", "whole", "--out", "exported") == 0
    clicks = (
        pl.read_csv(folder / "log.csv").filter(pl.col("at") > 8 * DAY).head(50).select("site", "product").to_dicts()
    )
    clicks.append({"site": "s1", "product": "never seen"})
    words = [sys.executable, str(folder / "exported" / "scorer.py")]
    lines = "\n".join(json.dumps(click) for click in clicks)
    answer = subprocess.run(words, input=lines, text=True, check=True, capture_output=True)
    rates = [float(line) for line in answer.stdout.split()]
    assert len(rates) == len(clicks)
    assert len(set(rates)) > 5
    (values,) = (folder / "exported").glob("rows_*.npy")
    return int(np.load(values).shape[-1])
