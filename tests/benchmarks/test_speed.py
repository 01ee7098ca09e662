"""The benchmark of speed: its smoke, and that its figures are counted right and can fail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import speed
from measure import child, figures, methods, paper, report
from measure.profile import REST, Watch
from tracecvr.learn.engine import Engine
from tracecvr.methods.trace import Trace
from tracecvr.stream.source import TableSource

SCRIPT = Path(speed.__file__)
FACTS = {"processor": "any", "cores": 2, "memory_gb": 8.0, "torch": "2", "threads": 1, "peak_gflops": 100.0}


def test_the_smoke_passes_and_has_every_figure(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path / "speed.json")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    content = json.loads((tmp_path / "speed.json").read_text())
    for name in ("update of 4,096", "score of 4,096", "overhead", "prepare criteo, 100 k rows: time"):
        (figure,) = [f for f in content["figures"] if f["name"].startswith(name)]
        assert 0 <= figure["value"] <= figure["limit"]
    assert content["machine"]["peak_gflops"] > 0


# What decides.


def run(monkeypatch: pytest.MonkeyPatch, out: Path, only: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(speed, "call", lambda *_, **__: FACTS)
    monkeypatch.setattr(sys, "argv", ["speed.py", "--quick", "--out", str(out), "--only", only])
    with pytest.raises(SystemExit) as leaving:
        speed.main()
    return int(leaving.value.code or 0), json.loads(out.read_text())


@pytest.mark.parametrize(("milliseconds", "code"), [(4.0, 0), (40.0, 1)])
def test_a_figure_over_its_limit_fails_the_command(
    milliseconds: float, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "call", lambda *_, **__: {"whole_s": [1.0], "overhead_s": [milliseconds / 1e3]})
    ended, content = run(monkeypatch, tmp_path / "runs" / "speed.json", "overhead")
    assert ended == code
    assert content["passed"] == (code == 0)
    assert ("FAIL" in capsys.readouterr().out) == (code == 1)


def test_a_part_that_breaks_costs_its_own_figures_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(module: str, function: str, **_: object) -> dict[str, list[float]]:
        if function == "updates":
            raise child.ChildError("out of memory")
        return {"whole_s": [0.002], "overhead_s": [0.001]}

    monkeypatch.setattr(figures, "call", call)
    ended, content = run(monkeypatch, tmp_path / "speed.json", "update,overhead")
    assert ended == 1
    passed = {f["name"]: f["passed"] for f in content["figures"] if f["target"] is not None or f["name"] == "update"}
    assert passed == {"update": False, "overhead of an interval": True}
    assert "out of memory" in capsys.readouterr().out


@pytest.fixture
def bench(tmp_path: Path) -> figures.Bench:
    return figures.Bench(figures.DEFAULT, 1, tmp_path, tmp_path)


def test_an_update_is_held_against_its_arithmetic_at_the_best_rate(
    bench: figures.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = {"peak_flops": [50e9, 100e9], "update_s": [0.3, 0.1], "score_s": [0.02, 0.014]}
    monkeypatch.setattr(figures, "call", lambda *_, **__: samples | {"update_flop": 5e9, "score_flop": 1e9})
    update, score = figures.update(bench)
    assert [update.value, score.value] == pytest.approx([2.0, 1.4])
    assert [update.passed, score.passed] == [False, True]


def test_telescoped_is_held_against_the_run_of_trace(bench: figures.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: figures.Bench, rows: int, method: str = "trace") -> tuple[child.Ended, dict[str, Any], float]:
        stream, events = (50.0, 3) if method == "telescoped" else (100.0, 6)
        cost = {"prepare_s": 5.0, "warm_up_s": 45.0, "stream_s": stream, "clicks": rows, "reveals": events * rows}
        return child.Ended(150.0, 150.0, 1.0, ""), cost, 180e9

    monkeypatch.setattr(figures, "_run", run)
    whole, stream = (figure for figure in figures.whole_run(bench) if figure.name.startswith("Telescoped / TRACE"))
    assert (whole.value, stream.value) == pytest.approx((100 / 150, 0.5))
    assert whole.passed
    assert whole.limit == pytest.approx(110 / 149)
    assert stream.limit == pytest.approx(2 / 3)
    assert stream.how == "3.0 events per click against 6.0"


def test_targets_between_those_that_are_given() -> None:
    assert figures.scaled_s(16_000_000) == 90
    assert figures.scaled_gb(2_000_000) == pytest.approx(1.2)
    assert figures.scaled_gb(16_000_000) == pytest.approx(4.0)


def test_more_arithmetic_may_take_longer_and_less_may_not() -> None:
    assert report.excess({"time_ratio": 3.0, "flop_ratio": 2.0}) == pytest.approx(1.5)
    assert report.excess({"time_ratio": 1.1, "flop_ratio": 0.5}) == pytest.approx(1.1)
    assert report.excess({"method": "pretrain"}) is None


def test_every_method_is_compared_and_the_slowest_is_named(
    bench: figures.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(module: str, function: str, **given: Any) -> Any:
        if function == "names":
            return methods.names()
        row = {"method": given["method"], "events_per_click": 1.0, "peak_gb": 0.5}
        if given["method"] == "pretrain":  # learns from no event
            return row
        return row | {"time_ratio": 2.0 if given["method"] == "gdfm" else 1.0, "flop_ratio": 1.0, "events_per_s": 1e5}

    monkeypatch.setattr(figures, "call", call)
    (figure,) = figures.every_method(bench)
    assert "gdfm" in figure.how
    assert not figure.passed
    assert [row["method"] for row in bench.methods] == methods.names()
    kept = {"size": "default", "date": "today", "machine": FACTS, "figures": [figure.to_json()]}
    lines = report.markdown(kept | {"methods": bench.methods, "profile": {"forward": 0.25}}).splitlines()
    assert sum(line.startswith("| slowest method") and "FAIL" in line for line in lines) == 1
    assert "| gdfm | 1.00 | 100,000 | 2.00 x | 1.00 x | 2.00 x | 0.50 GB |" in lines
    assert "| pretrain | 1.00 | - | - | - | - | 0.50 GB |" in lines
    assert lines[-1] == "| forward | 25.0% |"


# What is measured.


def test_the_arithmetic_is_that_of_the_nets() -> None:
    schema = paper.dense(1, 10).schema
    engine = Engine(Trace(), schema)
    assert paper.trained(schema) == 168_064 == matrix_cells(engine.method.nets["main"])
    assert paper.completer(schema) == 89_728 == matrix_cells(engine.plugins[0].nets["completer"])


def matrix_cells(net: nn.Module) -> int:
    """Each cell of a layer's matrix is multiplied once per example."""
    return sum(m.weight.numel() for m in net.modules() if isinstance(m, nn.Linear))


