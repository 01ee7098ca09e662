"""Progress as lines and as bars: rate and time left, rarely enough to cost nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from conftest import Call
from rich.console import Console

from tracecvr.base import progress_display
from tracecvr.base.progress_display import Display
from tracecvr.data import raw_csv


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def to(seconds: float) -> None:
        now[0] = 100.0 + seconds

    return to


def test_a_line_now_and_then_has_the_rate_and_the_time_left(clock: Callable[[float], None]) -> None:
    text = StringIO()
    with Display(Console(file=text, width=200), "trace · ") as show:
        for second in range(36):
            clock(second)
            show("read", 100_000 * second, 10_000_000)
        show("read", 10_000_000, 10_000_000)
    assert text.getvalue().splitlines() == [
        "trace · read: 1,000,000 of 10,000,000 (100,000/s, 0:01:30 left)",
        "trace · read: 2,000,000 of 10,000,000 (100,000/s, 0:01:20 left)",
        "trace · read: 3,000,000 of 10,000,000 (100,000/s, 0:01:10 left)",
    ]


def test_a_stage_that_stands_still_has_no_time_left(clock: Callable[[float], None]) -> None:
    text = StringIO()
    with Display(Console(file=text, width=200)) as show:
        show("group", 0, 9)
        clock(60)
        show("group", 0, 9)
    assert text.getvalue() == "group: 0 of 9 (0/s)\n"


def test_a_terminal_has_one_bar_per_stage(clock: Callable[[float], None]) -> None:
    with Display(Console(file=StringIO(), force_terminal=True, width=100)) as show:
        for start, stage in ((0, "read"), (10, "write")):
            for done in range(1, 4):
                clock(start + done)
                show(stage, done, 3 + done)  # an estimate that grows
        bars = {task.description: (task.completed, task.total, task.fields["rate"]) for task in show.bars.tasks}
    assert bars == {"read": (3, 6, "1/s"), "write": (3, 6, "1/s")}


def test_prepare_shows_its_progress(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "_LINE_S", 0.0)
    monkeypatch.setattr(raw_csv, "_BATCH", 20)
    lines = "".join(f"{day * 86_400}\t" + "\t1" * 8 + "\ta" * 9 + "\n" for day in range(60))
    (tmp_path / "data.txt").write_text(lines)
    assert call("prepare", "criteo", "--source", tmp_path / "data.txt", "--out", tmp_path / "table") == 0
    printed = capsys.readouterr()
    assert "clicks: 60" in printed.out
    assert "/s" not in printed.out.replace(str(tmp_path), "")
    assert re.search(r"^read: \d+ of [56]\d \([\d,]+/s, 0:00:00 left\)$", printed.err, re.MULTILINE)
