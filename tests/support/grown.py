"""A synthetic log whose items keep coming, in a column that grows, and engines that learn it."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.data.encoder import Column, Encoder, Growing, Modulo
from tracecvr.data.table import ClickTable
from tracecvr.datasets.synthetic import DEVICES, SEGMENTS, Synthetic
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.stream.source import TableSource

OPTIONS: dict[str, Any] = {
    "clicks": 3000,
    "days": 7,
    "split": 3 * DAY,
    "d_max": DAY,
    "horizons": (HOUR, 6 * HOUR, DAY),
    "interval": 6 * HOUR,
    "observed_until": 7 * DAY,
}
FORMS = {
    "adam": StreamLearning(optimiser="adam"),
    "lazy": StreamLearning(optimiser="lazy_adam", batch_size=64),
    "rows": StreamLearning(optimiser="lazy_adam", average=None),
}
SMALL: dict[str, Any] = {"hidden": (16, 8), "batch_size": 256, "warm_epochs": 1, "warm_batch_size": 256}


class Grown(Synthetic):
    """The synthetic log, whose items keep coming: each has a row after two clicks, for two days without one."""

    name = "synthetic"
    forget = 2 * DAY

    def columns(self) -> tuple[Column, ...]:
        item = Growing("item", 700, after=2, forget=self.forget)
        return Modulo("segment", SEGMENTS), item, Modulo("device", DEVICES, one_hot=True)


@cache
def log() -> tuple[ClickTable, Encoder]:
    return Grown(**OPTIONS).prepare(None)


def warmed(method: str = "vanilla", form: str = "lazy", publish_lag: int = 0) -> tuple[Engine, TableSource]:
    table, source = log()[0], TableSource(log()[0])
    engine = Engine(
        registry.get("method", method)(**SMALL), table.schema, 1, publish_lag=publish_lag, stream=FORMS[form]
    )
    engine.warm_up(source.history(table.schema.split, "censored"))
    return engine, source


def key_of(x: Tensor) -> Tensor:
    return x[:, 2].long() << 31 | x[:, 1].long()
