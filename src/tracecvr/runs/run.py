"""One run in one directory: replay a log with one method, write the result, resume after a crash.

run.json         what this run is; a second run of another kind is refused
checkpoint/      the newest state, so that `--resume` goes on to the same bytes
result.json      metrics, cost, configuration, versions; cost is of the whole stream, metrics are of the clicks judged
intervals.parquet  metrics of each interval; like the next, only of clicks that count (the plan's `judge_from`)
scores.parquet   of each click its id as the log has it, its time, the probability that was served, the same as
                 log-odds, and the final label
not_judged.parquet  log-odds that were served before `judge_from`, for forecasts; absent if there are none
encoder.json     how raw features become ids
raw_log.json     the dataset and its raw log, for commands that go on from the run (and its schema.toml, if it has one)
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from tracecvr.authoring.method import Method, Plugin
from tracecvr.base import metrics, registry
from tracecvr.base.config import restore, values
from tracecvr.base.durations import moment
from tracecvr.base.errors import UserError
from tracecvr.base.files import locked, read_json, refuse_other_format, sync, write_json, write_parquet
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.encoder import value_names
from tracecvr.data.prepared import Prepared
from tracecvr.data.table import Schema
from tracecvr.learn.checkpoint import Checkpoints
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.learn.warm_up import batch_that_fits
from tracecvr.learn.warm_up_cache import WarmUpCache
from tracecvr.monitor.monitor import Monitor, segment_feature
from tracecvr.runs import reference_models
from tracecvr.runs.intervals import OnInterval, by_interval, finish_interval, interval_edges
from tracecvr.runs.replay import Plan, replay
from tracecvr.stream.source import TableSource

FORMAT = 1
"""Of `run.json` and `result.json`."""


@dataclass(frozen=True)
class Spec:
    """What to run. `open_log` is called only when the log is needed; `source` tells the file from others cheaply."""

    method: Method
    plugins: tuple[Plugin, ...]
    data: str
    data_options: dict[str, Any]
    open_log: Callable[[Progress], Prepared]
    plan: Plan
    seed: int
    threads: int | None
    """None for the number that suits the log, or, in a run that is resumed, the one that it has had."""
    stream: StreamLearning = StreamLearning()
    source: dict[str, Any] | None = None
    keep_record: Callable[[Path], None] | None = None
    """Writes to a directory which raw log this is, for commands that go on from the run."""

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same."""
        parts = parts_record(self.method, self.plugins, self.stream)
        config = parts["config"] | {"plan": values(self.plan), "data": self.data_options}
        facts = {"format": FORMAT, "data": self.data, "seed": self.seed, "config": config}
        facts["tracecvr"] = version("tracecvr")
        return ({} if self.threads is None else {"threads": self.threads}) | parts | facts


def run(
    spec: Spec,
    out: Path,
    resume: bool = False,
    progress: Progress = no_progress,
    checkpoint_every: float = 30.0,
    shared: Path | None = None,
    on_interval: OnInterval | None = None,
) -> dict[str, Any]:
    """Carry out a run, or the rest of it, and return the content of `result.json`.

    `shared` is a directory of warm-ups to take from and add to. `on_interval` is called after each interval.
    """
    with claim(out, spec.identity(), resume):
        if (out / "result.json").exists():
            recorded = read_json(out / "run.json")
            if recorded["source"] != spec.source:  # perhaps only moved: what is in it decides
                refuse_other({"fingerprint": spec.open_log(progress).table.fingerprint}, recorded, str(out))
        else:
            ours = _Run(spec, out, progress, shared)
            ours.stream(checkpoint_every, on_interval)
            ours.finish()
        result: dict[str, Any] = read_json(out / "result.json")
        return result


def load(out: Path) -> Engine:
    """The model of a run as its newest checkpoint has it, on the processor: to score with, or to go on learning."""
    checkpoints = Checkpoints(out / "checkpoint")
    manifest = checkpoints.latest()
    if manifest is None:
        raise UserError(f"{out} holds no checkpoint: give the directory of a run")
    made = manifest["run"]
    method, plugins, stream = parts(made, "cpu")
    plan, schema = made["config"]["plan"], Schema.from_json(manifest["schema"])
    stream = stream.fit_to(plan.get("interval") or schema.interval)
    engine = Engine(method, schema, made["seed"], plugins, plan["publish_lag"], stream)
    checkpoints.restore(engine, manifest)
    return engine


