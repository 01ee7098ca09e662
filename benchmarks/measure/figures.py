"""The figures, one function each: what is measured, how, and what it is held against.

Machines are noisy, so speed is held against a reference that is measured in turn with it, mostly the rate of large
matrix products. Noise only ever adds time: the fastest of several samples is taken of both, unless a figure says
otherwise.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from measure.child import Ended, call, together, tracecvr
from measure.report import Figure, excess

MILLION = 1_000_000
RELEASE_S, RELEASE_FLOPS = 447.0, 180e9
"""The authors' release over 2 million clicks, and the rate of matrix products on the machine it ran on."""
ALLOWANCE = 1.25
"""Room for noise in the comparison of methods."""
PROCESSOR = ", processor's time"
"""What a smoke takes where a figure is no ratio: the tests beside it must not fail it."""


@dataclass(frozen=True)
class Size:
    """How much is measured. Nothing is, of what has no samples here."""

    name: str
    rounds: int  # hours of updates and scores
    hourly: int  # clicks in each
    intervals: int  # with next to nothing in them
    past: int  # clicks before those
    loose: float = 1.0  # how much wider than the targets the limits of time are
    prepared: tuple[tuple[str, int], ...] = ()  # datasets and rows
    runs: tuple[int, ...] = ()  # clicks of whole runs
    methods: int = 0  # hours of each method, and of TRACE beside it
    side_by_side: int = 0  # pairs of runs
    profiled: int = 0  # hours


QUICK = Size("quick", rounds=3, hourly=1_350, intervals=40, past=200_000, loose=4.0)
DEFAULT = Size(
    "default",
    rounds=12,
    hourly=11_000,
    intervals=200,
    past=2 * MILLION,
    prepared=(("criteo", 2 * MILLION),),
    runs=(2 * MILLION,),
    methods=3,
    side_by_side=3,
    profiled=5,
)
FULL = replace(
    DEFAULT,
    name="full",
    prepared=(*DEFAULT.prepared, ("criteo", 16 * MILLION), ("taobao", 100 * MILLION)),
    runs=(*DEFAULT.runs, 16 * MILLION),
)


@dataclass
class Bench:
    """Where and how figures are measured, and the tables that come with them."""

    size: Size
    threads: int
    logs: Path
    scratch: Path
    methods: list[dict[str, Any]] = field(default_factory=list)
    profile: dict[str, float] = field(default_factory=dict)

    def log(self, dataset: str, rows: int) -> Path:
        """A raw log of so many rows, written once."""
        path = self.logs / f"{dataset}_{rows}.txt"
        if not path.exists():
            call("logs", "write", dataset=dataset, rows=rows, path=str(path))
        return path

    def prepare(self, dataset: str, log: Path, keep: Path | None = None) -> Ended:
        """The command `prepare`; its table is kept only if asked."""
        out = keep or self.scratch / "table"
        ended = tracecvr("prepare", dataset, "--source", log, "--out", out).wait()
        if keep is None:
            shutil.rmtree(out)
        return ended

    def figure(self, name: str, value: float | None, unit: str, target: float | None = None, how: str = "") -> Figure:
        # Memory is not noisy.
        return Figure(name, value, unit, target, how, 1.0 if unit == "GB" else self.size.loose)


def scaled_s(rows: int) -> float:
    """Criteo's target of 90 s for 16 million rows, for another number."""
    return 90 * rows / (16 * MILLION)


def scaled_gb(rows: int) -> float:
    """Criteo's targets of 1.2 GB for 2 million rows and 4 GB for 16 million, for another number."""
    return 0.8 + 0.2 * rows / MILLION


def short(rows: int) -> str:
    return f"{rows // MILLION} M" if rows >= MILLION else f"{rows // 1_000} k"


