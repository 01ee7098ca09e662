"""Logs of one's own: from inspect to a run, in both shapes, with every defect planted and counted."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import Call
from hypothesis import given
from hypothesis import strategies as st

import planted
from quick import SMALL_NETS, flags
from test_external_sort import same
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.data import external_sort, prepared
from tracecvr.data.external_sort import Scratch
from tracecvr.data.inspection.inspect_log import inspect_files
from tracecvr.data.inspection.measurements import leak
from tracecvr.data.own_log import files
from tracecvr.data.own_log.cleaning import _steps, _turns
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.logs import Logs
from tracecvr.runs.spec import dataset_of

Write = Callable[[Path, planted.Log], tuple[Path, Counter[str]]]
SHAPES: dict[str, Write] = {"clicks": planted.write_clicks, "events": planted.write_events}
RUN = ("--data", "logs", *SMALL_NETS, *flags("--set", "interval=20d", "batch_size=512"), "--threads", "1")


@pytest.fixture(params=SHAPES)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Counter[str]]:
    """A log with every defect, and what was planted."""
    return SHAPES[request.param](tmp_path, planted.log())


def schema_of(log: Path) -> Path:
    """The schema that `inspect` proposes, written beside the log."""
    path = log.parent / "schema.toml"
    path.write_text(inspect_files([str(log)], log.parent, planted.ZONE).toml)
    return path


def test_from_inspect_to_a_run_every_defect_is_counted(
    made: tuple[Path, Counter[str]], call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    log, expected = made
    folder = log.parent
    schema, table = folder / "schema.toml", folder / "table"
    assert call("inspect", log, "--zone", planted.ZONE, "--out", schema) == 0
    counted = re.findall(r"(?m)^(\w+): ([\d,]+)$", capsys.readouterr().out)
    assert (
        Counter({name: int(count.replace(",", "")) for name, count in counted}) == expected
    )  # a count that is missing is 0, and nothing else is counted
    assert call("prepare", "logs", "--schema", schema, "--out", table) == 0
    shown = dict(line.split(": ") for line in capsys.readouterr().out.splitlines() if ": " in line)
    for name, count in expected.items():
        assert shown[name] == f"{count:,}", name
    loaded = ClickTable.load(table)
    assert Counter(loaded.counts) == expected
    assert loaded.refund_ts is not None
    assert int((loaded.refund_ts[:, 0] != NEVER).sum()) == expected["refund"] + expected["refund_after_d_max"]
    for method in ("pretrain", "trace"):
        assert call("run", "--method", method, *RUN, "--source", table, "--out", folder / method) == 0
        result = json.loads((folder / method / "result.json").read_text())
        assert result["data"]["counts"].items() >= expected.items()
        assert result["metrics"]["pooled"]["auc"] > 0.5
    capsys.readouterr()


def test_both_shapes_make_the_same_clicks(tmp_path: Path) -> None:
    """The same clicks, written in two shapes, end up as the same labels at the same times."""
    tables = []
    for name, write in SHAPES.items():
        (tmp_path / name).mkdir()
        log, _ = write(tmp_path / name, planted.log())
        tables.append(dataset_of("logs", [f"schema={schema_of(log)}", "max_bad=0.1"]).prepare(None)[0])
    one, other = tables
    facts = [sorted(zip(t.click_ts, t.label, *t.action_ts.T, strict=True)) for t in tables]
    assert facts[0] == facts[1]
    assert one.schema.horizons == other.schema.horizons


def test_a_run_straight_from_the_files_notices_a_new_schema(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    log, _ = planted.write_clicks(tmp_path, planted.log())
    schema, out = schema_of(log), tmp_path / "run"
    words = ("run", "--method", "pretrain", *RUN, "--schema", schema, "--out", out)
    assert call(*words) == 0
    assert call(*words, "--resume") == 0
    schema.write_text(re.sub("(?m)^skew = .*$", 'skew = "1s"', schema.read_text()))
    assert call(*words, "--resume") == 2
    assert "fingerprint" in capsys.readouterr().err


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [2_000, 60_000])
def test_a_log_bigger_than_memory_is_the_same(
    shape: str, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = SHAPES[shape](tmp_path, planted.log(clicks=600))
    dataset = dataset_of("logs", [f"schema={schema_of(log)}", "max_bad=0.2"])
    expected, encoder = dataset.prepare(None)
    monkeypatch.setattr(files, "_BATCH", 100)
    monkeypatch.setattr(external_sort, "_SLICE", 50)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    table, its_encoder = dataset.prepare(None, Scratch(tmp_path, budget=budget))
    assert same(table, expected)
    assert np.array_equal(table.refund_ts, expected.refund_ts)  # type: ignore[arg-type]
    assert its_encoder == encoder


def test_clicks_and_sales_in_files_of_their_own(tmp_path: Path) -> None:
    """Files with different columns, and another unit of time in each."""
    rng = np.random.default_rng(1)
    n = 2000
    at = planted.ORIGIN + np.sort(rng.integers(0, 40 * DAY, n))
    bought = rng.random(n) < 0.3
    clicks = pl.DataFrame({"click_id": np.arange(n) + 7, "clicked": at, "site": rng.integers(0, 9, n)})
    sales = pl.DataFrame({"click_id": np.arange(n)[bought] + 7, "sold": (at[bought] + HOUR) * 1000, "eur": 1.5})
    clicks.write_csv(tmp_path / "clicks.csv")
    sales.write_parquet(tmp_path / "purchases.parquet")
    inspection = inspect_files([str(tmp_path / "clicks.csv"), str(tmp_path / "purchases.parquet")], tmp_path)
    (tmp_path / "schema.toml").write_text(inspection.toml)
    table, _ = Logs(schema=str(tmp_path / "schema.toml")).prepare(None)
    assert table.counts["clicks"] == n
    assert int((table.action_ts[:, 0] - table.click_ts == HOUR).sum()) == bought.sum()
    assert sorted(table.click_id) == list(range(7, n + 7))  # whole ids are kept
    assert [f.name for f in table.schema.features] == ["site"]


def test_files_of_a_folder_are_one_log(tmp_path: Path) -> None:
    log, expected = planted.write_clicks(tmp_path, planted.log())
    header, *lines = log.read_text().splitlines(keepends=True)
    parts = tmp_path / "parts"
    parts.mkdir()
    for i in range(3):
        (parts / f"{i}.csv").write_text(header + "".join(lines[i::3]))
    schema = schema_of(log)
    dataset = Logs(schema=str(schema))
    whole, _ = dataset.prepare(None)
    for source in (parts, parts / "*.csv"):
        table, _ = dataset.prepare(source)
        assert table.counts["rows"] == whole.counts["rows"] == expected["rows"]
        assert np.array_equal(np.sort(table.click_ts), np.sort(whole.click_ts))
    assert len(dataset.files(parts)) == 4


def test_negatives_that_were_left_out_are_counted_in(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fifth of the negatives in the file, a line in the schema: the rate that is served is that of all clicks."""
    rng = np.random.default_rng(2)
    n = 30_000
    at, site = planted.ORIGIN + np.sort(rng.integers(0, 30 * DAY, n)), rng.integers(0, 4, n)
    bought = rng.random(n) < 0.04 * (1 + site)
    kept = bought | (rng.random(n) < 0.2)
    frame = pl.DataFrame({"click_ts": at, "site": site, "sale_ts": np.where(bought, at + HOUR, 0)}).filter(kept)
    frame.write_parquet(tmp_path / "log.parquet")
    text = inspect_files([str(tmp_path / "log.parquet")], tmp_path).toml
    assert 'absent = "0"' in text
    schema = tmp_path / "schema.toml"
    schema.write_text(text.replace("negatives_kept = 1.0 ", "negatives_kept = 0.2 "))
    settings = ("interval=1d", "hidden=8", "batch_size=64", "learning_rate=0.01")
    given = [word for setting in settings for word in ("--set", setting)]
    words = ("run", "--method", "wait", "--data", "logs", "--schema", schema, "--threads", "1")
    assert call(*words, *given, "--out", tmp_path / "run") == 0
    assert "20% of the clicks without a conversion" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["pooled"]["pcoc"] == pytest.approx(1, abs=0.1)
    scores = pl.read_parquet(tmp_path / "run" / "scores.parquet")
    p = 1 / (1 + np.exp(-scores["log_odds"].to_numpy().astype(float)))
    mean = np.average(p, weights=scores["weight"].to_numpy())
    assert mean == pytest.approx(bought.mean(), rel=0.1)  # of all clicks, those that are not in the file included


