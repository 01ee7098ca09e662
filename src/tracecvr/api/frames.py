"""Tables in memory, of whatever library, and files, as frames of polars. pandas and pyarrow are never imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.inspection.tables import sniff
from tracecvr.data.own_log.files import matching_files

Table = Any
"""A DataFrame of pandas or polars, a table of pyarrow, a mapping of columns, or the path of Parquet or CSV files."""


def is_path(given: Table) -> bool:
    return isinstance(given, str | Path)


def frame_of(given: Table, what: str) -> pl.LazyFrame:
    """The rows of a table; `what` names it in errors."""
    if is_path(given):
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
    kind = getattr(column.dtype, "kind", "O")
    if kind == "M":
        zone = getattr(column.dtype, "tz", None)
        utc = column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
        values = pl.Series(utc.to_numpy().astype("datetime64[us]"))
        return values if zone is None else values.dt.replace_time_zone("UTC")
    if kind == "m":
        return pl.Series(column.to_numpy().astype("timedelta64[us]"))
    if type(column.dtype).__module__.startswith("numpy") and kind in "iufb":
        return pl.Series(column.to_numpy(), nan_to_null=True)
    pairs = zip(column.tolist(), column.isna().to_numpy(), strict=True)
    return pl.Series([None if missing else value for value, missing in pairs], strict=False)