def prepare(bench: Bench) -> Iterator[Figure]:
    """A raw file to a table, by the command line."""
    if not bench.size.prepared:
        yield from prepare_small(bench)
    for dataset, rows in bench.size.prepared:
        ended = bench.prepare(dataset, bench.log(dataset, rows))
        seconds, gigabytes = (scaled_s(rows), scaled_gb(rows)) if dataset == "criteo" else (None, 8.0)
        name = f"prepare {dataset}, {short(rows)} rows"
        yield bench.figure(f"{name}: time", ended.wall_s, "s", seconds, "the whole command, once")
        yield bench.figure(f"{name}: memory", ended.peak_gb, "GB", gigabytes, "peak of the process")


def prepare_small(bench: Bench, rows: int = 100_000) -> Iterator[Figure]:
    """The same for a file so small that the start of the command would hide it: what it takes beyond a tiny one."""
    tiny, small = bench.log("criteo", 1_000), bench.log("criteo", rows)
    start, whole = bench.prepare("criteo", tiny), bench.prepare("criteo", small)
    how = f"beyond that of 1,000 rows; once{PROCESSOR}"
    name = f"prepare criteo, {short(rows)} rows"
    yield bench.figure(f"{name}: time", max(0.0, whole.processor_s - start.processor_s), "s", scaled_s(rows), how)
    yield bench.figure(f"{name}: memory", whole.peak_gb, "GB", scaled_gb(rows), "peak of the process")


def update(bench: Bench) -> Iterator[Figure]:
    """An update and a scored batch of TRACE against their plain arithmetic at the rate of large matrix products."""
    size = bench.size
    timing = call("steps", "updates", rounds=size.rounds, threads=bench.threads, hourly=size.hourly)
    peak = max(timing["peak_flops"])
    for name in ("update", "score"):
        seconds, ideal = timing[f"{name}_s"], timing[f"{name}_flop"] / peak
        paired = median(s * p for s, p in zip(seconds, timing["peak_flops"], strict=True)) / timing[f"{name}_flop"]
        how = (
            f"{1e3 * min(seconds):.1f} ms against {1e3 * ideal:.1f} at {peak / 1e9:.0f} GFLOP/s; fastest of "
            f"{len(seconds)} (median of pairs {paired:.2f})"
        )
        yield bench.figure(f"{name} of 4,096 / arithmetic at peak", min(seconds) / ideal, "x", 1.5, how)


def overhead(bench: Bench) -> Iterator[Figure]:
    """An interval with one click and six events."""
    size, smoke = bench.size, bench.size.loose > 1
    given = {"intervals": size.intervals, "before": size.past, "threads": bench.threads, "hourly": size.hourly}
    timing = call("steps", "overhead", **given, processor=smoke)
    where = f"after {size.past:,} clicks; median of {size.intervals}{PROCESSOR if smoke else ''}"
    how = f"one click and six events, without their optimiser step, {where}"
    yield bench.figure("overhead of an interval", 1e3 * median(timing["overhead_s"]), "ms", 5.0, how)
    yield bench.figure("such an interval with its step", 1e3 * median(timing["whole_s"]), "ms", None, where)


_STAGES = ("prepare_s", "warm_up_s", "stream_s")


def whole_run(bench: Bench) -> Iterator[Figure]:
    """TRACE over a raw Criteo file, by the command line: prepare, warm-ups and stream; and Telescoped beside it."""
    pace: dict[int, float] = {}
    for rows in bench.size.runs:
        ended, cost, peak = _run(bench, rows)
        pace[rows] = cost["stream_s"] / cost["reveals"] * MILLION
        stages = [cost[stage] for stage in _STAGES]
        how = (
            f"{' + '.join(f'{s:.1f}' for s in stages)} s (prepare, warm-ups, stream); the command took "
            f"{ended.wall_s:.1f} s; {peak / 1e9:.0f} GFLOP/s"
        )
        # What was measured of the release was 2 million clicks; nobody could run it on more.
        target = RELEASE_S / 3 * RELEASE_FLOPS / peak if rows == 2 * MILLION else None
        name = f"run over {short(rows)} clicks"
        yield bench.figure(f"{name}: time", sum(stages), "s", target, how)
        yield bench.figure(f"{name}: memory", ended.peak_gb, "GB", scaled_gb(rows), "peak of the process")
        yield bench.figure(f"{name}: stream per million reveals", pace[rows], "s", None, f"{cost['reveals']:,} reveals")
        if rows == min(bench.size.runs):
            yield from _telescoped(bench, rows, cost)
    if len(pace) > 1:
        least, most = min(pace), max(pace)
        name = f"stream per reveal, {short(most)} / {short(least)} clicks"
        yield bench.figure(name, pace[most] / pace[least], "x", 1.10, "one run each")


