"""Schemas, files and times of logs of one's own: what is wrong is said, where, and what to do about it."""

from __future__ import annotations

import gzip
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from conftest import Call
from hypothesis import given
from hypothesis import strategies as st

from own_logs import GOOD, logs
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.own_log import schema as schemas
from tracecvr.data.own_log.schema import Times
from tracecvr.data.own_log.times import origin_of, read

ROOT = Path(__file__).parents[2]
START = 1_767_225_600
"""1 January 2026."""


def log(folder: Path, unit: int = 1) -> Path:
    path = folder / "log.csv"
    rows = [
        f"{i},{(START + i * HOUR) * unit},{(START + i * HOUR + 60) * unit if i % 5 == 0 else ''},s{i % 3}\n"
        for i in range(400)
    ]
    path.write_text("id,at,bought,site\n" + "".join(rows))
    return path


def test_a_schema_by_hand(tmp_path: Path) -> None:
    log(tmp_path)
    table, _ = logs(tmp_path).prepare(None)
    assert len(table) == 400
    assert table.label.sum() == 80
    assert table.schema.horizons == (HOUR, DAY, 2 * DAY)
    assert table.schema.interval == HOUR
    assert table.click_ts[:2].tolist() == [0, HOUR]


@pytest.mark.parametrize(
    ("line", "changed", "message"),
    [
        ('shape = "clicks"', 'shap = "clicks"', r"unknown key 'shap' \(did you mean 'shape'\?\)"),
        ('shape = "clicks"', 'shape = "rows"', "choose one of clicks, events"),
        ('shape = "clicks"', "", "'shape' is '': choose one of clicks, events"),
        ('unit = "s"', 'units = "s"', r"\[time\]: unknown key 'units' \(did you mean 'unit'"),
        ('unit = "s"', 'unit = "ms"', r"log.csv: row 1, column 'at': '1767225600' in unit 'ms' is in the year 1970"),
        ('unit = "s"', 'unit = "text"', r"row 1, column 'at': '1767225600' is no time in unit 'text'"),
        ('unit = "s"', 'unit = "days"', "unit is 'days': choose one of s, ms, us, ns, text, datetime, dd/mm/yyyy"),
        ('unit = "s"', 'unit = "s"\nlatest = "soon"', r"\[time\] latest = 'soon': expected a date"),
        ('time = "bought"', 'time = "bought"\ndelay = "at"', "action 'purchase': both a time and a delay"),
        (
            'time = "bought"',
            'delay = "bought"\nunit = "text"',
            "unit is 'text': choose one of s, ms, us, ns, min",
        ),
        ('time = "bought"', 'delay = "site"', r"row 1, column 'site': 's0' is not a duration in 's'"),
        ('time = "bought"', 'time = "bought"\nlabel = "site"', r"row 1, column 'site': 's0' is not 0 or 1"),
        ('kind = "hashed", size = 8', 'kind = "vocabulary", size = 8', r"expected {kind = \"vocabulary\"}"),
        ('unit = "s"', 'unit = "s"\nzone = "Mars/Olympus"', "no such time zone"),
        ("origin = 2026-01-01", "origin = 2026-01-02", "earlier than .* origin"),
        ("origin = 2026-01-01", 'origin = "soon"', "expected a date"),
        ('time = "at"', 'time = "att"', r"column 'att' is missing \(did you mean 'at'\?\)"),
        ('time = "at"', "", r"\[click\] time: name the column"),
        ('time = "bought"', 'time = "sold"', "column 'sold' is missing"),
        ('time = "bought"', "", "give its name and its time"),
        ('name = "purchase"', 'name = "click_ts"', "names two columns"),
        ('d_max = "2d"', 'd_max = "soon"', "d_max: expected duration"),
        ('d_max = "2d"', 'd_max = "1h"', "horizons end at"),
        ('d_max = "2d"', "", "'d_max' is 0"),
        ('split = "5d"', 'split = "50d"', "leaves no stream: clicks run from 0"),
        ('split = "5d"', 'split = "0s"', "'split' is 0"),
        ('kind = "hashed"', 'kind = "hash"', r"\[features\] site: expected"),
        ("size = 8", "size = 0", "'size' is 0"),
        ("site = {", "place = {", "column 'place' is missing"),
        ('site = {kind = "hashed", size = 8}', "", "no features"),
        ("[[action]]", "[action]", r"written \[\[action\]\]"),
        ('files = ["log.csv"]', "", "no files: name them"),
        ('files = ["log.csv"]', 'files = ["other.csv"]', "other.csv: no such file"),
        ('files = ["log.csv"]', 'files = ["*.tsv"]', "no file fits this pattern"),
        ('files = ["log.csv"]', 'files = ["log.csv"]\nseparator = ", "', "give one character"),
        ('id = "id"', 'id = "site"', "more than max_bad"),
        ('id = "id"', 'id = "site"\nwhole_ids = true', "'s0' is no whole number"),
        ("[labels]", "[labels]\nnegatives_kept = 0", "'negatives_kept' is 0"),
        ("[labels]", "[defects]\nrefund = 'keep'\n[labels]", "unknown key 'refund'"),
        ("[labels]", "[labels", "not readable as TOML"),
    ],
)
def test_what_is_wrong_with_a_schema_is_said(tmp_path: Path, line: str, changed: str, message: str) -> None:
    log(tmp_path)
    assert line in GOOD
    with pytest.raises(UserError, match=message):
        logs(tmp_path, GOOD.replace(line, changed, 1)).prepare(None)


