"""What is memorised: how much better a model judges clicks that it was shown than it did when they were new.

    python benchmarks/memorisation.py --data criteo_search --source data oracle oracle:passes=6

A method is NAME[+PLUGIN...][:KEY=VALUE,...]. Clicks of an interval are scored before anything is known of them, and
again when they are older, with the model of that moment. Every model is better then, since it has learnt from their
time; what one gains over another is what it knows of these very clicks, and that helps with no new one.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.durations import duration
from tracecvr.base.metrics import Metrics, evaluate
from tracecvr.base.progress import no_progress
from tracecvr.bench import stats
from tracecvr.learn.engine import Engine
from tracecvr.runs.replay import replay
from tracecvr.runs.spec import spec_of
from tracecvr.stream.source import TableSource

AGES = (HOUR, DAY, 7 * DAY)
METRICS = ("auc", "nll")


@dataclass(frozen=True)
class Again:
    """Clicks of one interval, judged when they were new and now."""

    age: int
    start: int
    clicks: int
    new: Metrics
    now: Metrics


Gains = dict[tuple[int, str], tuple[float, stats.Difference | None]]
"""By age and metric: the figure of the clicks when they were new, and what it is later minus that."""


def gains(name: str, data: str, source: Path | None, days: int, every: int = 6, options: tuple[str, ...] = ()) -> Gains:
    """Of one method, over the first days of the stream; in every so many intervals older clicks are scored again."""
    torch.set_num_threads(1)
    parts, _, settings = name.partition(":")
    method, *plugins = parts.split("+")
    spec = spec_of(
        method, plugins, data, source, dict(one.split("=", 1) for one in settings.split(",") if one), options
    )
    table = spec.open_log(no_progress).table
    plan, stream = spec.plan.resolve(table), TableSource(table)
    plan = replace(plan, until=min(plan.until, plan.split + days * DAY))
    engine = Engine(spec.method, table.schema, spec.seed, spec.plugins, plan.publish_lag)
    engine.warm_up(stream.history(plan.split, plan.warm_labels))
    new, rescored = [], list[Again]()
    for done in replay(engine, stream, plan):
        new.append(done.log_odds)
        for age in AGES if done.number % every == 0 else ():
            before = done.number - age // plan.interval - 1  # all of its clicks are that old
            if before >= 0 and len(new[before]):
                start, end = plan.bounds(before)
                clicks = stream.clicks(start, min(end, plan.until))
                label = table.label[clicks.row]
                first, now = evaluate(new[before], label), evaluate(engine.score(clicks.x), label)
                rescored.append(Again(age, done.start, len(label), first, now))
    return {(age, m): _gain([one for one in rescored if one.age == age], m) for age in AGES for m in METRICS}


def _gain(rescored: list[Again], metric: str) -> tuple[float, stats.Difference | None]:
    known = [one for one in rescored if getattr(one.new, metric) is not None]
    if not known:
        return np.nan, None
    new, now = (np.array([getattr(getattr(one, when), metric) for one in known]) for when in ("new", "now"))
    start, clicks = np.array([one.start for one in known]), np.array([float(one.clicks) for one in known])
    return float(np.average(new, weights=clicks)), stats.over_days(start, clicks, now, new)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("methods", nargs="+", metavar="METHOD")
    parser.add_argument("--data", default="synthetic")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--days", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    given = parser.parse_args()
    shown = Table("method", "age", *(text for m in METRICS for text in (f"{m.upper()} when new", "change by then")))
    measure = partial(gains, data=given.data, source=given.source, days=given.days)
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for name, measured in zip(given.methods, pool.map(measure, given.methods, chunksize=1), strict=True):
            for age in AGES:
                shown.add_row(name, duration(age), *(text for m in METRICS for text in _texts(*measured[age, m])))
    Console(width=120).print(shown)


def _texts(new: float, gain: stats.Difference | None) -> tuple[str, str]:
    change = "too few days" if gain is None else f"{gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
    return "n/a" if np.isnan(new) else f"{new:.4f}", change


if __name__ == "__main__":
    main()