def test_a_steady_hour_has_six_events_per_click_of_the_stream() -> None:
    table = paper.dense(paper.STEADY + 1, 1_000)
    source, schedule = TableSource(table), Engine(Trace(), table.schema).schedule
    start = table.schema.split + paper.STEADY * 3600
    events = source.reveals(schedule, start, start + 3600)
    assert 5_700 < len(events) < 6_300
    assert events.row.min() >= np.searchsorted(table.click_ts, table.schema.split)


def test_a_sparse_hour_has_one_click_and_six_events() -> None:
    table = paper.sparse(paper.STEADY + 3, 1_000)
    source, schedule = TableSource(table), Engine(Trace(), table.schema).schedule
    first = table.schema.split + paper.STEADY * 3600
    for start in range(first, first + 3 * 3600, 3600):
        assert len(source.clicks(start, start + 3600)) == 1
        assert len(source.reveals(schedule, start, start + 3600)) == 6


def test_time_is_charged_to_the_innermost() -> None:
    watch = Watch()
    inner = watch.watched("inner", time.sleep)

    def both() -> None:
        time.sleep(0.01)
        inner(0.02)

    start = time.perf_counter()
    watch.watched("outer", both)()
    watch.charge()
    assert set(watch.spent) == {REST, "outer", "inner"}
    assert watch.spent["inner"] >= 0.02
    assert watch.spent["outer"] >= 0.01
    assert sum(watch.spent.values()) == pytest.approx(time.perf_counter() - start, abs=0.005)


def test_a_child_tells_its_own_peak_memory() -> None:
    # Asked of a light process: the kernel counts the peak of whoever starts a child to the child as well, so speed.py
    # has to be light, too.
    code = """if True:
        import sys, speed
        from measure.child import Child
        assert not {"torch", "polars", "numpy"} & set(sys.modules)
        print(*(Child("", [sys.executable, "-c", f"b'x' * {n}"]).wait().peak_gb for n in (1, 300_000_000)))
    """
    words = [sys.executable, "-c", code]
    ended = subprocess.run(words, cwd=SCRIPT.parent, capture_output=True, text=True, check=True)
    small, large = map(float, ended.stdout.split())
    assert large - small == pytest.approx(0.3, abs=0.03)


def test_a_child_tells_what_went_wrong() -> None:
    broken = child.Child("stage", [sys.executable, "-c", "raise SystemExit('the disk is full')"])
    with pytest.raises(child.ChildError, match=r"^stage: the disk is full$"):
        child.together([broken])
