"""A log to learn from: a dataset by its name, a prepared table, files, or tables in memory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tracecvr.api import shown
from tracecvr.api.own_tables import Duration, Moment, Table, prepare_tables
from tracecvr.base import config
from tracecvr.base.durations import duration, exact_duration, moment
from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress, no_progress
from tracecvr.base.registry import Given
from tracecvr.bench.report import render_table
from tracecvr.bench.text_tables import Table as Shown
from tracecvr.bench.text_tables import Text
from tracecvr.data import prepared
from tracecvr.data.inspection.tables import Said
from tracecvr.data.prepared import Prepared
from tracecvr.data.table import ClickTable, Schema, atomic_directory, read_manifest
from tracecvr.runs.spec import dataset_of

_PLAIN_COUNTS = ("rows", "clicks")


@dataclass(frozen=True, eq=False)
class Log:
    """Clicks and what followed them. Made by `read` or `dataset`; nothing is read before it is needed.

    Parameters
    ----------
    data
        Name of the dataset; `logs` for a log of your own.
    source
        The raw file, or a directory that `save` or `tracecvr prepare` wrote.
    settings
        Options of the dataset, as text.
    doubts
        Where the log can be read in another way. Look at them before you trust a result.
    """

    data: str
    source: Path | None = None
    settings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    proposal: str = ""  # the schema that was proposed for a log of your own (TOML)
    flag: str = "option"  # what errors in options name
    _holds: Any = field(default=None, repr=False)  # what must live as long as this: the temporary directory of `source`

    @cached_property
    def prepared(self) -> Prepared:
        """The table and its encoder; prepared on first use."""
        return prepared.open_log(dataset_of(self.data, self.settings), self.source)

    def open(self, progress: Progress) -> Prepared:
        """The same, with progress while it is prepared."""
        if "prepared" not in self.__dict__:
            self.__dict__["prepared"] = prepared.open_log(dataset_of(self.data, self.settings), self.source, progress)
        return self.prepared

    @property
    def table(self) -> ClickTable:
        """One row per click, in order of time, with encoded features."""
        return self.prepared.table

    @property
    def schema(self) -> Schema:
        """Features, actions and how the log is replayed: d_max, horizons, split, interval; times in seconds."""
        return self.table.schema

    @property
    def defects(self) -> dict[str, int]:
        """What was wrong with the log, counted: duplicates, refunds, conversions without a click and others."""
        return {name: count for name, count in self.table.counts.items() if count and name not in _PLAIN_COUNTS}

    def __len__(self) -> int:
        return len(self.table)

    @property
    def conversions(self) -> int:
        """Clicks that converted within d_max."""
        return int(self.table.label.sum())

    def save(self, path: str | Path, progress: Progress = no_progress) -> Log:
        """Write the prepared log to a new directory. `read` opens it again, and so does `tracecvr run --source`."""
        target = Path(path)
        if self.source is not None and ClickTable.exists(self.source):
            with atomic_directory(target) as folder:
                shutil.copytree(self.source, folder, dirs_exist_ok=True)
        else:
            prepared.prepare_to(target, dataset_of(self.data, self.settings), self.source, progress)
        return Log(self.data, target, (), self.doubts, self.proposal)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self._facts().items())

    def _repr_html_(self) -> str:
        rows = [[Text(name), Text(value)] for name, value in self._facts().items()]
        return shown.page(render_table(Shown("Log", ["", ""], rows)))

    def _facts(self) -> dict[str, str]:
        schema, clicks = self.schema, len(self)
        start = moment(schema.split, self.prepared.origin)
        facts = {
            "log": self.data,
            "clicks": f"{clicks:,}, of which {self.conversions:,} converted ({self.conversions / max(clicks, 1):.2%})",
            "features": ", ".join(feature.name for feature in schema.features),
            "actions": ", ".join(schema.actions),
            "d_max": duration(schema.d_max),
            "horizons": ", ".join(map(exact_duration, schema.horizons)),
            "stream": f"starts {start}, in intervals of {duration(schema.interval)}",
        }
        if self.defects:
            facts["defects"] = ", ".join(f"{name} {count:,}" for name, count in self.defects.items())
        if self.doubts:
            facts["in doubt"] = "; ".join(self.doubts)
        return facts


def dataset(name: str, source: str | Path | None = None, **options: Any) -> Log:
    """A dataset by its name: `synthetic`, `hardships`, `criteo`, `taobao`, `criteo_search`, `cryptokitties`, `logs`,
    or one of yours.

    Parameters
    ----------
    name
        As `tracecvr datasets` lists it, or the Python file that defines it.
    source
        The raw log; none for `synthetic` and `hardships`.
    options
        Options of the dataset, such as `clicks=20000` or `d_max="7d"`. Durations are seconds or text.

    Examples
    --------
    >>> len(dataset("synthetic", clicks=2000))
    2000
    """
    settings = [f"{key}={text}" for key, text in config.settings_of(options).items()]
    return describe_log(Given(name), None if source is None else Path(source), settings, "option")


def describe_log(name: str, source: Path | None, settings: Sequence[str] = (), flag: str = "--data-set") -> Log:
    """A log by name, source and options as text; a mistake in them is an error now, though nothing is read yet."""
    chosen = dataset_of(name, settings, flag)
    if source is not None and ClickTable.exists(source):
        prepared.options_of(source, chosen, bool(settings))
    return Log(name, source, tuple(settings), flag="--set" if flag == "--data-set" else "option")


def read(
    clicks: Table,
    conversions: Table = None,
    *,
    id: str | Sequence[str] | None = None,
    click_time: str | None = None,
    conversion_time: str | None = None,
    converted: str | None = None,
    delay: str | None = None,
    actions: Mapping[str, Table] | None = None,
    refunds: Table = None,
    features: Sequence[str] | None = None,
    zone: str = "UTC",
    d_max: Duration | None = None,
    horizons: Sequence[Duration] | None = None,
    split: Moment | None = None,
    interval: Duration | None = None,
    observed_until: Moment | None = None,
    progress: bool = True,
) -> Log:
    """Read a log of your own: tables in memory or files. What is not said is proposed from the log.

    Duplicates, refunds, clocks that disagree and other defects are handled as `tracecvr prepare` does, and counted in
    `Log.defects`. Where the log can be read in another way, `Log.doubts` says so.

    Parameters
    ----------
    clicks
        One row per click, with its features: a DataFrame (pandas, polars), a pyarrow table, or the path of Parquet or
        CSV files. Without `conversions`, its columns also tell what followed each click; or it has one row per event.
        Also the path of a schema (`.toml`) or of a prepared log.
    conversions
        One row per conversion, with the click's id and the time.
    id
        Column (or columns) that tells clicks apart and that all tables have.
    click_time, conversion_time
        Columns of times: date-times, ISO 8601 text, or numbers since 1970. In two tables they may have the same name.
    converted, delay
        Columns of a table of clicks that has no time of the conversion: whether a click converted, and after how many
        seconds.
    actions
        Other things that may follow a click, such as a cart: by name, a column of `clicks` or a table.
    refunds
        What takes a conversion back: a column of `clicks` or a table.
    features
        Columns to learn from; all that are suitable by default.
    zone
        Time zone of times without an offset.
    d_max
        Attribution window: later conversions do not count. `"30d"`, seconds or a timedelta, like all durations.
    horizons
        Ends of the observation windows.
    split
        Where the stream starts; what comes before is the warm-up part. A date, or a duration since the first day.
    interval
        Length of an interval of the stream.
    observed_until
        Where labels end, if that is not the end of the log.
    progress
        Show progress.

    Examples
    --------
    >>> log = read("clicks.parquet", "sales.csv", id="click_id", click_time="ts", d_max="30d")  # doctest: +SKIP
    """
    said = Said(
        id=() if id is None else (id,) if isinstance(id, str) else tuple(id),
        click_time=click_time,
        conversion_time=conversion_time,
        converted=converted,
        delay=delay,
        features=None if features is None else tuple(features),
    )
    beside = dict(actions or {}) | ({} if refunds is None else {"refund": refunds})
    labels: dict[str, Any] = {"d_max": d_max, "horizons": horizons, "split": split, "interval": interval}
    labels["observed_until"] = observed_until
    roles = [name for name, value in asdict(said).items() if value]
    tables = {"conversions": conversions, "actions": actions, "refunds": refunds}
    roles += [name for name, value in tables.items() if value is not None]
    if (ready := _ready(clicks, roles, labels)) is not None:
        return ready
    with shown.progress(progress) as watch:
        folder, inspection = prepare_tables(clicks, conversions, beside, said, zone, labels, watch)
    return Log("logs", folder.path / "table", (), tuple(inspection.doubts), inspection.toml, _holds=folder)


def _ready(clicks: Table, roles: Sequence[str], labels: Mapping[str, Any]) -> Log | None:
    """A log that is described already: a prepared directory, or a schema."""
    path = Path(clicks) if isinstance(clicks, str | Path) else None
    if path is None or not (ClickTable.exists(path) or path.suffix == ".toml"):
        return None
    if roles:
        raise UserError(f"{path} says what its columns mean: leave out {', '.join(roles)}")
    options = config.settings_of({name: value for name, value in labels.items() if value is not None})
    settings = [f"{key}={text}" for key, text in options.items()]
    if ClickTable.exists(path):
        return describe_log(read_manifest(path)["schema"]["dataset"], path, settings, "option")
    return describe_log("logs", None, [f"schema={path}", *settings], "option")
