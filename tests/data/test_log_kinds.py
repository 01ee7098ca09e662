"""Logs of kinds that people have: `inspect` proposes a schema that works as it stands, and counts what was planted."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from conftest import Call

import log_kinds
from alone import clean
from log_kinds import KINDS, START, Planted
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.data import scorer
from tracecvr.data.encoder import Binned, Hashed, Vocabulary, describe_column
from tracecvr.data.inspection.inspect_log import Inspection, inspect_files
from tracecvr.data.own_log import schema as schemas
from tracecvr.data.table import ClickTable
from tracecvr.datasets.logs import Logs


def inspected(log: Planted | Path, folder: Path) -> Inspection:
    """What `inspect` says of files; the schema is written."""
    files = (log,) if isinstance(log, Path) else log.files
    inspection = inspect_files([str(file) for file in files], folder)
    (folder / "schema.toml").write_text(inspection.toml)
    assert schemas.load(folder / "schema.toml") == inspection.schema, "what is written is what was proposed"
    return inspection


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_planted_is_counted(kind: str, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    planted = KINDS[kind](tmp_path)
    schema, table = tmp_path / "schema.toml", tmp_path / "table"
    assert call("inspect", *planted.files, "--out", schema) == 0
    shown = re.findall(r"(?m)^(\w+): ([\d,]+)$", capsys.readouterr().out)
    assert Counter({name: int(count.replace(",", "")) for name, count in shown}) == planted.counts
    assert call("prepare", "logs", "--schema", schema, "--out", table) == 0
    loaded = ClickTable.load(table)
    assert Counter(loaded.counts) == planted.counts
    assert loaded.schema.d_max == 2 * DAY
    assert 25 * DAY <= loaded.schema.split <= 35 * DAY
    kinds = [column.kind for column in schemas.load(schema).features]
    assert kinds == ["vocabulary", "vocabulary", "vocabulary", "binned"]


def test_purchases_and_refunds_of_one_file_are_told_apart(tmp_path: Path) -> None:
    """An exact copy of a conversion's row does not outlive the refund."""
    inspection = inspected(log_kinds.refunds_in_one_file(tmp_path), tmp_path)
    assert inspection.doubts == []
    table, _ = Logs(schema=str(tmp_path / "schema.toml")).prepare(None)
    bought = sum(one.bought is not None for one in log_kinds.clicks(3000))
    assert int(table.label.sum()) == bought - 40


def test_a_file_of_actions_needs_no_features_but_one_of_clicks_does(tmp_path: Path) -> None:
    inspected(log_kinds.refunds_in_one_file(tmp_path), tmp_path)
    schema = tmp_path / "schema.toml"
    schema.write_text(
        schema.read_text().replace('placement = {kind = "vocabulary"}', 'placment = {kind = "vocabulary"}')
    )
    with pytest.raises(UserError, match=r"clicks.csv: column 'placment' is missing \(did you mean 'placement'\?\)"):
        Logs(schema=str(schema)).prepare(None)


def test_times_far_from_all_others_are_in_doubt_and_decide_nothing(tmp_path: Path) -> None:
    inspection = inspected(log_kinds.wide_parquet(tmp_path), tmp_path)
    assert [doubt[:13] for doubt in inspection.doubts] == ["2 clicks with", "10 conversion"]
    times = schemas.load(tmp_path / "schema.toml").time
    assert (times.earliest, times.latest) == ("2026-01-05T00:00:00Z", "2026-03-06T23:59:59Z")


def wide(folder: Path, time: Callable[[int], object], name: str = "log.csv", delay: int = HOUR) -> Path:
    """A small log with times as `time` writes them, since the start."""
    lines = ["click_id,click_time,purchase_time,site"]
    for i in range(600):
        bought = time(i * HOUR + delay) if i % 5 == 0 else ""
        lines.append(f"{i},{time(i * HOUR)},{bought},s{i % 7}")
    text = "\n".join(lines) + "\n"
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    elif name.endswith(".zst"):
        plain = pl.LazyFrame([line.split(",") for line in lines[1:]], lines[0].split(","), orient="row")
        plain.sink_csv(path, compression="zstd")
    else:
        path.write_text(text)
    return path


def written(form: str) -> Callable[[int], str]:
    return lambda at: datetime.fromtimestamp(START + at, UTC).strftime(form)