def save_model(engine: Engine, folder: Path) -> None:
    """Write a model so that `load` opens it: what it serves and all that it needs to learn on."""
    given = engine.plugins[len(engine.method.plugins()) :]
    record = parts_record(engine.method, given, engine.stream)
    record["config"]["plan"] = {"publish_lag": engine.publish_lag}
    facts = {"run": record | {"seed": engine.seed}, "schema": engine.schema.to_json()}
    Checkpoints(folder / "checkpoint").save(engine, 0, facts)


def parts(recorded: Mapping[str, Any], device: str | None = None) -> tuple[Method, tuple[Plugin, ...], StreamLearning]:
    """The method, the plugins and the stream's learning that were recorded by name and options; with a device, for that
    one. What was loaded from a file is not loaded again: a record names no file that may be executed."""
    options = recorded["config"]
    for name in recorded.get("code", ()):
        kind = "method" if name == recorded["method"] else "plugin"
        if name not in registry.available(kind):
            raise UserError(
                f"{kind} {name!r} was loaded from a file, which is not done again: {registry.as_entry_point(kind)}"
            )
    method: Method = restore(registry.get("method", recorded["method"]), options["method"])
    plugins: tuple[Plugin, ...] = tuple(
        restore(registry.get("plugin", name), options["plugins"][name]) for name in recorded["plugins"]
    )
    stream = options["stream"] | ({} if device is None else {"device": device})
    return method, plugins, restore(StreamLearning, stream)


def parts_record(method: Method, plugins: Sequence[Plugin], stream: StreamLearning) -> dict[str, Any]:
    """What `parts` reads: names and options, and the hashes of files that methods and plugins were loaded from."""
    files = {part.name: registry.file_hash(part) for part in (method, *plugins)}
    code = {name: digest for name, digest in files.items() if digest is not None}
    return ({"code": code} if code else {}) | {
        "method": method.name,
        "plugins": [plugin.name for plugin in plugins],
        "config": {
            "method": values(method),
            "plugins": {plugin.name: values(plugin) for plugin in plugins},
            "stream": values(stream),
        },
    }


