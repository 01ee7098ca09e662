"""What is checked (a method, with or without a plugin) and the small worlds it is checked in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tracecvr.authoring.method import Method
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.data.table import NEVER, ClickTable, Feature, Schema
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.learn.engine import Engine
from tracecvr.runs.replay import FullPlan, Plan
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import TableSource


class NotApplicable(Exception):  # noqa: N818  (not an error: the promise does not apply)
    """The check promises nothing for this subject; the message says why."""


@dataclass(frozen=True)
class Subject:
    """A method by name, with at most one plugin."""

    method: str
    plugin: str | None = None

    @property
    def name(self) -> str:
        return self.method if self.plugin is None else f"{self.method}+{self.plugin}"

    def takes(self, plugin: str) -> bool:
        """Whether the method does not contain the plugin already."""
        return plugin not in registry.get("method", self.method).contains  # type: ignore[attr-defined]

    def expected_failures(self) -> dict[str, str]:
        """Checks that must fail, and why."""
        privileged = registry.get("method", self.method).privileged  # type: ignore[attr-defined]
        return {"no_future": "privileged: it is given labels before they are known"} if privileged else {}

    def engine(self, schema: Schema, publish_lag: int = 0, **options: Any) -> Engine:
        # One pass in batches of the same size: what a small log would get by default takes too long for so many checks.
        small = {"hidden": (16, 8), "batch_size": 256, "warm_epochs": 1, "warm_batch_size": 256}
        method = registry.get("method", self.method)(**(small | options))
        plugins = () if self.plugin is None else (registry.get("plugin", self.plugin)(),)
        return Engine(method, schema, seed=1, plugins=plugins, publish_lag=publish_lag)

    def warmed(self, table: ClickTable, plan: FullPlan, **options: Any) -> tuple[Engine, TableSource]:
        """A new engine after warm-up, and the source to go on with."""
        engine, source = self.engine(table.schema, plan.publish_lag, **options), TableSource(table)
        engine.warm_up(source.history(plan.split, plan.warm_labels))
        return engine, source


@cache
def small_log(clicks: int = 3000) -> ClickTable:
    """A synthetic log of six days with delays of up to two."""
    horizons = (15 * MINUTE, HOUR, 6 * HOUR, DAY, 2 * DAY)
    log = Synthetic(clicks=clicks, days=6, split=3 * DAY, d_max=2 * DAY, horizons=horizons, interval=6 * HOUR)
    return log.prepare(None)[0]


def plan_for(table: ClickTable, warm_labels: str = "censored") -> FullPlan:
    """The whole stream of a small log; warm-up labels as known at the split unless told otherwise."""
    return Plan(warm_labels=warm_labels).resolve(table)


@dataclass(frozen=True)
class KnownLaw:
    """One kind of click in exact proportions: of 1,000 clicks, so many convert after so many seconds. The events of a
    schedule over all of them are a law's event masses, without sampling. By default p = 0.2 and pi_dp = 0.12."""

    conversions: tuple[tuple[int, int], ...] = ((HOUR // 2, 80), (2 * HOUR, 120))
    horizons: tuple[int, ...] = (HOUR // 4, HOUR, DAY)
    window: int = HOUR
    clicks: int = 1000

    @property
    def p(self) -> float:
        return self._share(self.schema.d_max)

    @property
    def delayed(self) -> float:
        """pi_dp, the mass of conversions after the window."""
        return self.p - self._share(self.window)

    def _share(self, by: int) -> float:
        return sum(n for delay, n in self.conversions if delay <= by) / self.clicks

    @property
    def schema(self) -> Schema:
        return Schema(
            dataset="cell",
            features=(Feature("cell", 1, "cell"),),
            actions=("conversion",),
            horizons=self.horizons,
            d_max=self.horizons[-1],
            split=1,
            interval=HOUR,
            observed_until=10 * self.horizons[-1],
            window=self.window,
        )

    def source(self, click_ts: int = 0) -> TableSource:
        action_ts = np.full(self.clicks, NEVER)
        delay = np.repeat([d for d, _ in self.conversions], [n for _, n in self.conversions])
        action_ts[: len(delay)] = click_ts + delay
        table = ClickTable(
            x=np.zeros((self.clicks, 1), np.int32),
            click_ts=np.full(self.clicks, click_ts),
            click_id=np.arange(self.clicks),
            action_ts=action_ts[:, None],
            schema=self.schema,
        )
        return TableSource(table)

    def engine(self, subject: Subject, logit: float = 0.0, clip: float = 1e-5, **options: Any) -> Engine:
        engine = subject.engine(self.schema, **options)
        method = engine.method
        exact = self.helpers(clip)
        if type(method).build is not Method.build:
            raise NotApplicable("its served net is more than a backbone: it has tests of its own")
        if unknown := set(method.helpers()) - set(exact):
            raise NotApplicable(f"no exact form of helper {min(unknown)!r} is known")
        method.nets["main"] = Constant([logit] * method.heads())
        for name in method.helpers():
            method.nets[name] = exact[name]
        earlier = self.source(-1).history(0, "mature", -1)  # not the clicks of the stream: these are new to the method
        method.observe(next(earlier.batches(self.clicks, None)))
        return engine

    def helpers(self, clip: float) -> dict[str, nn.Module]:
        """Helper nets of a known law by name; each answers what the helper of that name estimates."""
        waiting = 1 - self.p + self.delayed
        return {
            "trajectory": Exact(self.states().double().clamp(clip, 1 - clip)),
            "delay": Exact([self.delayed, (1 - self.p) / waiting]),  # pi_dp and rho, columns of one net
            "observed": Exact((self.p - self.delayed) / self.p),  # P(converted by w | y = 1)
            "negative": Exact((1 - self.p) / waiting),  # P(y = 0 | not converted by w)
            "later": Exact(self.delayed / waiting),  # P(y = 1 | not converted by w)
        }

    def states(self) -> Tensor:
        """P(converted by each horizon | y): (2, H, 1)."""
        given_conversion = [self._share(end) / self.p for end in self.horizons]
        return torch.tensor([[0.0] * len(self.horizons), given_conversion])[:, :, None]

    def events(self, engine: Engine) -> Reveals:
        return engine.events(self.source(), 0, 10 * self.schema.d_max)


class Constant(nn.Module):
    """A served net whose outputs are the same whatever the features."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(logits))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), -1)


class Exact(nn.Module):
    """A helper that knows: logits of given probabilities, the same for all events: (B,), (B, J) or (B, ...)."""

    def __init__(self, probability: float | list[float] | Tensor) -> None:
        super().__init__()
        self.logits = torch.logit(torch.as_tensor(probability, dtype=torch.float64)).float()

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return self.logits.expand(len(x), *self.logits.shape)