@pytest.mark.parametrize(
    ("form", "unit"),
    [
        ("%d/%m/%Y %H:%M:%S", "dd/mm/yyyy"),
        ("%m/%d/%Y %I:%M %p", "mm/dd/yyyy"),
        ("%d.%m.%Y %H:%M", "dd/mm/yyyy"),
        ("%Y%m%d%H%M%S", "yyyymmdd"),
        ("%Y/%m/%d %H:%M:%S", "text"),
    ],
)
@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.csv.zst"])
def test_dates_and_packed_files_are_read(form: str, unit: str, name: str, tmp_path: Path) -> None:
    inspection = inspected(wide(tmp_path, written(form), name), tmp_path)
    assert schemas.load(tmp_path / "schema.toml").time.unit == unit
    table, _ = Logs(schema=str(tmp_path / "schema.toml")).prepare(None)
    assert table.click_ts.tolist() == [i * HOUR for i in range(600)]
    assert int(table.label.sum()) == 120
    assert inspection.counts["naive_time"] == 720


def test_days_and_months_that_could_be_either_are_in_doubt(tmp_path: Path) -> None:
    form = written("%d/%m/%Y %H:%M:%S")
    path = wide(tmp_path, lambda at: form(at % (7 * DAY)))
    assert "# In doubt: day and month could be the other way round" in inspected(path, tmp_path).toml


def test_a_format_that_nobody_foresaw_is_given_as_strptime_writes_it(tmp_path: Path) -> None:
    inspected(wide(tmp_path, written("%Y/%m/%d %H:%M:%S")), tmp_path)
    wide(tmp_path, written("%d %b %y at %H.%M"))
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text().replace('unit = "text"', 'unit = "%d %b %y at %H.%M"'))
    table, _ = Logs(schema=str(schema)).prepare(None)
    assert table.click_ts.tolist() == [i * HOUR for i in range(600)]
    schema.write_text(schema.read_text().replace('unit = "%d %b', 'unit = "%d %m'))
    with pytest.raises(UserError, match=r"row 1, column 'click_time': '05 Jan 26 at 00.00' is no time in unit"):
        Logs(schema=str(schema)).prepare(None)


def test_late_conversions_do_not_decide_d_max(tmp_path: Path) -> None:
    """Four of 120 conversions come after two days, all others within an hour."""
    form = written("%Y-%m-%d %H:%M:%S")
    path = wide(tmp_path, form)
    lines = path.read_text().splitlines()
    for i in range(100, 120, 5):
        lines[i + 1] = f"{i},{form(i * HOUR)},{form(i * HOUR + 2 * DAY)},s{i % 7}"
    path.write_text("\n".join(lines))
    inspection = inspected(path, tmp_path)
    assert inspection.schema.labels.d_max == HOUR
    assert any(doubt.startswith("4 conversions come much later than the others") for doubt in inspection.doubts)
    assert inspection.counts["conversion_after_d_max"] == 4


def test_a_label_without_a_time_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "click_id,click_time,site,converted\n"
        + "".join(f"{i},{START + i * HOUR},s{i % 3},{i % 2}\n" for i in range(60))
    )
    with pytest.raises(UserError, match=r"'converted' says whether there was one, but not when.*or the delay"):
        inspect_files([str(tmp_path / "log.csv")], tmp_path)


def test_a_label_tells_which_times_are_conversions(tmp_path: Path) -> None:
    """Every row has a time of its end; only where the label is 1 it is a conversion's."""
    rows = [f"{i},{START + i * HOUR},{START + i * HOUR + 60 * (i % 9)},s{i % 3},{i % 2}\n" for i in range(600)]
    (tmp_path / "log.csv").write_text("click_id,click_time,session_end_time,site,converted\n" + "".join(rows))
    inspection = inspected(tmp_path / "log.csv", tmp_path)
    assert "every row has a time 'session_end_time'" in inspection.doubts[0]
    table, _ = Logs(schema=str(tmp_path / "schema.toml")).prepare(None)
    assert int(table.label.sum()) == 300
    assert table.counts["time_without_label"] == 300


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 0.001), ("min", 60), ("h", HOUR), ("d", DAY)])
def test_delays_of_any_unit(unit: str, scale: float, tmp_path: Path) -> None:
    rows = [f"{i},{START + i * HOUR},{'' if i % 4 else round(DAY / scale)},s{i % 3}\n" for i in range(600)]
    (tmp_path / "log.csv").write_text(f"click_id,click_time,delay_{unit},site\n" + "".join(rows))
    inspected(tmp_path / "log.csv", tmp_path)
    table, _ = Logs(schema=str(tmp_path / "schema.toml")).prepare(None)
    assert set((table.action_ts[::4, 0] - table.click_ts[::4]).tolist()) == {DAY}
    assert int(table.label.sum()) == 150


