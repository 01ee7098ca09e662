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

from tracecvr.api.logs import Log
from tracecvr.api.own_tables import Duration, Table, collect, seconds
from tracecvr.base.config import refuse_missing, refuse_unknown
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import evaluate, probability
from tracecvr.data.encoder import Encoder
from tracecvr.data.own_log import times
from tracecvr.data.own_log.schema import Times
from tracecvr.data.table import NEVER, Ints, atomic_directory
from tracecvr.forecast.cells import Outcomes, count
from tracecvr.forecast.forecast import forecast
from tracecvr.learn.engine import Engine
from tracecvr.runs import run
from tracecvr.stream.reveal import reveal

_MOST_OTHERS = 100
"""Rows of a background that are used."""

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
        known = probability(self.engine.posterior(events))
        return np.where(events.converted.numpy(), 1.0, known)

    def effects(self, clicks: Table, background: Table = None) -> pl.DataFrame:
        """Why these scores: of each click, how much each feature adds to the log-odds.

        That is the log-odds less those without the feature. Without it means: as a missing value; or, with `background`
        (rows of other clicks, 50 are enough), the mean over the values that those have. Effects need not add up to the
        score: features work together.
        """
        rows = collect(clicks, "clicks")
        ids = self._ids(rows)
        nothing = pl.DataFrame({name: [None] for name in self.features}, rows.select(self.features).schema)
        others = self._ids(nothing if background is None else collect(background, "background")[:_MOST_OTHERS])
        whole = self.engine.score(torch.from_numpy(ids))
        effects = {}
        for name, columns in self._columns.items():
            without = np.zeros(len(ids))
            for other in others:
                changed = ids.copy()
                changed[:, columns] = other[columns]
                without += self.engine.score(torch.from_numpy(changed)) / len(others)
            effects[name] = whole - without
        return pl.DataFrame(effects)

    def importance(self, log: Log, clicks: int = 20_000, seed: int = 0) -> pl.DataFrame:
        """Which features matter: what NLL and AUC lose if the values of a feature are shuffled among clicks.

        Taken are the newest clicks of the stream with final labels. The model has learnt from them, once, so a feature
        with a value of its own in nearly every click looks better than it is.
        """
        table = log.table
        if table.schema.features != self.engine.schema.features:
            raise UserError("importance: this log has other features than the model's; give the log that it has learnt")
        last = table.schema.observed_until - table.schema.d_max
        final = np.flatnonzero((table.click_ts >= table.schema.split) & (table.click_ts <= last))[-clicks:]
        if not len(final):
            raise UserError("importance: no click of the stream has a final label; give a longer log")
        ids, label = np.array(table.x[final]), table.label[final]
        weight = np.where(label, 1.0, 1 / table.schema.negatives_kept)
        whole, rng = evaluate(self.engine.score(torch.from_numpy(ids)), label, weight), np.random.default_rng(seed)
        losses = []
        for name, columns in self._columns.items():
            shuffled = ids.copy()
            shuffled[:, columns] = ids[rng.permutation(len(ids))][:, columns]
            one = evaluate(self.engine.score(torch.from_numpy(shuffled)), label, weight)
            auc = None if whole.auc is None or one.auc is None else whole.auc - one.auc
            losses.append({"feature": name, "nll": one.nll - whole.nll, "auc": auc})
        return pl.DataFrame(losses).sort("nll", descending=True)

    @property
    def _columns(self) -> dict[str, list[int]]:
        """Places of the ids of each raw column."""
        raw = [column.raw for column in self.encoder.columns]
        return {name: [place for place, one in enumerate(raw) if one == name] for name in self.features}

    def forecast(
        self,
        clicks: Table,
        by: str | None = None,
        at: Any = None,
        *,
        click_time: str = "click_time",
        conversion_time: str | None = None,
        level: float = 0.9,
        days: int | None = None,
    ) -> pl.DataFrame:
        """How many conversions the clicks of each day will have in the end, as `Result.forecast` has it.

        Parameters
        ----------
        clicks
            Rows with the raw features, the time of the click and that of the conversion: of some weeks more than d_max,
            since development and rates are counted in them.
        by
            A column of `clicks`: a row for each of its values and each day. All clicks together without it.
        at
            The moment, like the values of `click_time`; what comes later is not used. The last click by default.
        click_time, conversion_time
            The columns of these times; the latter is named like the conversion by default.
        level
            The share of intervals, from `low` to `high`, that are to hold the final number.
        days
            How many of the last days; all that are open by default.
        """
        rows = collect(clicks, "clicks")
        name = self.actions[0] if conversion_time is None else conversion_time
        refuse_missing([click_time, name] if by is None else [click_time, name, by], rows.columns, "forecast")
        if rows[click_time].null_count():
            raise UserError(f"forecast: column {click_time!r} has missing values; every click needs a time")
        click = _seconds(rows[click_time])
        moment = int(click.max(initial=0)) + 1 if at is None else int(_seconds(pl.Series([at]))[0])
        known = click < moment
        rows, click, d_max = rows.filter(pl.Series(known)), click[known], self.engine.schema.d_max
        if rows.is_empty():
            raise UserError(f"forecast: no click before at = {at}")
        done = _seconds(rows[name])
        values = pl.Series("by", ["all"] * len(rows)) if by is None else rows[by].cast(pl.String).fill_null("(missing)")
        present = values.unique().sort()
        segment = present.search_sorted(values).to_numpy().astype(np.int64)
        within = np.where((done >= click) & (done < moment) & (done - click <= d_max), done, NEVER)
        predicted = self.log_odds(rows) - np.float32(np.log(self.engine.schema.negatives_kept))
        cells = count(Outcomes(segment, click, click, within, predicted, d_max), len(present), moment)
        dated = rows.schema[click_time].is_temporal() or rows.schema[click_time] == pl.String
        return forecast(cells, dict(enumerate(present)), level, origin=0 if dated else None, days=days)

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
    """Whole seconds of times or durations, NEVER where there is none. Date-times without a zone are UTC."""
    kind, name = values.dtype, values.name or "at"
    if isinstance(kind, pl.Duration):
        values = values.dt.total_seconds()
    elif not (kind.is_numeric() or isinstance(kind, pl.Datetime) or kind in (pl.Date, pl.Null, pl.String)):
        raise UserError(f"{name}: expected times, durations or numbers, found {kind}")
    parsed = times.read(values, Times(), "text" if kind == pl.String else "s")
    if parsed.unreadable is not None:
        raise UserError(f"{name}: row {parsed.unreadable + 1}: {values[parsed.unreadable]!r} is no time")
    return parsed.seconds.fill_null(NEVER).to_numpy().copy()


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
