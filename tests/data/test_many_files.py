"""Logs that come as many files: one of each day or month, folders of a data lake, patterns. They are one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from log_kinds import START, Click, clicks
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.data.inspection.inspect_log import Inspection, inspect_files
from tracecvr.datasets.logs import Logs

NUMBER = 2000


def frames() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Clicks and their purchases, of 60 days."""
    made = clicks(NUMBER)

    def row(one: Click) -> dict[str, object]:
        return {"click_id": one.id, "ts": START + one.at, "campaign": one.campaign, "device": one.device}

    bought = [{"click_id": one.id, "ts": START + one.bought} for one in made if one.bought is not None]
    return pl.DataFrame([row(one) for one in made]), pl.DataFrame(bought)


def by_time(frame: pl.DataFrame, form: str) -> dict[str, pl.DataFrame]:
    """Rows by the day or the month of their time."""
    names = frame["ts"].map_elements(lambda at: datetime.fromtimestamp(at, UTC).strftime(form), pl.String)
    return {str(name): part.drop("part") for (name,), part in frame.with_columns(part=names).group_by("part")}


def write(frame: pl.DataFrame, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    return str(path)


def read(given: list[str], folder: Path) -> Inspection:
    """What `inspect` proposes; prepared as it stands, it has every click and every purchase."""
    inspection = inspect_files(given, folder)
    schema = folder / "schema.toml"
    schema.write_text(inspection.toml)
    table, _ = Logs(schema=str(schema)).prepare(None)
    assert len(table) == NUMBER, inspection.toml
    assert int((table.action_ts[:, 0] < 2**62).sum()) == len(frames()[1])
    assert len(table.schema.actions) == 1
    assert {feature.name for feature in table.schema.features} == {"campaign", "device"}
    return inspection


def daily_files(folder: Path) -> list[str]:
    first, second = frames()
    files = [write(part, folder / f"clicks-{day}.csv") for day, part in by_time(first, "%Y-%m-%d").items()]
    assert len(files) > 40
    return files + [write(part, folder / f"2026{month}_sales.csv") for month, part in by_time(second, "%m").items()]


def monthly_files(folder: Path) -> list[str]:
    first, second = frames()
    return [
        write(part, folder / f"{name}_{month.lower()}.csv")
        for name, frame in (("clicks", first), ("orders", second))
        for month, part in by_time(frame, "%b").items()
    ]


def hive_folders(folder: Path) -> list[str]:
    for name, frame in zip(("clicks", "purchases"), frames(), strict=True):
        for day, part in by_time(frame, "year=%Y/month=%m/day=%d").items():
            write(part, folder / name / day / "part-00000-3f2ab1.parquet")
        (folder / name / "_SUCCESS").touch()
    return [str(folder / "clicks"), str(folder / "purchases")]


def patterns(folder: Path) -> list[str]:
    hive_folders(folder)
    return [str(folder / "clicks" / "year=*" / "*"), str(folder / "purchases" / "**" / "*.parquet")]


def one_wide_table(folder: Path) -> list[str]:
    """A row per click with the time of the purchase, a file of each country, whose name says nothing."""
    first, second = frames()
    wide = first.join(second.rename({"ts": "bought_at"}), on="click_id", how="left").rename({"ts": "clicked_at"})
    return [write(wide[:900], folder / "germany.csv"), write(wide[900:], folder / "france.csv")]


def same_columns(folder: Path) -> list[str]:
    """Purchases have the columns of clicks, too: the names of files tell them apart."""
    first, second = frames()
    full = second.join(first.drop("ts"), on="click_id", how="left")
    return [write(first, folder / "clicks.csv"), write(full, folder / "purchases.csv")]


@pytest.mark.parametrize(
    "layout",
    [daily_files, monthly_files, hive_folders, patterns, one_wide_table, same_columns],
    ids=lambda f: f.__name__,
)
def test_files_of_one_kind_are_one_table(layout: Callable[[Path], list[str]], tmp_path: Path) -> None:
    given = layout(tmp_path / "lake")
    inspection = read(given, tmp_path)
    assert len(inspection.toml.splitlines()) < 200
    if layout is hive_folders:
        assert "# left out: day: is from the names of folders" in inspection.toml
        assert inspection.toml.count("[[file]]") == 2


def test_a_column_that_some_files_lack_is_left_out(tmp_path: Path) -> None:
    first, second = frames()
    early, late = first.filter(pl.col("ts") < START + 20 * DAY), first.filter(pl.col("ts") >= START + 20 * DAY)
    given = [write(early, tmp_path / "clicks_1.csv"), write(late.with_columns(b=pl.lit(1)), tmp_path / "clicks_2.csv")]
    inspection = read([*given, write(second, tmp_path / "sales.csv")], tmp_path)
    assert "# left out: b: not in every file: clicks_1.csv lacks it" in inspection.toml


def test_actions_of_two_kinds_stay_two(tmp_path: Path) -> None:
    first, second = frames()
    cart = second.with_columns(pl.col("ts") - 30)
    names = [("clicks", first), ("cart_01", cart[:300]), ("cart_02", cart[300:]), ("purchase", second)]
    inspection = inspect_files([write(frame, tmp_path / f"{name}.csv") for name, frame in names], tmp_path)
    assert [action.name for action in inspection.schema.action] == ["purchase", "cart"]


def test_a_folder_without_a_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty" / "day=1").mkdir(parents=True)
    with pytest.raises(UserError, match="no log in this folder"):
        inspect_files([str(tmp_path / "empty")], tmp_path)


def test_keys_that_no_line_of_a_file_has_are_missing_there(tmp_path: Path) -> None:
    """The last file of a stream has purchases alone: the keys of clicks are in the others."""
    first, second = frames()
    clicked = first.with_columns(event=pl.lit("click"))
    bought = second.with_columns(event=pl.lit("purchase"))
    both = pl.concat([clicked, bought[:-9]], how="diagonal").sort("ts")
    for name, part in (("1", both), ("2", bought[-9:])):
        lines = ({key: value for key, value in row.items() if value is not None} for row in part.rows(named=True))
        (tmp_path / f"events-{name}.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read([str(tmp_path / "events-1.ndjson"), str(tmp_path / "events-2.ndjson")], tmp_path)


def test_an_id_of_two_columns_joins_files(tmp_path: Path) -> None:
    """Neither tells clicks apart alone."""
    parts = [
        frame.with_columns(shop_id=pl.format("s{}", pl.col("click_id") % 4), number=pl.col("click_id") // 4)
        for frame in frames()
    ]
    names = zip(parts, ("clicks", "sales"), strict=True)
    given = [write(part.drop("click_id"), tmp_path / f"{name}.csv") for part, name in names]
    inspection = inspect_files(given, tmp_path)
    assert inspection.schema.click.id == ("shop_id", "number")
    assert "a click is taken to be one value of shop_id, number" in inspection.toml
    (tmp_path / "schema.toml").write_text(inspection.toml)
    table, _ = Logs(schema=str(tmp_path / "schema.toml")).prepare(None)
    assert len(table) == NUMBER
    assert int((table.action_ts[:, 0] < 2**62).sum()) == len(frames()[1])
