"""Tables of a log of your own, in memory or in files, by way of the same inspection and cleaning as `tracecvr inspect`
and `prepare`.

Tables are written as Parquet into a temporary directory. Columns whose meaning is given get names that the inspection
cannot miss; features keep theirs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.api.frames import Table, frame_of, is_path
from tracecvr.base import config
from tracecvr.base.durations import duration, exact_duration
from tracecvr.base.errors import UserError
from tracecvr.base.files import TemporaryFolder, write_text
from tracecvr.base.progress import Progress
from tracecvr.data import prepared
from tracecvr.data.inspection.inspect_log import Inspection, inspect_files
from tracecvr.datasets.logs import Logs

Duration = str | float | timedelta
"""Seconds, a timedelta, or text such as `15min`, `1h`, `30d`."""

Moment = str | float | timedelta | date
"""A date, ISO 8601 text, or a duration since the log's first day."""

ID, CLICK_TIME, CONVERSION_TIME, REFUND_TIME = "click_id", "click_time", "conversion_time", "refund_time"
CONVERTED, DELAY = "conversion", "conversion_delay_seconds"


@dataclass(frozen=True)
class OwnTables:
    """A prepared log and what the inspection had to say of it."""

    table: Path
    doubts: tuple[str, ...]
    proposal: str
    folder: TemporaryFolder


@dataclass(frozen=True)
class _Roles:
    """Columns whose meaning is given."""

    id: tuple[str, ...]
    click_time: str | None
    conversion_time: str | None
    converted: str | None
    delay: str | None
    columns: Mapping[str, str]
    """Of the table of clicks: column by the name of the action, `refund` included."""
    features: tuple[str, ...] | None

    def of_clicks(self, wide: bool) -> dict[str, str]:
        """New names of columns of the table of clicks."""
        renamed = {column: f"{name}_time" for name, column in self.columns.items()}
        renamed |= {self.click_time: CLICK_TIME} if self.click_time else {}
        renamed |= {self.conversion_time: CONVERSION_TIME} if self.conversion_time and wide else {}
        renamed |= {self.converted: CONVERTED} if self.converted else {}
        renamed |= {self.delay: DELAY} if self.delay else {}
        return renamed | self._id()

    def of_others(self, there: Iterable[str]) -> dict[str, str]:
        """New names of columns of another table."""
        columns = set(there)
        time = self.conversion_time or (self.click_time if self.click_time in columns else None)
        return ({time: "time"} if time else {}) | self._id()

    def _id(self) -> dict[str, str]:
        return {self.id[0]: ID} if len(self.id) == 1 else {}


def prepared_tables(
    clicks: Table,
    conversions: Table,
    actions: Mapping[str, Table] | None,
    refunds: Table,
    id: str | Sequence[str] | None,
    click_time: str | None,
    conversion_time: str | None,
    converted: str | None,
    delay: str | None,
    features: Sequence[str] | None,
    zone: str,
    labels: Mapping[str, Any],
    progress: Progress,
) -> OwnTables:
    """Inspect and prepare a log."""
    beside = dict(actions or {}) | ({} if refunds is None else {"refund": refunds})
    in_clicks = _columns_of(clicks)
    columns = {name: given for name, given in beside.items() if isinstance(given, str) and given in in_clicks}
    others = ({} if conversions is None else {"conversion": conversions}) | {
        name: given for name, given in beside.items() if name not in columns
    }
    roles = _Roles(
        () if id is None else (id,) if isinstance(id, str) else tuple(id),
        click_time,
        conversion_time,
        converted,
        delay,
        columns,
        None if features is None else tuple(features),
    )
    folder = TemporaryFolder()
    room = folder.path
    written = [_write_clicks(clicks, roles, not others, room)]
    written += [_write_other(name, given, roles, room) for name, given in others.items()]
    inspection = inspect_files(written, room, zone, progress)
    _check(inspection, roles)
    write_text(room / "schema.toml", inspection.toml)
    schema = str(room / "schema.toml")
    chosen = Logs(schema=schema, **_options(inspection, Logs(schema=schema).origin(), labels))
    prepared.prepare_to(room / "table", config.validated(chosen), None, progress)
    for path in room.glob("*.parquet"):
        path.unlink()
    return OwnTables(room / "table", tuple(inspection.doubts), inspection.toml, folder)


def _columns_of(given: Table) -> list[str]:
    return frame_of(given, "clicks").collect_schema().names()


def _write_clicks(given: Table, roles: _Roles, wide: bool, room: Path) -> str:
    renamed = roles.of_clicks(wide)
    if is_path(given) and wide and not renamed and roles.features is None:
        return str(Path(given).absolute())  # as it is
    frame = frame_of(given, "clicks")
    if roles.delay is not None and not frame.collect_schema().get(roles.delay, pl.Int64()).is_numeric():
        raise UserError(f"delay: column {roles.delay!r} is not a number of seconds from the click to the conversion")
    kept = None if roles.features is None else [*renamed, *roles.id, *roles.features]
    return _write(frame, renamed, kept, room / "clicks.parquet", "clicks")


