"""Stores of live models on a small synthetic log: how to make them, feed them and hold them against a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.online.dataset_events import events_of
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.learner.live_metrics import Predictions
from tracecvr.online.store.store import Settings, Store
from tracecvr.runs.spec import dataset_of
from tracecvr.stream.source import TableSource

OPTIONS = {
    "clicks": "2500",
    "days": "7",
    "split": "3d",
    "d_max": "1d",
    "horizons": "1h,6h,1d",
    "interval": "3h",
    "observed_until": "7d",
}
SMALL: dict[str, Any] = {"hidden": (16, 8), "batch_size": 128, "warm_epochs": 1, "warm_batch_size": 128}


def dataset() -> Dataset:
    return dataset_of("synthetic", [f"{key}={value}" for key, value in OPTIONS.items()])


@cache
def the_events() -> tuple[dict[str, Any], ...]:
    chosen = dataset()
    return tuple(events_of(chosen, None, chosen.split, 100 * DAY))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "base"
    prepared.prepare_to(path, dataset(), None)
    return path


@pytest.fixture(scope="module")
def hourly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in intervals of an hour: old clicks are forgotten before it ends."""
    path = tmp_path_factory.mktemp("hourly") / "base"
    prepared.prepare_to(path, replace(dataset(), interval=HOUR), None)
    return path


Made = Callable[..., Store]


@pytest.fixture
def made(base: Path, tmp_path: Path) -> Made:
    def make(method: str = "trace", settings: Settings | None = None, log: Path = base, **options: Any) -> Store:
        chosen = registry.get("method", method)(**SMALL | options)
        return Store.create(tmp_path / "store", log, chosen, (), settings or Settings(lateness=HOUR))

    return make


def send(store: Store, events: Sequence[dict[str, Any]], size: int = 100) -> None:
    log = store.log()
    for first in range(0, len(events), size):
        log.append([store.reader.read(event) for event in events[first : first + size]])
    log.close()


def finish(store: Store) -> None:
    """Close what is over when everything was sent."""
    store.log().close_until(int(store.base.click_ts[-1]))


def learnt(store: Store) -> tuple[str, int]:
    """Learn all that is closed; the hash of the state, and the number of intervals."""
    with open_learner(store) as learner:
        while learner.tick() is not None:
            pass
        return learner.engine.fingerprint(), learner.ledger.done


def predicted(store: Store) -> bytes:
    """What a model predicted of all clicks before it learnt them."""
    log_odds = Predictions(store.log(), store.model).of(np.arange(1 << 20))
    return log_odds[~np.isnan(log_odds)].tobytes()


def replayed(store: Store, table: Path | None = None, intervals: int | None = None) -> str:
    """The same offline, from the table."""
    log = store.base if table is None else prepared.load(table).table
    engine, source = store.engine(), TableSource(log)
    engine.warm_up(source.history(store.schema.split, store.settings.warm_labels))
    count = store.log().closed() if intervals is None else intervals
    for number in range(count):
        engine.tick(source, *store.grid.bounds(number))
    return engine.fingerprint()