class _Run:
    """What a run has in hand: its log, its engine, its files and what they have cost so far."""

    def __init__(self, spec: Spec, out: Path, progress: Progress, shared: Path | None) -> None:
        self.spec, self.out, self.progress, self.shared = spec, out, progress, shared
        self.cost = dict.fromkeys(("prepare_s", "warm_up_s", "shared_warm_up_s", "stream_s", "peak_rss_mb"), 0.0)
        clock = time.monotonic()
        self.log = spec.open_log(progress)
        self.charge("prepare_s", clock)
        self.table, self.encoder = self.log.table, self.log.encoder
        self.plan = spec.plan.resolve(self.table)
        self.spec = spec = replace(spec, threads=spec.threads or self._choose_threads())
        torch.set_num_threads(spec.threads or 1)
        self.identity = spec.identity() | {"fingerprint": self.table.fingerprint}
        self.source = self._open_source()
        stream, lag = spec.stream.fit_to(self.plan.interval), self.plan.publish_lag
        self.engine = Engine(spec.method, self.table.schema, spec.seed, spec.plugins, lag, stream)
        by = self.plan.alarms_by
        position = segment_feature(self.table.schema, by)
        names = {} if position is None else value_names(self.encoder.columns[position])
        self.monitor = Monitor(self.table.schema, self.plan.interval, by, names, self.plan.outages)
        self.checkpoints = Checkpoints(out / "checkpoint")
        self.served = out / "scores.f32"

    def _choose_threads(self) -> int:
        if (self.out / "run.json").exists():
            return int(read_json(self.out / "run.json")["threads"])
        first, last = self.plan.stream_rows(self.table)
        return usual_threads(self.spec.method, self.spec.stream, first, (last - first) / len(self.plan))

    def _open_source(self) -> TableSource:
        source = TableSource(self.table)
        source.outages = self.plan.outages
        return source

    def stream(self, checkpoint_every: float, on_interval: OnInterval | None) -> None:
        """Go on from the newest checkpoint, or warm up. Replay the stream: write what is served, and a checkpoint every
        so many seconds."""
        done = self._restore()
        if done is None:
            self._warm_up()
        begin, end = self.plan.stream_rows(self.table)
        clock = saved = time.monotonic()
        clicks = self.served.stat().st_size // 4
        with self.served.open("ab") as served:
            for interval in replay(self.engine, self.source, self.plan, done or 0, self.monitor):
                served.write(interval.log_odds.tobytes())
                clicks += len(interval.row)
                self.progress("stream", clicks, end - begin)
                if time.monotonic() - saved >= checkpoint_every or interval.number + 1 == len(self.plan):
                    served.flush()
                    clock = self.charge("stream_s", clock)
                    self.checkpoint(interval.number + 1)
                    saved = time.monotonic()
                if on_interval is not None:
                    on_interval(finish_interval(interval, self.table, self.plan, self.log.origin))
        self.charge("stream_s", clock)

    def _restore(self) -> int | None:
        """Where the newest checkpoint left off, if there is one."""
        if (self.out / "run.json").exists():
            refuse_other_run(self.identity, self.out)
        manifest = self.checkpoints.latest()
        if manifest is None:
            return None
        self.checkpoints.restore(self.engine, manifest)
        self.cost |= manifest["cost"]
        self.monitor.load(manifest["monitor"])
        os.truncate(self.served, manifest["scored"] * 4)
        return int(manifest["intervals"])

    def _warm_up(self) -> None:
        """Learn from history, and begin the files of the stream."""
        clock = time.monotonic()
        history = self.source.history(self.plan.split, self.plan.warm_labels)
        if self.shared is None:
            self.engine.warm_up(history, self.progress)
        else:
            facts = {"split": self.plan.split, "labels": self.plan.warm_labels, "outages": self.plan.outages}
            taken = WarmUpCache(self.shared, facts | {"fingerprint": self.table.fingerprint})
            self.engine.warm_up(history, self.progress, taken)
            self.cost["shared_warm_up_s"] = taken.seconds
        self.monitor.start(self.source, self.plan.split)
        self.charge("warm_up_s", clock)
        self.served.write_bytes(b"")
        write_json(self.out / "run.json", self.identity | {"source": self.spec.source})
        self.checkpoint(0)

    def checkpoint(self, intervals: int) -> None:
        """Save the state after so many intervals."""
        sync(self.served)
        self.cost["peak_rss_mb"] = max(self.cost["peak_rss_mb"], _peak_rss_mb())
        facts = {"scored": self.served.stat().st_size // 4, "cost": self.cost, "monitor": self.monitor.state()}
        facts |= {"run": self.spec.identity(), "schema": self.table.schema.to_json()}
        self.checkpoints.save(self.engine, intervals, facts)

    def charge(self, what: str, since: float) -> float:
        """Add the time since a moment to a cost; returns the present moment."""
        now = time.monotonic()
        self.cost[what] += now - since
        return now

    def finish(self) -> None:
        """Evaluate what was served and write the results, `result.json` last."""
        table, plan, identity = self.table, self.plan, self.identity
        begin, _ = plan.stream_rows(table)
        first, last = plan.judged_rows(table)
        served = np.fromfile(self.served, dtype=np.float32)
        log_odds = served[first - begin :]
        label = np.asarray(table.label[first:last])
        weight = table.weight(np.arange(first, last), plan.outages)
        if weight is not None and not weight.any():
            raise UserError("an outage hides the outcome of every click that is judged: choose a later judge_from")
        per_interval, summary = by_interval(log_odds, label, weight, plan, interval_edges(plan, table))
        scores = pl.DataFrame(
            {
                "click_id": self.log.ids_of(first, last),
                "click_ts": table.click_ts[first:last],
                "probability": metrics.probability(log_odds),
                "log_odds": log_odds,
                "label": label,
            }
            | ({} if weight is None else {"weight": weight})
        )
        self.encoder.save(self.out / "encoder.json")
        if self.spec.keep_record is not None:
            self.spec.keep_record(self.out)
        references = reference_models.evaluate(self._open_source(), plan, self.shared)
        losses = [pl.Series(f"{name}_nll", nll, pl.Float64) for name, nll in references["interval_nll"].items()]
        write_parquet(self.out / "intervals.parquet", per_interval.with_columns(losses))
        write_parquet(self.out / "scores.parquet", scores)
        if first > begin:
            write_parquet(self.out / "not_judged.parquet", pl.DataFrame({"log_odds": served[: first - begin]}))
        pooled = asdict(metrics.evaluate(log_odds, label, weight))
        assert pooled["nll"] is not None
        counts = table.counts | {"conversions": int(table.label.sum()), "warm_up": begin, "scored": last - begin}
        counts |= {"not_scored": len(table) - last} | ({"not_judged": first - begin} if first > begin else {})
        result = {
            "format": FORMAT,
            "method": identity["method"],
            "plugins": identity["plugins"],
            "data": {
                "name": self.spec.data,
                "origin": self.log.origin,
                "fingerprint": identity["fingerprint"],
                "counts": counts,
                "notes": list(table.schema.notes),
            },
            "plan": asdict(plan),
            "seed": self.spec.seed,
            "threads": self.spec.threads,
            "config": identity["config"] | {"in_force": self.engine.resolve_options()},
            "metrics": {"interval": summary, "pooled": pooled},
            "judged": {"clicks": last - first, "conversions": int(label.sum())},
            "references": references["pooled"],
            "advice": reference_models.advice(
                pooled["nll"], pooled["pcoc"], references["pooled"]["constant"]["nll"], int(label.sum())
            ),
            "alarms": [
                asdict(alarm) | {"text": alarm.text(partial(moment, origin=self.log.origin))}
                for alarm in self.monitor.alarms
            ],
            "cost": self.cost
            | {
                "clicks": last - begin,
                "conversions": int(table.label[begin:last].sum()),
                "reveals": self.engine.reveals,
                "steps": self.engine.steps,
                "skipped_events": self.engine.skipped,
                "clipped_weights": self.engine.clipped,
                "peak_rss_mb": max(self.cost["peak_rss_mb"], _peak_rss_mb()),
            },
            "versions": versions(),
        }
        write_json(self.out / "result.json", result)
        self.served.unlink()


# How many threads a run has if nobody says.

_LARGE_BATCH = 1024
"""Events of a step from which on several threads are used: those of a small step wait for each other. log-sigmoid took
2.0 ms with two threads and 0.2 with one. Not measured: from which size on two threads gain."""


def usual_threads(method: Method, stream: StreamLearning, warm_up_clicks: int, interval_clicks: float) -> int:
    """All cores that the process may use if optimiser steps are large, else one."""
    of_warm_up = method.warm_batch_size or batch_that_fits(warm_up_clicks, method.batch_size)
    of_stream = of_warm_up if stream.batch_size is None else stream.batch_size or method.batch_size
    return usable_cores() if min(of_stream, interval_clicks) >= _LARGE_BATCH else 1


def usable_cores() -> int:
    """Cores that this process may use: not more than OMP_NUM_THREADS and the process's CPU affinity allow."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is for nested threads
    allowed = int(given) if given.isdigit() else 0
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return max(1, min(number for number in (allowed, affinity, os.cpu_count() or 1) if number))


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def versions() -> dict[str, str]:
    """Of Python and of the packages that what comes out of a run depends on."""
    packages = ("tracecvr", "torch", "numpy", "polars")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


# The directory: held by one process, on the run that it holds or a new one.


@contextmanager
def claim(out: Path, identity: dict[str, Any], resume: bool) -> Iterator[None]:
    """Lock a run directory for one process, if it is empty or holds this run."""
    created, locked_before = not out.exists(), (out / ".lock").exists()
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        try:
            for left in out.rglob(".*.tmp"):  # of a process that was killed while it wrote
                left.unlink()
            begun = (out / "run.json").exists()
            if not begun and any(path.name not in (".lock", "scores.f32") for path in out.iterdir()):
                raise UserError(f"{out} is not empty and holds no run: choose another --out")
            if begun and not resume:
                raise UserError(f"{out} already holds a run: continue it with --resume, or choose another --out")
            if begun:
                refuse_other_run(identity, out)
            yield
        finally:
            if not (out / "run.json").exists():  # nothing was begun: leave no trace
                if created:
                    shutil.rmtree(out)
                elif not locked_before:
                    (out / ".lock").unlink()


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run has in `result.json`."""
    if not (folder / "result.json").is_file():
        raise UserError(f"{folder} holds no finished run: give the directory that `replay` or `tracecvr run` wrote")
    content: dict[str, Any] = read_json(folder / "result.json")
    refuse_other_format(content, FORMAT, folder / "result.json")
    return content


def refuse_other_run(identity: dict[str, Any], out: Path) -> None:
    recorded = read_json(out / "run.json")
    refuse_other_format(recorded, FORMAT, out / "run.json")
    refuse_other(identity, recorded, str(out))


def refuse_other(ours: dict[str, Any], theirs: dict[str, Any], where: str, what: str = "run", prefix: str = "") -> None:
    """Refuse to go on in a directory whose recorded facts are not ours."""
    for key, value in ours.items():
        other = theirs.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            refuse_other(value, other, where, what, f"{prefix}{key}.")
        elif value != other:
            raise UserError(
                f"{where} holds another {what}: {prefix}{key} is {other!r} there, {value!r} here; choose another --out"
            )