def test_defects_can_be_refused(made: tuple[Path, Counter[str]]) -> None:
    schema, planted = schema_of(made[0]), made[1]
    with pytest.raises(UserError, match=rf"{planted['dropped_duplicate_click']} duplicate_click.*max_bad = 0"):
        Logs(schema=str(schema), max_bad=0.0).prepare(None)


def test_clocks_may_differ_by_as_much_as_the_schema_says(made: tuple[Path, Counter[str]]) -> None:
    log, expected = made
    schema = schema_of(log)
    plain, _ = Logs(schema=str(schema), max_bad=0.1).prepare(None)
    schema.write_text(re.sub("(?m)^skew = .*$", 'skew = "0s"', schema.read_text()))
    skewed, _ = Logs(schema=str(schema), max_bad=0.1).prepare(None)
    assert len(skewed) == len(plain) - expected["clock_skew"]
    assert int(skewed.label.sum()) == int(plain.label.sum()) - expected["clock_skew"]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.sampled_from([None, 1, 2])), max_size=6), st.data()
)
def test_a_conversion_stands_while_more_was_bought_than_taken_back(
    bought: list[tuple[str, int, int | None]], data: st.DataObject
) -> None:
    """Against a sum second by second. A conversion of unknown amount is worth next to nothing, a refund of unknown
    amount takes back everything."""
    first = {key: min(t for k, t, _ in bought if k == key) for key, _, _ in bought}
    amounts = st.sampled_from([None, 0.5, 1, 2, 3])
    refunds = [
        (key, data.draw(st.integers(first[key], 14)), data.draw(amounts))
        for key in data.draw(st.lists(st.sampled_from(sorted(first)), max_size=5) if first else st.just([]))
    ]
    expected = {}
    for key in first:
        standing, stood, turns = 0.0, True, []
        for t in range(15):
            now = [n for k, at, n in refunds if (k, at) == (key, t)]
            plus = [0.001 if n is None else n for k, at, n in bought if (k, at) == (key, t)]
            if not now and not plus:
                continue
            standing = max(0.0, standing + sum(plus) - (1e9 if None in now else sum(n or 0 for n in now)))
            if (standing > 1e-6) != stood:
                stood = not stood
                turns.append(t)
        if turns and any(k == key for k, _, _ in refunds):
            expected[key] = [*turns, None, None, None][:3]
    columns = {"_id": pl.String, "_ts": pl.Int64, "_amount": pl.Float64}
    steps = _steps(*(pl.DataFrame(rows, columns, orient="row") for rows in (bought, refunds)))
    assert {key: turns for key, *turns in _turns(steps).rows()} == expected


def test_columns_that_know_the_label_are_named() -> None:
    rng = np.random.default_rng(0)
    label = pl.Series(rng.random(2000) < 0.2)
    noise = pl.Series(rng.random(2000))
    assert leak(noise, label) is None
    assert leak(pl.Series(rng.integers(0, 50, 2000)).cast(pl.String), label) is None
    assert "being there" in str(leak(noise.set(~label, None), label))
    assert "its size" in str(leak(noise + 2 * label.cast(pl.Float64), label))
    words = pl.DataFrame({"y": label}).select(pl.when("y").then(pl.lit("paid")).otherwise(pl.lit("open"))).to_series()
    assert "its categories" in str(leak(words, label))


def test_a_table_is_saved_with_the_options_in_force(tmp_path: Path) -> None:
    log, _ = planted.write_events(tmp_path, planted.log())
    dataset = dataset_of("logs", [f"schema={schema_of(log)}", "max_bad=0.1", "split=50d"])
    prepared.prepare_to(tmp_path / "table", dataset, None)
    options = json.loads((tmp_path / "table" / "table.json").read_text())["options"]
    assert (options["split"], options["d_max"], options["max_bad"]) == (50 * DAY, 3 * DAY, 0.1)