def test_ms_declared_as_s_is_refused(tmp_path: Path) -> None:
    log(tmp_path, 1000)
    with pytest.raises(UserError, match=r"'1767225600000' in unit 's' is in the year 57\d\d\d; correct \[time\] unit"):
        logs(tmp_path).prepare(None)
    assert len(logs(tmp_path, GOOD.replace('unit = "s"', 'unit = "ms"')).prepare(None)[0]) == 400


def test_logs_need_a_schema(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("prepare", "logs"), ("run", "--method", "pretrain", "--data", "logs")):
        assert call(*words, "--out", tmp_path / "out") == 2
        assert "give --schema FILE" in capsys.readouterr().err
    assert call("prepare", "logs", "--schema", tmp_path / "none.toml", "--out", tmp_path / "out") == 2
    assert "none.toml: no such file; check the path given as --schema" in capsys.readouterr().err
    assert call("prepare", "synthetic", "--schema", tmp_path / "none.toml", "--out", tmp_path / "out") == 2
    assert "unknown key 'schema'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "the file is empty"),
        ("header.csv", b"click_id,click_time\n", "no rows"),
        ("bytes.csv", bytes(range(256)) * 50, "neither Parquet nor text"),
        ("fake.parquet", b"click_id,click_time\n1,2\n", "not a Parquet file"),
        ("broken.parquet", b"PAR1" + bytes(100), "not readable as Parquet"),
        ("packed.csv", b"\x1f\x8b\x08 and so on", "packed.csv: not readable as text"),
        ("packed.csv", b"PK and so on", "is a zip archive"),
        ("empty.csv.gz", gzip.compress(b"", mtime=0), "the file is empty"),
        ("cut.csv.gz", gzip.compress(b"a,b\n" * 9999, mtime=0)[:40], "not readable as text"),
        ("words.csv", b"a,b\nx,y\nz,w\n", "no column looks like times"),
        ("latin.csv", b"click_id,click_time,caf\xe9\n1,2026-01-01,\xe9\n", ""),
    ],
)
def test_no_traceback_for_what_is_no_log(
    tmp_path: Path, name: str, content: bytes, message: str, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert call("inspect", tmp_path / name) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_no_traceback_for_what_is_not_there(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (("none.csv", "no such file"), ("*.csv", "no file fits"), ("", "no log in this folder")):
        assert call("inspect", tmp_path / name) == 2
        assert message in capsys.readouterr().err
    log(tmp_path)
    (tmp_path / "schema.toml").write_text("mine")
    assert call("inspect", tmp_path / "log.csv", "--out", tmp_path / "schema.toml") == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "schema.toml").read_text() == "mine"


moments = st.datetimes(datetime(1991, 1, 1), datetime(2098, 1, 1)).map(lambda t: t.replace(microsecond=0))
offsets = st.integers(-14 * 4, 14 * 4).map(lambda quarters: timedelta(minutes=15 * quarters))


@given(st.lists(st.tuples(moments, offsets, st.sampled_from("T "), st.booleans()), min_size=1, max_size=20))
def test_text_with_an_offset_is_read_as_python_reads_it(rows: list[tuple[datetime, timedelta, str, bool]]) -> None:
    texts, expected = [], []
    for moment, offset, mark, colon in rows:
        minutes = int(offset.total_seconds()) // 60
        sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
        texts.append(f"{moment.isoformat(mark)}{sign}{hours:02}{':' if colon else ''}{rest:02}")
        expected.append(int((moment - offset).replace(tzinfo=UTC).timestamp()))
    times = read(pl.Series(texts), Times(zone="Asia/Tokyo"), "text")
    assert times.seconds.to_list() == expected
    assert (times.naive, times.unreadable) == (0, None)


@given(
    st.lists(moments.filter(lambda t: t.year < 2037), min_size=1, max_size=30),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    st.booleans(),
)
def test_local_times_are_read_as_python_reads_them(local: list[datetime], zone: str, as_text: bool) -> None:
    """PEP 495: fold 0 is the earlier of two readings, and moves times that do not exist on by the gap."""
    values = pl.Series([t.isoformat() for t in local] if as_text else local)
    times = read(values, Times(zone=zone), "text")
    where = ZoneInfo(zone)
    first = [int(t.replace(tzinfo=where, fold=0).timestamp()) for t in local]
    second = [int(t.replace(tzinfo=where, fold=1).timestamp()) for t in local]
    twice = [a < b for a, b in zip(first, second, strict=True)]
    skipped = [a > b for a, b in zip(first, second, strict=True)]
    assert (times.naive, times.ambiguous, times.nonexistent) == (len(local), sum(twice), sum(skipped))
    assert times.seconds.to_list() == first


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_every_minute_around_a_change_of_the_clocks(zone: str) -> None:
    days = [
        datetime(2025, month, day)
        for month in (3, 4, 10, 11)
        for day in range(1, 32)
        if (month, day) not in ((4, 31), (11, 31))
    ]
    local = [day + timedelta(minutes=15 * i) for day in days for i in range(4 * 5)]
    times = read(pl.Series(local), Times(zone=zone), "text")
    where = ZoneInfo(zone)
    assert times.seconds.to_list() == [int(t.replace(tzinfo=where).timestamp()) for t in local]
    gap = 2 if zone == "Australia/Lord_Howe" else 4
    assert (times.ambiguous, times.nonexistent) == (gap, gap)


@given(
    st.lists(st.integers(-(10**9), 4 * 10**9), min_size=1, max_size=20),
    st.sampled_from([("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]),
    st.booleans(),
    st.integers(0, 999_999_999),
)
def test_numbers_are_rounded_down(seconds: list[int], unit: tuple[str, int], as_text: bool, remainder: int) -> None:
    name, scale = unit
    values = [s * scale + remainder % scale for s in seconds]
    times = read(pl.Series([str(v) for v in values] if as_text else values), Times(), name)
    assert times.seconds.to_list() == seconds


def test_what_means_nothing_is_no_time() -> None:
    times = Times(absent=("0", "-1", "NULL"))
    for values in (["0", "-1", "NULL", "", " ", None], [0, -1, None], [0.0, -1.0, float("nan"), None]):
        read_times = read(pl.Series(values), times, "s")
        assert read_times.seconds.null_count() == len(values)
        assert read_times.unreadable is None
    assert read(pl.Series(["5", "x"]), times, "s").unreadable == 1
    assert read(pl.Series([None, "2026-13-01"]), times, "text").unreadable == 1
    zoned = pl.Series([datetime(2026, 1, 1, tzinfo=UTC)]).dt.convert_time_zone("Asia/Tokyo")
    assert read(zoned, times, "datetime").seconds.to_list() == [START]
    assert origin_of(Times(origin="2026-01-01", zone="Asia/Tokyo")) == (START - 9 * HOUR, True)


def test_the_example_of_the_guide_is_a_schema(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "own_log.md").read_text().split("```toml")[1].split("```")[0]
    schema = schemas.parse(tmp_path / "s.toml", tomllib.loads(text))
    assert (schema.names, schema.labels.d_max, len(schema.features)) == (("purchase",), 7 * DAY, 3)
