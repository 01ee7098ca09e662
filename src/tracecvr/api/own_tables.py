"""Tables of a log of your own, in memory or in files: written as Parquet to a temporary directory, then inspected and
prepared as by `tracecvr inspect` and `prepare`. pandas and pyarrow are never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base import config
from tracecvr.base.durations import duration, exact_duration
from tracecvr.base.errors import UserError
from tracecvr.base.files import TemporaryFolder, write_text
from tracecvr.base.progress import Progress
from tracecvr.data import prepared
from tracecvr.data.inspection.columns import is_amount_name
from tracecvr.data.inspection.inspect_log import Inspection, inspect_files
from tracecvr.data.inspection.tables import NOTHING_SAID, Said, sniff
from tracecvr.data.own_log.files import matching_files
from tracecvr.datasets.logs import Logs

Table = Any
"""A DataFrame of pandas or polars, a table of pyarrow, a mapping of columns, or the path of Parquet or CSV files."""


def frame_of(given: Table, what: str) -> pl.LazyFrame:
    """The rows of a table; `what` names it in errors."""
    if isinstance(given, str | Path):
        parts = [sniff(path).scan for path in matching_files(str(given), Path())]
        return parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal_relaxed")
    return collect(given, what).lazy()


def collect(given: Table, what: str) -> pl.DataFrame:
    if isinstance(given, pl.LazyFrame):
        return given.collect()
    if isinstance(given, pl.DataFrame):
        return given
    if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "iloc"):
        return _of_pandas(given)
    if isinstance(given, Mapping) or hasattr(given, "__arrow_c_stream__"):
        return pl.DataFrame(given, strict=False)
    if isinstance(given, list) and all(isinstance(row, Mapping) for row in given):
        return pl.DataFrame(given, strict=False, infer_schema_length=None)
    raise UserError(
        f"{what}: expected a DataFrame (pandas, polars), a table of pyarrow, a dictionary of columns, a list of "
        f"dictionaries or a path, found {type(given).__name__}"
    )


def _of_pandas(frame: Any) -> pl.DataFrame:
    """Column by column: polars' own conversion needs pyarrow, which pandas does not."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"two columns are named {twice!r}: rename one")
    return pl.DataFrame([_series(frame.iloc[:, place]).alias(name) for place, name in enumerate(names)])


def _series(column: Any) -> pl.Series:
    kind = column.dtype.kind
    if type(column.dtype).__module__.startswith("numpy") and kind in "iufbmM":
        values = column.to_numpy()
        return pl.Series(values.astype(f"{kind}8[us]") if kind in "mM" else values, nan_to_null=True)
    pairs = zip(column.tolist(), column.isna().to_numpy(), strict=True)
    return pl.Series([None if missing else value for value, missing in pairs], strict=False)


Duration = str | float | timedelta
"""Seconds, a timedelta, or text such as `15min`, `1h`, `30d`."""

Moment = str | float | timedelta | date
"""A date, ISO 8601 text, or a duration since the log's first day."""

_MOMENTS = ("split", "observed_until")


def prepare_tables(
    clicks: Table,
    conversions: Table,
    beside: Mapping[str, Table],
    said: Said,
    zone: str,
    labels: Mapping[str, Any],
    progress: Progress,
) -> tuple[TemporaryFolder, Inspection]:
    """Inspect a log and prepare it, as `table` in a folder; `beside` has tables or columns of what else follows."""
    in_clicks = frame_of(clicks, "clicks").collect_schema()
    columns = {name: given for name, given in beside.items() if isinstance(given, str) and given in in_clicks}
    others = {} if conversions is None else {"conversion": conversions}
    others |= {name: given for name, given in beside.items() if name not in columns}
    folder = TemporaryFolder()
    room = folder.path
    tables = {str(room / f"{name}.parquet"): name for name in ("click", *others)} if others else {}
    said = replace(said, actions=columns, tables=tables)
    written = _write_tables(clicks, others, said, room)
    inspection = inspect_files(written, room, zone, progress, said)
    asked = said.features or ()
    if leaks := [f"{name!r}: {why}" for name, why in inspection.measured.leaks.items() if name in asked]:
        raise UserError(f"features: {'; '.join(leaks)}; leave out what is known only after the outcome")
    write_text(room / "schema.toml", inspection.toml)
    schema = str(room / "schema.toml")
    chosen = Logs(schema=schema, **_options(inspection, Logs(schema=schema).origin(), labels))
    prepared.prepare_to(room / "table", config.validate(chosen), None, progress)
    for path in room.glob("*.parquet"):
        path.unlink()
    return folder, inspection


def _write_tables(clicks: Table, others: Mapping[str, Table], said: Said, room: Path) -> list[str]:
    """Files of the tables, the clicks first."""
    if isinstance(clicks, str | Path) and not others and said == NOTHING_SAID:
        return [str(Path(clicks).absolute())]  # as it is
    kept = None if said.features is None else list(said.of_clicks)
    paths = [_write(frame_of(clicks, "clicks"), kept, said, room / "click.parquet", "clicks")]
    for name, given in others.items():
        if not name.isidentifier():
            raise UserError(f"action {name!r}: give it a name of letters, digits and underscores")
        frame = frame_of(given, name)
        names = frame.collect_schema().names()
        time = said.time_of(names)
        amounts = [column for column in names if is_amount_name(column)]
        columns = list(dict.fromkeys([*said.id, time, *amounts])) if time is not None and said.id else None
        paths.append(_write(frame, columns, said, room / f"{name}.parquet", name))
    return paths


def _write(frame: pl.LazyFrame, kept: list[str] | None, said: Said, path: Path, what: str) -> str:
    there = frame.collect_schema()
    config.refuse_missing(kept or (), there, what)
    # Ids that became floats because some are missing, as pandas does, are whole numbers again.
    ids = [pl.col(name).cast(pl.Int64) for name in said.id if name in there and there[name].is_float()]
    frame.select(kept or there.names()).with_columns(ids).sink_parquet(path)
    return str(path)


def _options(inspection: Inspection, origin: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the dataset: what is given, and what has to be proposed anew because of it."""
    wanted: dict[str, Any] = {}
    for name, value in given.items():
        if name == "horizons" and value is not None:
            wanted[name] = tuple(seconds(end, name) for end in value)
        elif value is not None:
            wanted[name] = moment(value, origin, name) if name in _MOMENTS else seconds(value, name)
    measured, d_max = inspection.measured, wanted.get("d_max")
    if "observed_until" in wanted:
        measured = replace(measured, last_seen=wanted["observed_until"] - 1)
    span = measured.last_seen + 1 - measured.first_click
    if d_max is not None and d_max >= span:
        raise UserError(
            f"d_max = {exact_duration(d_max)}: the log spans {duration(span)}, so no click has a final label; give a "
            "shorter d_max"
        )
    if wanted.keys() & {"d_max", "observed_until"}:
        labels = measured.propose_labels(d_max)
        wanted = {name: getattr(labels, name) for name in ("d_max", "horizons", "split", "interval")} | wanted
    return wanted


def seconds(given: Duration, name: str) -> int:
    """A duration in seconds.

    >>> seconds("2h", "d_max"), seconds(timedelta(days=1), "d_max"), seconds(90, "d_max")
    (7200, 86400, 90)
    """
    return config.parse_duration(config.text_of(given), name)


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
