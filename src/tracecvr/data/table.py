"""ClickTable and Schema: one row per click, columns on disk, memory-mapped, fingerprinted.

Times are whole seconds since the log's origin. Action 0 is the conversion. The table is the only copy of the log:
whatever the number of reveals, they are slices of it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracecvr.base.durations import exact_duration
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, sync, write_json
from tracecvr.base.metrics import population_weight
from tracecvr.data import column_files
from tracecvr.data.external_sort import Scratch
from tracecvr.data.outages import Outages, hides

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

NEVER = int(np.iinfo(np.int64).max)
"""The time of an action that did not happen, or is not known to have happened."""

LEARNER_COLUMNS = ("x", "click_ts", "click_id", "action_ts")
"""The columns that learners see."""

TURNS = ("undone", "regained", "undone_again")
"""When a conversion was taken back, when one came after that, and when that was taken back, too. No more are kept."""

_COLUMNS = (*LEARNER_COLUMNS, "refund_ts", "late_known_ts", "late_arrival_ts")
"""Fields of a table that have a file; most logs do not have the last three."""

TRUTH_PREFIX = "truth."
"""What the names of columns begin with that only a generator knows."""

_FORMAT = 4

_PREFERENCES = ("windows", "conversions_at_click")
"""Fields of a schema that set defaults of methods and say nothing of the clicks: no part of the fingerprint."""


@dataclass(frozen=True)
class Feature:
    """An encoded column: ids in [0, size). Features of one `table` share an embedding; a one-hot one has none."""

    name: str
    size: int
    table: str
    one_hot: bool = False


@dataclass(frozen=True)
class Schema:
    """What a log consists of and how it is replayed. All times are in seconds since the origin of the log."""

    dataset: str
    features: tuple[Feature, ...]  # in the order of the table's columns
    actions: tuple[str, ...]  # the conversion is the first
    horizons: tuple[int, ...]  # ends of the observation windows, in rising order
    d_max: int  # attribution window: a conversion later than this after the click does not count
    split: int  # end of the warm-up part and start of the stream
    interval: int  # length of an interval of the stream
    observed_until: int  # where labels end: only clicks whose d_max ends before it are scored
    embedding_dim: int = 16  # the net sizes that the field uses for this log
    estimator_hidden: tuple[int, ...] = (128, 128, 128)
    window: int | None = None  # the observation window that suits its delays; None for the methods' default
    notes: tuple[str, ...] = ()  # what a reader of the results has to know: imputed times, for example
    negatives_kept: float = 1.0  # share of clicks without a conversion in the log; scores and metrics allow for it
    windows: tuple[int, ...] | None = None  # several windows in rising order, for methods that have several
    conversions_at_click: bool = False  # whether they are common in the click's second, so that a window of 0 is useful
    outages: Outages = ()  # when what follows clicks was not recorded: clicks that one hides are not used

    def __post_init__(self) -> None:
        if not 0 < self.negatives_kept <= 1:
            raise UserError(
                f"negatives_kept = {self.negatives_kept:g}: give the share that was kept, above 0 and up to 1"
            )
        if not self.horizons or list(self.horizons) != sorted(set(self.horizons)) or self.horizons[0] < 0:
            raise UserError(f"horizons {self.horizons}: give distinct durations in rising order, such as 1h,6h,1d")
        if self.horizons[-1] > self.d_max:
            last, most = exact_duration(self.horizons[-1]), exact_duration(self.d_max)
            raise UserError(f"horizons end at {last}, after d_max = {most}: give both, the last horizon at most {most}")

    @property
    def tables(self) -> dict[str, int]:
        """Embedding tables and their number of rows, in order of first use."""
        sizes: dict[str, int] = {}
        for f in self.features:
            if not f.one_hot:
                sizes[f.table] = max(f.size, sizes.get(f.table, 0))
        return sizes

    @property
    def text(self) -> str:
        """The schema as the fingerprint has it."""
        content = {name: value for name, value in self.to_json().items() if name not in _PREFERENCES}
        return json.dumps(content, sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Schema:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        fields["features"] = tuple(Feature(**f) for f in content["features"])
        fields["outages"] = tuple((start, end) for start, end in content["outages"])
        return cls(**fields)


@dataclass(frozen=True, eq=False)
class ClickTable:
    """A log with one row for each click, sorted by (arrival_ts, click_ts, click_id).

    Clicks and actions become known when they happen, unless the log was recorded live and says otherwise
    (`late_known_ts`, `late_arrival_ts`). A conversion counts until it is refunded, and again from a conversion after
    that on. What happens later than d_max after the click changes nothing. `truth` has columns that only a generator
    knows; no learner gets them.

    Examples
    --------
    >>> from tracecvr.datasets.synthetic import Synthetic
    >>> table, _ = Synthetic(clicks=2000).prepare(None)
    >>> len(table), table.action_ts.shape, table.schema.actions[0]
    (2000, (2000, 3), 'purchase')
    """

    x: Ids  # (N, F)
    click_ts: Ints  # (N,)
    click_id: Ints  # (N,)
    action_ts: Ints  # (N, K), NEVER when absent
    schema: Schema
    counts: dict[str, int] = field(default_factory=dict)
    truth: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    refund_ts: Ints | None = None  # (N, turns): NEVER where it stands; see `TURNS`
    late_known_ts: Ints | None = None  # (N, K), when each action became known, if not as it happened
    late_arrival_ts: Ints | None = None  # (N,), the same of each click

    def __len__(self) -> int:
        return len(self.click_ts)

    @property
    def known_ts(self) -> Ints:
        """When each action became known."""
        return self.action_ts if self.late_known_ts is None else self.late_known_ts

    @property
    def arrival_ts(self) -> Ints:
        """When each click became known."""
        return self.click_ts if self.late_arrival_ts is None else self.late_arrival_ts

    def rows_between(self, start: int, end: int) -> tuple[int, int]:
        first, last = np.searchsorted(self.arrival_ts, (start, end))
        return int(first), int(last)

    @cached_property
    def label(self) -> npt.NDArray[np.bool_]:
        """The final label of each click: converted within d_max, and not taken back within it."""
        at = self.action_ts[:, 0]
        converted: npt.NDArray[np.bool_] = (at != NEVER) & (at - self.click_ts <= self.schema.d_max)
        if self.refund_ts is not None:
            converted &= ~is_taken_back(self.refund_ts, self.click_ts + self.schema.d_max)
        return converted

    def weight(self, row: Ints, outages: Outages = ()) -> npt.NDArray[np.float64] | None:
        """What each click counts when predictions are judged; 0 if an outage hides its outcome, None if all count 1."""
        weight = population_weight(self.label[row], self.schema.negatives_kept)
        click_ts = self.click_ts[row]
        hidden = hides(outages, click_ts, click_ts + self.schema.d_max)
        return np.where(hidden, 0.0, 1.0 if weight is None else weight) if hidden.any() else weight

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Every column that a learner can see."""
        return {name: column for name in _COLUMNS if (column := getattr(self, name)) is not None}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the schema and every column a learner can see."""
        return column_files.fingerprint(self.schema.text, map(column_files.contents, self.columns.values()))

    @classmethod
    def assemble(cls, columns: column_files.ColumnFiles, schema: Schema, counts: dict[str, int]) -> ClickTable:
        """The table of columns that were appended block by block."""
        whole = columns.finish()
        ours = {name: whole.pop(name) for name in _COLUMNS if name in whole}
        truth = {name.removeprefix(TRUTH_PREFIX): column for name, column in whole.items()}
        contents = (column_files.read_contents(columns.files[name]) for name in ours)
        table = cls(**ours, schema=schema, counts=counts, truth=truth)
        return table._with_fingerprint(column_files.fingerprint(schema.text, contents))

    def write_columns(self, folder: Path) -> None:
        truth = {f"{TRUTH_PREFIX}{name}": column for name, column in self.truth.items()}
        with Scratch(folder) as scratch:
            files = column_files.ColumnFiles(scratch, folder)
            files.append(self.columns | truth)
            files.finish()

    def describe(self, folder: Path, facts: dict[str, Any] | None = None) -> None:
        """Write what makes a directory of columns a table."""
        manifest = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "clicks": len(self),
            "counts": self.counts,
            "truth": list(self.truth),
            "schema": self.schema.to_json(),
        }
        write_json(folder / "table.json", manifest | (facts or {}))

    @classmethod
    def load(cls, path: Path) -> ClickTable:
        """Memory-map a saved table, once its columns are known to be those that were written."""
        manifest = read_manifest(path)
        # An optional column that is lost is noticed, too: the fingerprint is another without it.
        files = {name: path / f"{name}.npy" for name in _COLUMNS}
        files = {name: file for name, file in files.items() if name in LEARNER_COLUMNS or file.exists()}
        columns = {name: column_files.map_column(file) for name, file in files.items()}
        truth = {name: column_files.map_column(path / f"{TRUTH_PREFIX}{name}.npy") for name in manifest["truth"]}
        schema = Schema.from_json(manifest["schema"])
        with ExitStack() as stack:
            contents = (column_files.read_contents(stack.enter_context(file.open("rb"))) for file in files.values())
            fingerprint = column_files.fingerprint(schema.text, contents)
        if fingerprint != manifest["fingerprint"]:
            raise UserError(f"{path}: the columns are not those that were written; prepare the table again")
        return cls(**columns, schema=schema, counts=manifest["counts"], truth=truth)._with_fingerprint(fingerprint)

    def _with_fingerprint(self, fingerprint: str) -> ClickTable:
        """This table with a fingerprint that was found by reading files: reading maps would fill the memory."""
        self.__dict__["fingerprint"] = fingerprint
        return self

    @staticmethod
    def exists(path: Path) -> bool:
        return (path / "table.json").is_file()


def is_taken_back(refund_ts: Ints, by: Ints) -> npt.NDArray[np.bool_]:
    """Whether each conversion has been taken back by a moment and none has come since: an odd number of turns."""
    return np.asarray((refund_ts <= by[:, None]).sum(axis=1) % 2 == 1)


def read_manifest(path: Path) -> dict[str, Any]:
    """What `table.json` says of a saved table."""
    manifest = read_json(path / "table.json")
    needed = {"format", "fingerprint", "counts", "truth", "schema"}
    if not isinstance(manifest, dict) or needed - set(manifest) or manifest["format"] != _FORMAT:
        raise UserError(f"{path / 'table.json'}: not a table of format {_FORMAT}; prepare the log again")
    return manifest


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A directory that becomes `path` when all is written and flushed to disk, and is removed if it never is."""
    if path.exists():
        raise UserError(f"{path} exists already: choose another place, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        folder.mkdir()
        yield folder
        for file in folder.iterdir():
            sync(file)
        folder.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
