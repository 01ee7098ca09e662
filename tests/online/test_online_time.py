"""Time of the live log: declared units, dates too far ahead, runs of empty intervals."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from conftest import Call
from hypothesis import given
from hypothesis import strategies as st

import planted
from livestore import OPTIONS, SMALL, Made, finish, learnt, send, the_events
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.online.learner.learner import begin, ledger_of
from tracecvr.online.log import event_log
from tracecvr.online.log.event_log import AHEAD, CONTRADICTION, SOON, EventLog
from tracecvr.online.log.events import Event
from tracecvr.online.log.times import AskedTimes, Grid, Times, unix_time
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import verify_log, write_table

NOW = 1_800_000_000
GRID = Grid(split=100, interval=10, lateness=5, d_max=30)
CALENDAR = replace(GRID, origin=NOW - 1000)
OWN = replace(GRID, advance=50)


def click(number: int, ts: int, body: str = "[]") -> Event:
    return Event(f"c{number}", 0, number, ts, None, body, 0.5, 3)


@contextmanager
def fresh_log(grid: Grid, now: int = NOW) -> Iterator[EventLog]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as room:
        log = EventLog(Path(room) / "events.db", grid, lambda: now)
        yield log
        log.close()


# Units.


MOMENTS = st.integers(631_152_000, 4_102_444_799)


@given(MOMENTS, st.integers(-14 * 60, 14 * 60), st.integers(0, 999_999))
def test_all_units_mean_the_same_moment(unix: int, offset: int, micro: int) -> None:
    origin = 631_152_000
    moment = datetime.fromtimestamp(unix, UTC).replace(microsecond=micro)
    local = moment.astimezone(timezone(timedelta(minutes=offset)))
    seconds = unix - origin
    assert Times("log", origin).read(seconds) == seconds
    assert Times("unix", origin).read(unix) == seconds
    assert Times("unix", origin).read(unix + 0.5) == seconds
    assert Times("unix-ms", origin).read(unix * 1000 + micro // 1000) == seconds
    for unit in ("log", "unix", "unix-ms", "iso"):
        times = Times(unit, origin)
        assert times.read(local.isoformat()) == seconds, "text means one moment, whatever numbers mean"
        assert times.read(times.show(seconds)) == seconds


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers(), max_size=2)
)


@given(ANYTHING, st.sampled_from(["log", "unix", "unix-ms", "iso"]), st.sampled_from([None, 0, NOW]))
def test_whatever_is_sent_as_a_time_is_read_or_refused_in_one_line(ts: object, unit: str, origin: int | None) -> None:
    seconds, message = 0, "refused"
    try:
        seconds = Times(unit if origin is not None else "log", origin).read(ts)
    except UserError as error:
        message = str(error)
    assert len(message) < 400
    assert len(message.splitlines()) == 1
    assert 0 <= seconds < 1 << 53


@pytest.mark.parametrize(
    ("unit", "ts", "message"),
    [
        ("unix", NOW * 1000, "expected Unix seconds, and that is before 1990 or after 2100; is it in another unit"),
        ("unix-ms", NOW, "expected Unix milliseconds, and that is before 1990"),
        ("unix", NOW - 1001, "before the log's origin, 2027-01-15T07:43:20Z"),
        ("iso", NOW, "expected ISO 8601 text with a zone, such as 2026-01-31T12:00:00Z"),
        ("log", 1.5, "expected whole seconds since the log's origin, or ISO 8601"),
        ("unix", "2027-01-15T08:00:00", "it has no zone; add one"),
        ("unix", math.inf, "expected Unix seconds"),
        ("unix", True, "expected Unix seconds"),
        pytest.param("unix", 10**5000, "a number of more than 64 bits", id="huge"),
        ("unix", "x" * 500, "..."),
    ],
)
def test_a_time_that_cannot_be_is_told_what_was_expected(unit: str, ts: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        Times(unit, NOW - 1000).read(ts)
    assert message in str(error.value)


def test_text_needs_an_origin_that_is_known() -> None:
    with pytest.raises(UserError, match=r"expected whole seconds since the log's origin$"):
        Times().read("2027-01-15T08:00:00Z")


# What is dated too far ahead.

HONEST = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 800)), min_size=1, max_size=40)
FLOOD = st.lists(st.tuples(st.integers(0, 60), st.integers(1061, 1 << 40)), max_size=40)


def contents(log: EventLog) -> dict[str, Any]:
    """All that a learner reads of a log, and what is counted of it."""
    counted = ("watermark", "clicks", "actions", "late", "out_of_window")
    known = [row for number in range(100) for row in log.between(*log.grid.bounds(number))]
    rows = [(row.kind, row.click, row.ts, row.seen, row.body) for row in known]
    return {"closed": log.closed(), "rows": rows} | {name: log.facts().get(name, 0) for name in counted}


@given(HONEST, FLOOD, st.sampled_from([CALENDAR, OWN]), st.randoms(use_true_random=False))
def test_a_flood_of_future_dates_changes_nothing(honest: Any, flood: Any, grid: Grid, dice: Any) -> None:
    """With ids of honest clicks, too: the corrected one counts, whichever comes first."""
    times = dict(honest)
    if grid is OWN:  # the log's own progress: nothing honest is more than 50 s after the newest
        reached = 100
        for number, ts in times.items():
            times[number] = min(ts, reached + 50)
            reached = max(reached, times[number])
        flood = [(number, ts) for number, ts in flood if ts > reached + 100]
    batches = [[click(number, ts)] for number, ts in times.items()]
    with fresh_log(grid) as plain, fresh_log(grid) as flooded:
        for batch in batches:
            plain.append(batch)
        left = [click(number, ts, "[1]") for number, ts in flood]
        for batch in batches:
            n = dice.randint(0, len(left))
            receipt = flooded.append([*left[:n], *batch])
            assert (receipt.accepted, receipt.counts["future"] + receipt.counts["conflicts"]) == (1, n)
            assert receipt.duplicates == receipt.counts["conflicts"]
            del left[:n]
        if left:
            assert flooded.append(left).accepted == 0
        assert contents(flooded) == contents(plain)
        assert not {e.name for e in flooded.aside(AHEAD, SOON)} & {f"c{number}" for number in times}


def test_a_log_with_its_own_time_goes_no_further_than_its_events_bear_out(tmp_path: Path) -> None:
    now = NOW
    log = EventLog(tmp_path / "events.db", OWN, lambda: now)
    assert log.append([click(1, 150), click(2, 151)]).counts["future"] == 0  # each bears the next out
    assert log.append([click(3, 202)]).counts["future"] == 1
    assert log.closed() == 4
    assert log.append([click(4, 240), click(5, 190)]).accepted == 2
    assert log.append([click(3, 202)]).accepted == 1, "once the log has come so far, it is believed"
    assert [e.name for e in log.aside()] == []
    now += 500  # a pause of the traffic is no jump
    assert log.append([click(6, 790)]).accepted == 1
    now -= 400  # a clock that was wrong
    assert log.append([click(7, 841)]).counts["future"] == 1
    assert log.append([click(7, 840)]).accepted == 1
    now += 1
    assert log.append([click(8, 891)]).accepted == 1


def test_a_wrong_click_that_is_sent_again_with_the_right_date_counts(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.db", CALENDAR, lambda: NOW)
    assert log.append([click(1, 9_000)]).counts["future"] == 1
    assert log.append([click(1, 9_001)]).counts["future"] == 1
    assert [e.ts for e in log.aside()] == [9_001], "one of each id is kept, the last one"
    again = log.append([click(1, 500)])
    assert (again.accepted, again.duplicates) == (1, 0)
    assert log.aside() == []
    assert log.before(NEVER)[0].ts == 500
    late = log.append([click(1, 9_000), click(1, 500)])
    assert (late.duplicates, late.counts["conflicts"], late.counts["future"]) == (2, 1, 0), "what is there is there"
    assert late.answers == {"c1": (0.5, 3, None)}


def test_what_is_set_aside_is_accepted_when_somebody_says_so_with_the_score_that_it_was_answered(
    tmp_path: Path,
) -> None:
    log = EventLog(tmp_path / "events.db", CALENDAR, lambda: NOW)
    log.append([click(1, 500), click(2, 5_000), click(3, 9_000)])
    assert log.accept_ahead().accepted == 0
    assert log.accept_ahead(5_000).accepted == 1
    assert (log.closed(), log.before(NEVER)[1].score) == (489, 0.5)
    assert log.append([click(4, 1_061)]).counts["future"] == 1, "the clock is believed as before"
    assert log.drop_aside() == 2
    assert log.aside() == []


def test_what_is_set_aside_is_bounded_and_the_oldest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MOST_ASIDE", 3)
    log = EventLog(tmp_path / "events.db", CALENDAR, lambda: NOW)
    log.append([click(0, 500)])
    receipt = log.append([click(n, 9_000 + n) for n in range(1, 6)])
    assert (receipt.counts["future"], receipt.counts["not_kept"]) == (5, 2)
    assert log.append([click(2, 9_999)]).counts["not_kept"] == 0  # it was there
    assert sorted(e.name for e in log.aside()) == ["c1", "c2", "c3"]
    log.append([click(n, 600) for n in range(10, 15)])
    receipt = log.append([click(n, 601) for n in range(10, 15)])
    assert (receipt.duplicates, receipt.counts["conflicts"], receipt.counts["not_kept"]) == (5, 5, 2)
    assert len(log.aside(CONTRADICTION)) == 3
    assert log.facts()["not_kept"] == 4


def test_an_erased_user_is_not_among_what_is_set_aside(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.db", CALENDAR, lambda: NOW)
    theirs = Event("c1", 0, 1, 9_000, "somebody", "[]")
    log.append([theirs, Event("a1:1:9001", 1, 1, 9_001, None, None), click(2, 9_000)])
    log.erase("somebody")
    assert [e.name for e in log.aside()] == ["c2"]


# A store.


@pytest.fixture
def calendar(base: Path, tmp_path: Path) -> Store:
    """A store whose stream began seven days ago, by the clock of this machine."""
    times = AskedTimes("unix", int(time.time()) - 8 * DAY)
    return Store.create(
        tmp_path / "calendar",
        base,
        registry.get("method", "vanilla")(**SMALL),
        (),
        Settings(lateness=HOUR),
        times=times,
    )


def in_unix(store: Store, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event | {"ts": store.times.show(event["ts"])} for event in events]


def test_under_a_flood_of_future_dates_it_learns_as_if_they_had_not_been_sent(calendar: Store, made: Made) -> None:
    plain, events = made("vanilla"), the_events()[:1200]
    send(plain, events)
    now, clicks = int(time.time()), [e for e in events if e["type"] == "click"]
    wrong = [c | {"ts": now + 100_000 + n**3} for n, c in enumerate(clicks)]
    for first in range(0, len(events), 100):
        send(calendar, wrong[first : first + 100])
        send(calendar, in_unix(calendar, events[first : first + 100]))
    assert calendar.log().facts()["future"] == len(wrong)
    assert learnt(calendar) == learnt(plain)
    assert verify_log(calendar).same


def test_a_store_says_how_it_reads_times(made: Made, calendar: Store, base: Path, tmp_path: Path) -> None:
    own = made("vanilla")
    assert own.times.unit == "log"
    assert own.times.origin is not None
    assert abs(own.times.origin + own.grid.split - time.time()) < 60, "its stream starts when it is made"
    assert (own.grid.advance, calendar.grid.advance) == (DAY, None)
    facts = calendar.times.facts(calendar.grid.split)
    assert facts["unit"] == "unix"
    assert unix_time(facts["origin"], "origin") == facts["origin_unix"] == calendar.times.origin
    assert calendar.reader.times.read(facts["example"]["ts"]) == calendar.grid.split
    manifest = json.loads((base / "table.json").read_text())
    assert "origin" not in manifest, "a synthetic log has no calendar"
    assert AskedTimes().settle(NOW, 5) == Times("unix", NOW)
    assert AskedTimes("log").settle(NOW, 5) == Times("log", NOW)
    assert AskedTimes(origin=7).settle(NOW, 5) == Times("unix", 7)
    assert AskedTimes().settle(None, None) == Times(), "a log of its own time"
    with pytest.raises(UserError, match="--time unix: the log does not say when its second 0 is"):
        AskedTimes("unix").settle(None, None)


# Runs of empty intervals.


def test_half_a_million_empty_intervals_cost_next_to_nothing(made: Made, tmp_path: Path) -> None:
    store = made("trace")
    send(store, the_events())
    finish(store)
    before, _ = learnt(store)
    since = time.process_time()  # other processes may keep the machine busy
    assert store.log().close_until(store.grid.bounds(500_000)[0]) == 500_000
    closing = time.process_time() - since
    weights, done = learnt(store)
    learning = time.process_time() - since - closing
    assert done == 500_000
    assert closing < 1
    assert learning < 20
    assert weights != before, "labels became final meanwhile"
    assert len(write_table(store, tmp_path / "table")) == len(store.base)
    late = store.grid.bounds(500_002)[0]
    clicks = [e | {"click_id": 10**9 + n, "ts": late} for n, e in enumerate(the_events()[:9]) if e["type"] == "click"]
    store.log().append([store.reader.read(e) for e in clicks])
    store.log().close_until(late + DAY)
    learnt(store)
    assert verify_log(store).same


@pytest.mark.parametrize("method", ["trace", "ulc", "miss"])
def test_passing_over_empty_intervals_gives_the_bytes_of_learning_each(method: str, made: Made) -> None:
    """With a gap in the middle: of methods that log what they served, and that train helpers again."""
    store, gap = made(method, Settings(lateness=HOUR, hold_on_outage=False)), 60 * DAY
    half = [e for e in the_events() if e["ts"] < 5 * DAY]
    other = [e | {"click_id": -1 - e["click_id"], "ts": e["ts"] + gap} for e in half]
    send(store, half)
    store.log().close_until(4 * DAY + gap - HOUR)
    send(store, other)
    weights, intervals = learnt(store)
    assert intervals > 480
    engine = store.engine()
    ledger = ledger_of(store, engine)
    begin(engine, ledger, store)
    for number in range(intervals):
        ledger.advance()
        engine.tick(ledger, *store.grid.bounds(number))
    assert engine.fingerprint() == weights
    assert len(Versions(store.folder, 10**6).manifests()) < 100


# The command line.


def test_set_aside_and_accepted_by_the_command_line(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [w for k, v in OPTIONS.items() for w in ("--data-set", f"{k}={v}")]
    assert call("prepare", "synthetic", *data, "--out", tmp_path / "table") == 0
    capsys.readouterr()
    store, events = tmp_path / "store", tmp_path / "events.jsonl"
    words = (
        "--method",
        "vanilla",
        "--set",
        "hidden=16,8",
        "--set",
        "warm_epochs=1",
        "--set",
        "warm_batch_size=256",
        "--time",
        "unix-ms",
        "--origin",
        "2024-01-01T00:00:00Z",
    )
    assert call("init", store, "--source", tmp_path / "table", *words) == 0
    assert "its stream starts at 259200 s, 2024-01-04T00:00:00Z" in (said := capsys.readouterr().out)
    assert "ts is Unix milliseconds, or ISO 8601 text with a zone; for example 1704326400000" in said
    origin = unix_time("2024-01-01T00:00:00Z", "")
    some = [e | {"ts": 1000 * (e["ts"] + origin)} for e in the_events()[:300]]
    wrong = next(e for e in some if e["type"] == "click") | {"click_id": 7, "ts": "2090-01-01T00:00:00Z"}
    events.write_text("".join(json.dumps(e) + "\n" for e in [*some, wrong]))
    assert call("ingest", store, events) == 0
    printed = capsys.readouterr()
    assert "accepted: 300" in printed.out
    assert "future: 1" in printed.out
    assert "set aside: 1 events are dated later than 20" in printed.err
    assert call("aside", "list", store) == 0
    assert "name: c7, reason: dated too far ahead, ts: 3786912000000, time: 2090-01" in capsys.readouterr().out
    assert call("aside", "accept", store) == 0
    assert "accepted: 0, duplicates: 0, left: 1" in capsys.readouterr().out
    assert call("status", store) == 0
    assert "time.origin: 2024-01-01T00:00:00Z" in capsys.readouterr().out
    assert call("aside", "accept", store, "--to", "2090-01-01T00:00:00Z") == 0
    assert "accepted: 1, duplicates: 0, left: 0" in capsys.readouterr().out
    assert call("aside", "drop", store) == 0
    assert "dropped: 0" in capsys.readouterr().out
    assert call("tick", store, "--to", "2091-01-01T00:00:00Z") == 2
    assert "that time is in the future" in " ".join(capsys.readouterr().err.split())
    assert call("tick", store, "--to", "2024-01-05T00:00:00Z") == 0
    assert call("tick", store, "--to", "yesterday") == 2
    assert "--to: 'yesterday': expected ISO 8601 text" in " ".join(capsys.readouterr().err.split())


def test_a_log_with_a_calendar_is_fed_live_with_real_times(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.write_clicks(tmp_path, planted.log(800))
    monkeypatch.chdir(tmp_path)
    assert call("inspect", "clicks.csv", "--zone", "Europe/Berlin", "--out", "schema.toml") == 0
    assert call("prepare", "logs", "--schema", "schema.toml", "--out", "table") == 0
    words = (
        "--source",
        "table",
        "--method",
        "vanilla",
        "--set",
        "hidden=16,8",
        "--set",
        "warm_epochs=1",
        "--set",
        "warm_batch_size=256",
    )
    capsys.readouterr()
    assert call("init", "store", *words) == 0
    store = Store.open(tmp_path / "store")
    origin = json.loads(Path("table/table.json").read_text())["origin"]
    assert store.times == Times("unix", origin)
    assert "ts is Unix seconds, or ISO 8601 text with a zone" in capsys.readouterr().out
    assert call("events", "--source", "table") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(event["ts"].endswith("Z") for event in events)
    assert store.reader.read(events[0]).ts >= store.grid.split
    Path("events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert call("ingest", "store", "events.jsonl") == 0
    assert "future" not in capsys.readouterr().out