def test_columns_whose_values_keep_coming_are_hashed(tmp_path: Path) -> None:
    rows = [
        f"{i},{START + i * HOUR},{START + i * HOUR + 60 if i % 5 == 0 else ''},u{i // 3},s{i % 7}\n" for i in range(900)
    ]
    (tmp_path / "log.csv").write_text("click_id,click_time,purchase_time,user,site\n" + "".join(rows))
    inspection = inspected(tmp_path / "log.csv", tmp_path)
    user, site = schemas.load(tmp_path / "schema.toml").features
    assert isinstance(user, Hashed)
    assert isinstance(site, Vocabulary)
    ids = pl.DataFrame({"user": [f"u{i}" for i in range(300)]}).select(user.ids()).to_series()
    assert 255 < ids.n_unique() < 300, "few values share an id with another"
    assert "more rows than the 900 clicks" in inspection.toml


# Logs that are read in a wrong way.


def shop_rows(number: int = 3000) -> tuple[pl.DataFrame, int]:
    """Clicks with the times of their purchases, and how many there are."""
    made = log_kinds.clicks(number)
    columns = {
        "click_id": [one.id for one in made],
        "click_time": [START + one.at for one in made],
        "purchase_time": [None if one.bought is None else START + one.bought for one in made],
        "campaign": [one.campaign for one in made],
        "device": [one.device for one in made],
    }
    return pl.DataFrame(columns), sum(one.bought is not None for one in made)


