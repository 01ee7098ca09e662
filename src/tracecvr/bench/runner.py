"""A bench's directory, and carrying out the cells that belong into it; killed at any moment, it goes on.

An engine (see `engines`) has cells run, each with one thread, so that results do not depend on where they run.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tracecvr.base import config
from tracecvr.base.errors import UserError
from tracecvr.base.files import locked, read_json, write_json
from tracecvr.bench import tuned
from tracecvr.bench.outcome import is_finished, write_results
from tracecvr.bench.suite import Cell, Suite, rows_of
from tracecvr.bench.tuned import Tuned
from tracecvr.data import prepared
from tracecvr.data.table import ClickTable, read_manifest
from tracecvr.runs.run import refuse_other, run
from tracecvr.runs.spec import dataset_of, plan_of, signature, spec_of

_FREE_S = 60.0
"""How long a cell waits for its directory."""


@dataclass(frozen=True)
class Request:
    suite: Suite
    data: str
    source: Path | None = None
    data_settings: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    tuned: Tuned = field(default_factory=Tuned)


@dataclass
class State:
    """Which cells are done, and which have failed and why."""

    cells: tuple[Cell, ...]
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def end(self, name: str, failure: str | None) -> None:
        """A cell has ended: it is done unless there is a failure to tell."""
        if failure is None:
            self.done.append(name)
        else:
            self.failed[name] = failure


Watch = Callable[[State], None]


@dataclass(frozen=True)
class Bench:
    """A directory and the cells that belong into it."""

    out: Path
    cells: tuple[Cell, ...]
    data: str
    log: Path


BenchEngine = Callable[[Bench, Sequence[Cell], State, Watch], None]
"""Has the cells that wait run somewhere, and returns when all have ended. It notes in the state which are done or have
failed, and calls `watch` every second or so."""


@contextmanager
def hold_bench(request: Request, out: Path) -> Iterator[Bench]:
    """Hold a bench directory, with its log prepared and `bench.json` written, or known to be this bench's."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        yield _open(request, out)


def run_cells(bench: Bench, engine: BenchEngine, watch: Watch = lambda _: None) -> State:
    """Have an engine run every cell that is not finished, then write `results.parquet` and `failed.json`."""
    done = [cell.name for cell in bench.cells if is_finished(bench.out / "cells" / cell.name)]
    waiting = [cell for cell in bench.cells if cell.name not in done]
    state = State(bench.cells, done)
    if waiting:
        engine(bench, waiting, state, watch)
    write_results(bench.out, bench.cells)
    if state.failed:
        write_json(bench.out / "failed.json", state.failed)
    else:
        (bench.out / "failed.json").unlink(missing_ok=True)
        shutil.rmtree(bench.out / "warm", ignore_errors=True)  # nobody is left to share with
    return state


# The directory.


def _open(request: Request, out: Path) -> Bench:
    begun = (out / "bench.json").exists()
    if not begun and any(path.name not in (".lock", "data") and not _is_draft(path) for path in out.iterdir()):
        raise UserError(f"{out} is not empty and holds no bench: choose another --out")
    if request.tuned.methods and request.suite.layout == "tune":
        raise UserError(f"--tuned: suite {request.suite.name!r} is a search of its own; give its result to others")
    asked = _ask(request)
    if begun:
        refuse_other(asked, read_json(out / "bench.json"), str(out), "bench")
    for draft in filter(_is_draft, (*out.iterdir(), *(out / "cells").glob("*"))):  # of a process killed while it wrote
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
    log = _log(request, out)
    manifest, table = read_manifest(log), ClickTable.load(log)
    suite, settings = request.suite, dict(request.settings)
    times = tuned.choose_times(table, suite.settings | settings, suite.first, request.tuned)
    rows = rows_of(suite, request.methods, times | settings, request.tuned.methods)
    plans = [plan_of(row.settings, row.method, row.plugins) for row in rows]
    tuned.refuse(request.tuned, manifest["fingerprint"], request.seeds, plans, table.schema.split)
    facts = {
        "fingerprint": manifest["fingerprint"],
        "data_options": manifest["options"],
        "rows": [asdict(row) | {"plugins": list(row.plugins)} for row in rows],
    }
    if begun:
        refuse_other(facts, read_json(out / "bench.json"), str(out), "bench")
    else:
        source = signature(() if request.source is None else (request.source,))
        log_facts = {"origin": manifest.get("origin"), "notes": list(table.schema.notes), "counts": table.counts}
        judged = tuned.find_judged(plans, table)
        write_json(out / "bench.json", asked | facts | {"source": source, "judged": judged, "log": log_facts})
    (out / "cells").mkdir(exist_ok=True)
    cells = tuple(Cell(row, seed) for row in rows for seed in request.seeds)
    return Bench(out, cells, request.data, log)


def _ask(request: Request) -> dict[str, Any]:
    return {
        "suite": json.loads(json.dumps(asdict(replace(request.suite, logs=())))),
        "data": request.data,
        "data_settings": list(request.data_settings),
        "seeds": list(request.seeds),
        "methods": list(request.methods),
        "settings": dict(request.settings),
        "tuned": request.tuned.methods,
        "tracecvr": version("tracecvr"),
    } | ({"tuned_on": asdict(request.tuned.period)} if request.tuned.period else {})


def _log(request: Request, out: Path) -> Path:
    """The prepared log: the user's own, or one that is prepared here, once."""
    if request.source is not None and ClickTable.exists(request.source):
        prepared.options_of(request.source, dataset_of(request.data, ()), bool(request.data_settings))
        return request.source.resolve()
    if not ClickTable.exists(out / "data"):
        defaults = request.suite.data.get(request.data, {})
        given = config.pairs(request.data_settings, "--data-set")
        dataset = dataset_of(request.data, [f"{k}={v}" for k, v in (defaults | given).items()])
        prepared.prepare_to(out / "data", dataset, request.source)
    return (out / "data").resolve()


def _is_draft(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")


# A cell.


def run_cell(cell: Cell, out: Path, data: str, log: Path) -> str | None:
    """Run a cell, or the rest of it, in this process; why it failed, or None if it is done."""
    folder, row = out / "cells" / cell.name, cell.row
    try:
        if folder.exists():
            with locked(folder, patience=_FREE_S):
                pass  # a process that was given up has ended by now
        spec = spec_of(row.method, row.plugins, data, log, row.settings, seed=cell.seed)
        run(spec, folder, resume=True, shared=out / "warm")
    except UserError as error:
        return str(error)
    except Exception as error:
        logging.getLogger(__name__).exception("cell %s", cell.name)
        return f"{type(error).__name__}: {error}"
    return None
