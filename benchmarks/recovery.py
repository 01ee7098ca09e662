"""Recovery on known truth: each method's expected NLL gap to the true p(x, t) on a log with strong delay and drift.

    python benchmarks/recovery.py                        # every method, five seeds: each a log and a start of its own
    python benchmarks/recovery.py --methods trace,wait --seeds 2

The gap is the mean divergence KL(p(x, t) || served rate) over the stream, so no label noise is in it. Theory demands an
order: Oracle first, and the methods that take "not yet" for "no" after the unbiased ones.
"""

from __future__ import annotations

import argparse
import multiprocessing
from statistics import mean, stdev

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.metrics import probability
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.learn.engine import Engine
from tracecvr.runs.replay import Plan, replay
from tracecvr.stream.source import TableSource

CLICKS = 120_000
SMALL = {"hidden": (64, 32), "batch_size": 512, "learning_rate": 2e-3}


def gap(method: str, seed: int, clicks: int = CLICKS, plugin: str | None = None) -> tuple[float, float]:
    """The mean divergence from the truth over the stream, and served rate over true rate."""
    torch.set_num_threads(1)
    table, _ = Synthetic(clicks=clicks, log_seed=seed, interval=2 * HOUR, drift=1.5).prepare(None)
    plan, source = Plan(until=24 * DAY).resolve(table), TableSource(table)
    plugins = () if plugin is None else (registry.get("plugin", plugin)(),)
    engine = Engine(registry.get("method", method)(**SMALL), table.schema, seed, plugins)
    engine.warm_up(source.history(plan.split, plan.warm_labels))
    done = list(replay(engine, source, plan))
    truth = table.truth["p"][np.concatenate([d.row for d in done])]
    served = np.clip(probability(np.concatenate([d.log_odds for d in done])), 1e-7, 1 - 1e-7)
    divergence = truth * np.log(truth / served) + (1 - truth) * np.log((1 - truth) / (1 - served))
    return float(divergence.mean()), float(served.mean() / truth.mean())


def _cell(cell: tuple[str, int, int]) -> tuple[str, float, float]:
    method, seed, clicks = cell
    return method, *gap(method, seed, clicks)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", default=",".join(registry.available("method")))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clicks", type=int, default=CLICKS)
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    given = parser.parse_args()
    cells = [(m, seed, given.clicks) for seed in range(given.seeds) for m in given.methods.split(",")]
    by_method: dict[str, list[tuple[float, float]]] = {m: [] for m in given.methods.split(",")}
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for method, nll_gap, ratio in track(pool.imap_unordered(_cell, cells), "runs", total=len(cells)):
            by_method[method].append((nll_gap, ratio))
    table = Table(
        "method", "NLL gap", "± sd", "served / true rate", title=f"{given.seeds} seeds, {given.clicks:,} clicks"
    )
    for method, runs in sorted(by_method.items(), key=lambda item: mean(gap for gap, _ in item[1])):
        gaps, ratios = zip(*runs, strict=True)
        spread = stdev(gaps) if len(gaps) > 1 else 0.0
        table.add_row(method, f"{mean(gaps):.5f}", f"{spread:.5f}", f"{mean(ratios):.3f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