def test_swapped_columns_of_times_are_refused(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    rows, bought = shop_rows()
    swapped = {"click_time": "purchase_time", "purchase_time": "click_time"}
    rows.rename(swapped).write_csv(tmp_path / "swapped.csv")
    assert call("inspect", tmp_path / "swapped.csv", "--out", tmp_path / "schema.toml") == 2
    said = capsys.readouterr().err
    assert f" of {bought:,} conversions come before their click; 'click_time' is taken for" in said
    assert "are they swapped?" in said
    full = rows.with_columns(sold=pl.col("purchase_time").is_not_null().cast(pl.Int8)).with_columns(
        pl.col("purchase_time").fill_null(pl.col("click_time") + HOUR)
    )
    full.rename(swapped).write_csv(tmp_path / "full.csv")
    with pytest.raises(UserError, match="conversions come before their click"):
        inspected(tmp_path / "full.csv", tmp_path)


def test_ids_that_come_again_and_again_are_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100 ids in 3,000 rows, one after the other: no row of the odd half has an id of the even half."""
    rows, _ = shop_rows()
    rows = rows.with_columns(click_id=pl.int_range(pl.len()) % 100)
    rows.write_csv(tmp_path / "wide.csv")
    inspection = inspected(tmp_path / "wide.csv", tmp_path)
    assert inspection.counts["clicks"] == 3000
    assert "# left out: click_id: has 100 different values in 3,000 rows" in inspection.toml
    rows.rename({"click_id": "user_id"}).write_csv(tmp_path / "wide.csv")
    assert "user_id = {" in inspected(tmp_path / "wide.csv", tmp_path).toml
    events = rows.select("click_id", "campaign", time="click_time", event=pl.lit("click"))
    bought = rows.drop_nulls().select("click_id", "campaign", time="purchase_time", event=pl.lit("purchase"))
    pl.concat([events, bought]).write_csv(tmp_path / "events.csv")
    doubts = " ".join(inspected(tmp_path / "events.csv", tmp_path).doubts)
    assert "a click is taken to be one value of click_id" in doubts
    assert "of the rows are dropped (2,900 duplicate_click" in doubts


@pytest.mark.parametrize(("deeper", "conversion"), [("subscription", "subscription"), ("registration", "install")])
def test_of_a_chain_of_actions_the_one_that_is_paid_for_counts(deeper: str, conversion: str, tmp_path: Path) -> None:
    """Each subscription comes after an installation. Where no name says which one counts, it is in doubt."""
    rows, _ = shop_rows()
    clicks = rows.select("click_id", "campaign", time="click_time", event=pl.lit("ad_click"))
    installed = rows.drop_nulls().select("click_id", "campaign", time="purchase_time", event=pl.lit("install"))
    later = installed[::2].with_columns(time=pl.col("time") + HOUR, event=pl.lit(deeper))
    pl.concat([clicks, installed, later]).write_csv(tmp_path / "events.csv")
    inspection = inspected(tmp_path / "events.csv", tmp_path)
    assert inspection.schema.action[0].name == conversion
    asked = [f"every '{deeper}' comes after a conversion" in doubt for doubt in inspection.doubts]
    assert any(asked) == (conversion != deeper)


# Files that are no CSV, and words of errors.


def test_json_lines_and_structs_are_read(tmp_path: Path) -> None:
    """One JSON object per line, plain or packed, and structs in them or in Parquet, whose fields are columns."""
    rows, bought = shop_rows()
    nested = rows.select("click_id", "click_time", "purchase_time", context=pl.struct("campaign", "device"))
    nested.write_ndjson(tmp_path / "log.ndjson")
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress((tmp_path / "log.ndjson").read_bytes()))
    nested.write_parquet(tmp_path / "log.parquet")
    for name in ("log.ndjson", "packed.jsonl.gz", "log.parquet"):
        inspected(tmp_path / name, tmp_path)
        table, _ = Logs(schema=str(tmp_path / "schema.toml")).prepare(None)
        assert len(table) == len(rows)
        assert int(table.label.sum()) == bought
        assert [feature.name for feature in table.schema.features] == ["context.campaign", "context.device"]
    (tmp_path / "list.json").write_text('[{"click_id": 1}]')
    with pytest.raises(UserError, match="a JSON list; write one JSON object per line"):
        inspected(tmp_path / "list.json", tmp_path)
    (tmp_path / "log.ndjson").write_text('{"click_id": 1}\n{"click_id": oops}\n')
    with pytest.raises(UserError, match="not readable as one JSON object per line"):
        inspected(tmp_path / "log.ndjson", tmp_path)


def test_decimal_commas_are_numbers(tmp_path: Path) -> None:
    """As text of the log and as text of a live click; 12.5 is not how this column writes numbers."""
    rows, _ = shop_rows()
    rows = rows.with_columns(price=pl.format("{},{}", pl.int_range(pl.len()) % 90, pl.int_range(pl.len()) % 7 + 10))
    rows.write_csv(tmp_path / "log.csv", separator=";")
    inspection = inspected(tmp_path / "log.csv", tmp_path)
    assert 'price = {kind = "binned", size = 32, decimal = ","}' in inspection.toml
    _, encoder = Logs(schema=str(tmp_path / "schema.toml"), max_bad=0.1).prepare(None)
    column = next(column for column in encoder.columns if column.raw == "price")
    values = ["1.234,5", "12,25", 12.25, 12, "12", "12.5", "x", None]
    cleaned = [clean(column, value)[0] for value in values]
    assert cleaned == [1234.5, 12.25, 12.25, 12, 12, None, None, None]
    assert isinstance(column, Binned)
    described = describe_column(column)
    assert [scorer.number(value, described["decimal"]) for value in values] == cleaned


@pytest.mark.parametrize("decimals", ["", ".50"])
def test_a_comma_that_may_stand_between_thousands_is_said(decimals: str, tmp_path: Path) -> None:
    rows, _ = shop_rows()
    number = pl.int_range(pl.len())
    rows = rows.with_columns(price=pl.format("{},{}{}", number % 90 + 1, number % 7 + 100, pl.lit(decimals)))
    rows.write_csv(tmp_path / "log.csv", separator=";")
    inspection = inspected(tmp_path / "log.csv", tmp_path)
    assert "price = {" not in inspection.toml
    assert any("'price' is left out: it has numbers whose commas may stand" in doubt for doubt in inspection.doubts)


def test_errors_say_what_was_given(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = shop_rows()
    rows.write_csv(tmp_path / "log.csv")
    assert call("inspect", tmp_path / "log.csv", "--out", tmp_path / "schema.toml") == 0
    schema = ("--schema", tmp_path / "schema.toml")
    quick = ("--method", "vanilla", "--out", tmp_path / "run")
    mistakes: list[tuple[tuple[object, ...], str]] = [
        (("inspect", tmp_path / "no.csv"), "no.csv: no such file; check the path\n"),
        (("inspect", tmp_path / "log.csv", "--zone", "Mars/X"), "error: zone = 'Mars/X': no such time zone"),
        (("run", *quick, "--source", tmp_path / "nope"), "nope: no such file or directory"),
        (("run", *quick, "--source", tmp_path / "log.csv"), "was not written by `tracecvr prepare`: name its dataset"),
        (("events", "--source", tmp_path / "nope"), "nope: no such file or directory"),
        (
            ("prepare", "logs", *schema, "--out", tmp_path / "table", "--data-set", "d_max=90d"),
            "d_max = 90d: labels end 60 d 10 h after the first click, so no click has a final label",
        ),
        (("run", *quick, *schema, "--set", "interval=5"), "interval = 5s makes"),
        (("run", *quick, *schema, "--data-set", "d_max=40d"), "clicks are judged up to 20 d"),
    ]
    for words, message in mistakes:
        capsys.readouterr()
        assert call(*words) == 2
        assert message in capsys.readouterr().err, words