def _telescoped(bench: Bench, rows: int, trace: dict[str, Any]) -> Iterator[Figure]:
    """A run of Telescoped against the run of TRACE before it, over the same clicks."""
    _, cost, _ = _run(bench, rows, "telescoped")
    stages, theirs = ([run[stage] for stage in _STAGES] for run in (cost, trace))
    name, how = f"Telescoped / TRACE, {short(rows)} clicks", " + ".join(f"{s:.1f}" for s in stages)
    yield bench.figure(f"{name}: run", sum(stages) / sum(theirs), "x", 110 / 149, f"{how} s; one run each")
    how = f"{cost['reveals'] / cost['clicks']:.1f} events per click against {trace['reveals'] / trace['clicks']:.1f}"
    yield bench.figure(f"{name}: stream", cost["stream_s"] / trace["stream_s"], "x", 2 / 3, how)


def _run(bench: Bench, rows: int, method: str = "trace") -> tuple[Ended, dict[str, Any], float]:
    """How a run came out, what it says it cost, and the best rate of matrix products before and after it."""
    log, out = bench.log("criteo", rows), bench.scratch / "run"
    before = call("machine", "peak", threads=bench.threads)
    words = ("run", "--method", method, "--data", "criteo", "--threads", bench.threads)
    ended = tracecvr(*words, "--source", log, "--out", out).wait()
    cost = json.loads((out / "result.json").read_text())["cost"]
    shutil.rmtree(out)
    return ended, cost, max(before, call("machine", "peak", threads=bench.threads))


def every_method(bench: Bench) -> Iterator[Figure]:
    """Time per event of every method against TRACE's, beside the ratio of their arithmetic."""
    for name in call("methods", "names") if bench.size.methods else ():
        row = call("methods", "beside_trace", method=name, rounds=bench.size.methods, threads=bench.threads)
        bench.methods.append(row)
    slowest = max(bench.methods, key=lambda row: excess(row) or 0, default=None)
    if slowest is not None:
        how = f"{slowest['method']}; hours of both in turn, fastest of {bench.size.methods}; limit allows for noise"
        yield bench.figure("slowest method / its arithmetic, TRACE = 1", excess(slowest), "x", ALLOWANCE, how)


def side_by_side(bench: Bench, rows: int = 150_000) -> Iterator[Figure]:
    """Two runs at once, one thread each, against one alone."""
    if not bench.size.side_by_side:
        return
    table = bench.scratch / "table_for_runs"
    bench.prepare("criteo", bench.log("criteo", rows), keep=table)

    def seconds(runs: int) -> float:
        outs = [bench.scratch / f"side_{i}" for i in range(runs)]
        words = ("run", "--method", "trace", "--data", "criteo", "--source", table, "--set", "interval=6h")
        ended = together([tracecvr(*words, "--threads", 1, "--out", out) for out in outs])
        for out in outs:
            shutil.rmtree(out)
        return max(e.wall_s for e in ended)

    alone, both = zip(*((seconds(1), seconds(2)) for _ in range(bench.size.side_by_side)), strict=True)
    how = f"{median(both):.1f} s against {median(alone):.1f} s, one thread each; medians of {len(alone)} in turn"
    yield bench.figure("two runs at once / one alone", median(both) / median(alone), "x", 1.25, how)


def profile(bench: Bench) -> Iterator[Figure]:
    """No figure, but where the time of a tick goes."""
    if bench.size.profiled:
        bench.profile |= call("profile", "shares", ticks=bench.size.profiled, threads=bench.threads)
    yield from ()


PARTS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "update": update,
    "overhead": overhead,
    "prepare": prepare,
    "run": whole_run,
    "side_by_side": side_by_side,
    "methods": every_method,
    "profile": profile,
}
