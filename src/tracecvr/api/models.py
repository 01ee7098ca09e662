"""A trained model: probabilities of clicks from their raw features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from tracecvr.api.own_tables import Duration, Table, collect, seconds
from tracecvr.base.config import refuse_unknown
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import probability
from tracecvr.data.encoder import Encoder
from tracecvr.data.table import NEVER, Ints, atomic_directory
from tracecvr.learn.engine import Engine
from tracecvr.runs import run
from tracecvr.stream.reveal import reveal

Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Model:
    """A model that a replay left, or that `load` opened.

    Examples
    --------
    >>> from tracecvr.api.logs import dataset
    >>> from tracecvr.api.replays import replay
    >>> log = dataset("synthetic", clicks=2000)
    >>> model = replay(log, "vanilla", progress=False, hidden=[8], warm_epochs=1).model
    >>> model.features
    ('segment', 'device', 'item')
    >>> model.predict([{"segment": 3, "device": 1, "item": 42}]).shape
    (1,)
    """

    engine: Engine
    encoder: Encoder
    source: dict[str, Any] = field(default_factory=lambda: {"kind": "run"}, repr=False)
    """What it was taken from: a run, or the version of a live model."""

    def __post_init__(self) -> None:
        if self.encoder.features != self.engine.schema.features:
            raise UserError("the encoder's features are not the model's: the directory holds files of two logs")

    @property
    def features(self) -> tuple[str, ...]:
        """Raw columns that it reads."""
        return tuple(dict.fromkeys(column.raw for column in self.encoder.columns))

    @property
    def actions(self) -> tuple[str, ...]:
        """What may follow a click, the conversion first."""
        return self.engine.schema.actions

    def predict(self, clicks: Table) -> Probabilities:
        """P(conversion within d_max) of each click, as it would be served at the click.

        Parameters
        ----------
        clicks
            Rows with the raw features of the log: a DataFrame (pandas, polars), a pyarrow table, or a list of
            dictionaries. A missing value is allowed, a missing column is not.
        """
        return probability(self.log_odds(clicks))

    def log_odds(self, clicks: Table) -> npt.NDArray[np.float32]:
        """The same as log-odds."""
        return self.engine.score(torch.from_numpy(self._ids(collect(clicks, "clicks"))))

    def posterior(
        self, clicks: Table, age: Duration | Sequence[Any] | pl.Series, actions: Mapping[str, str] | None = None
    ) -> Probabilities:
        """P(conversion within d_max) of each click, given what has followed it so far; 1 where it has converted.

        Parameters
        ----------
        clicks
            Rows with the raw features, and with a column for each action that says how long after the click it
            happened: seconds or durations, null if it has not. What is later than `age` is not known yet.
        age
            How long ago the clicks were (`"2h"`, seconds, a timedelta), or a sequence or column with the age of each.
        actions
            Columns by action; by default each is named like its action. `{}` if nothing has happened to any click yet.
        """
        rows = collect(clicks, "clicks")
        columns = self._action_columns(rows, actions)
        given = [seconds(age, "age")] * len(rows) if isinstance(age, str | int | float | timedelta) else age
        clock = _seconds(pl.Series("age", given))
        if len(clock) != len(rows) or (clock == NEVER).any():
            raise UserError(f"posterior: give the age of every click: {len(rows)} clicks, {len(clock)} ages")
        action = np.full((len(rows), len(self.actions)), NEVER)
        for place, name in enumerate(self.actions):
            if name in columns:
                action[:, place] = _seconds(rows[columns[name]])
        click, d_max = np.zeros(len(rows), np.int64), self.engine.schema.d_max
        events = reveal(self._ids(rows), click, action, action, clock, d_max, np.arange(len(rows)))
        known = probability(self.engine.posterior_log_odds(events))
        return np.where(events.converted.numpy(), 1.0, known)

    def save(self, path: str | Path) -> Path:
        """Write the model to a new directory, from which `load` and `tracecvr export` read it."""
        with atomic_directory(Path(path)) as folder:
            run.save_model(self.engine, folder)
            self.encoder.save(folder / "encoder.json")
        return Path(path)

    def export(self, path: str | Path) -> dict[str, Any]:
        """Write the model as ONNX, for systems without this package, checked; returns the manifest."""
        from tracecvr.export.write import export

        return export(self.engine, self.encoder, self.source, Path(path))

    def __repr__(self) -> str:
        return f"Model({self.engine.method.name}, features={', '.join(self.features)})"

    def _ids(self, rows: pl.DataFrame) -> npt.NDArray[np.int32]:
        self.encoder.check(rows)
        cleaned = {c.raw: c.clean(pl.col(c.raw), rows.schema[c.raw]).alias(c.raw) for c in self.encoder.columns}
        return self.encoder.encode(rows.select(cleaned.values()))

    def _action_columns(self, rows: pl.DataFrame, given: Mapping[str, str] | None) -> Mapping[str, str]:
        refuse_unknown(given or (), self.actions, "actions", "action")
        columns = {name: name for name in self.actions} if given is None else given
        for name, column in columns.items():
            if column not in rows.columns:
                raise UserError(
                    f"posterior: column {column!r} is missing, which tells when {name!r} happened; name another with "
                    f"actions={{{name!r}: COLUMN}}, or give actions={{}} if nothing has happened yet"
                )
        return columns


def _seconds(values: pl.Series) -> Ints:
    """Whole seconds of durations or numbers, NEVER where there is none."""
    if isinstance(values.dtype, pl.Duration):
        values = values.dt.total_seconds()
    elif not (values.dtype.is_numeric() or values.dtype == pl.Null):
        raise UserError(f"posterior: {values.name}: expected seconds or durations, found {values.dtype}")
    return values.cast(pl.Int64, strict=False).fill_null(NEVER).to_numpy().copy()


def load(path: str | Path) -> Model:
    """Open a model: one that `Model.save` wrote, or that of a run, or the one that a live model serves."""
    folder = Path(path)
    if (folder / "store.json").is_file():
        return _open_served(folder)
    engine = run.load(folder)
    if not (folder / "encoder.json").exists():
        raise UserError(f"{folder}: the run is not finished; go on with `tracecvr run ... --resume`, then export it")
    return Model(engine, Encoder.load(folder / "encoder.json"))


def _open_served(folder: Path) -> Model:
    try:
        from tracecvr.online.store.store import Store
    except ImportError:
        raise UserError("the live learner is an extra: pip install 'tracecvr[online]'") from None
    store = Store.open(folder)
    number, engine = store.versions.serving(), store.engine()
    if number is None:
        raise UserError(f"{folder} has no version yet: learn one with `tracecvr tick {folder}`")
    manifest = next(one for one in store.versions.manifests() if one["intervals"] == number)
    store.versions.restore(engine, manifest)
    return Model(engine, store.reader.encoder, {"kind": "store", "version": number})