def _write_other(name: str, given: Table, roles: _Roles, room: Path) -> str:
    if not name.isidentifier():
        raise UserError(f"action {name!r}: give it a name of letters, digits and underscores")
    frame = frame_of(given, name)
    renamed = roles.of_others(frame.collect_schema().names())
    kept = [*renamed, *roles.id] if "time" in renamed.values() and roles.id else None
    return _write(frame, renamed, kept, room / f"{name}.parquet", name)


def _write(frame: pl.LazyFrame, renamed: Mapping[str, str], kept: list[str] | None, path: Path, what: str) -> str:
    """Columns whose meaning is given first, under their new names."""
    there = frame.collect_schema()
    for column in [*renamed, *(kept or [])]:
        if column not in there:
            hint = config.nearest(column, there)
            raise UserError(f"{what}: column {column!r} is missing{hint}; there are: {', '.join(there)}")
    taken = next((new for old, new in renamed.items() if new in there and new != old and new not in renamed), None)
    if taken is not None:
        frame = frame.rename({taken: f"{taken}_"})
        there = frame.collect_schema()
    names = list(dict.fromkeys([*renamed, *(there.names() if kept is None else kept)]))
    columns = {renamed.get(name, name): _whole(pl.col(name), there[name], renamed.get(name) == ID) for name in names}
    frame.select(**columns).sink_parquet(path)
    return str(path)


def _whole(column: pl.Expr, dtype: pl.DataType, is_id: bool) -> pl.Expr:
    """Ids that became floats because some are missing, as pandas does, are whole numbers again."""
    return column.cast(pl.Int64) if is_id and dtype.is_float() else column


def _check(inspection: Inspection, roles: _Roles) -> None:
    """Refuse a reading of the log that is not the one that was asked for."""
    read = tomllib.loads(inspection.toml)
    if roles.click_time and read["click"]["time"] != CLICK_TIME:
        raise UserError(f"click_time: column {roles.click_time!r} does not look like times")
    if len(roles.id) == 1 and read["click"].get("id") != ID:
        raise UserError(
            f"id: column {roles.id[0]!r} does not tell clicks apart: too many values are missing or there several times"
        )
    if roles.converted and read["action"][0].get("label") != CONVERTED:  # the conversion is the first
        raise UserError(f"converted: column {roles.converted!r} does not say yes or no of every click")
    left = [name for name in roles.features or () if name not in read["features"]]
    if left:
        why = inspection.guess.left_out | inspection.measured.leaks
        reasons = "; ".join(f"{name!r}: {why.get(name, 'not suitable')}" for name in left)
        raise UserError(f"features: {reasons}; leave out what cannot be learnt from")


def _options(inspection: Inspection, origin: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the dataset: what is given, and what has to be proposed anew because of it."""
    wanted = {name: value for name, value in given.items() if value is not None}
    measured = inspection.measured
    options: dict[str, Any] = {}
    if "observed_until" in wanted:
        options["observed_until"] = moment(wanted["observed_until"], origin, "observed_until")
        measured = replace(measured, last_seen=options["observed_until"] - 1)
    labels = measured.labels
    if "d_max" in wanted:
        d_max, span = seconds(wanted["d_max"], "d_max"), labels.observed_until - measured.first_click
        if d_max >= span:
            raise UserError(
                f"d_max = {exact_duration(d_max)}: the log spans {duration(span)}, so no click has a final label; give "
                "a shorter d_max"
            )
        labels = measured.labels_with(d_max)
    if options or "d_max" in wanted:
        options |= {"d_max": labels.d_max, "horizons": labels.horizons, "split": labels.split}
        options["interval"] = labels.interval
    if "horizons" in wanted:
        options["horizons"] = tuple(seconds(end, "horizons") for end in wanted["horizons"])
    if "split" in wanted:
        options["split"] = moment(wanted["split"], origin, "split")
    if "interval" in wanted:
        options["interval"] = seconds(wanted["interval"], "interval")
    return options


def seconds(given: Duration, name: str) -> int:
    """A duration in seconds.

    >>> seconds("2h", "d_max"), seconds(timedelta(days=1), "d_max"), seconds(90, "d_max")
    (7200, 86400, 90)
    """
    return config.parsed_duration(config.text_of(given), name)


def moment(given: Moment, origin: int | None, name: str) -> int:
    """A time in seconds since the log's origin. Dates without a zone are UTC.

    >>> moment("2026-01-03", 1767225600, "split"), moment("2d", None, "split")
    (172800, 172800)
    """
    at = given
    if isinstance(at, str):
        with suppress(ValueError):
            at = datetime.fromisoformat(at) if not at.isdigit() else at
    if not isinstance(at, date):
        return seconds(at, name)
    if origin is None:
        raise UserError(f"{name} = {given}: this log has no calendar; give a duration since its start, such as 10d")
    whole = at if isinstance(at, datetime) else datetime(at.year, at.month, at.day)
    aware = whole if whole.tzinfo is not None else whole.replace(tzinfo=UTC)
    return int(aware.timestamp()) - origin
