"""A store: the directory of one live model, created from a prepared log and opened to ingest, learn or serve."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tracecvr.authoring.method import Method, Plugin
from tracecvr.base import config, registry
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, refuse_other_format, sha256, write_json
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.data.encoder import Encoder
from tracecvr.data.outages import Outages
from tracecvr.data.table import NEVER, ClickTable, Schema, atomic_directory, read_manifest
from tracecvr.learn.checkpoint import digest
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import AS_WARM_UP, StreamLearning
from tracecvr.online.log.events import Reader
from tracecvr.online.log.inbox import Inbox
from tracecvr.online.log.page_checksums import read_position
from tracecvr.online.log.times import AskedTimes, Grid, Times
from tracecvr.online.store import choices
from tracecvr.online.store import file_hashes as files
from tracecvr.online.store.starting_run import RunEnd, StartingRun
from tracecvr.online.store.versions import Versions
from tracecvr.runs.run import parts, parts_record
from tracecvr.runs.spec import owners_of
from tracecvr.stream import WARM_LABELS

Parts = tuple[Method, tuple[Plugin, ...], StreamLearning]
"""What a model learns with."""
_FORMAT = 4
START = "start.safetensors"


@dataclass(frozen=True)
class Settings:
    """How a store learns, beside its method."""

    lateness: int = 3600
    """Seconds that an interval stays open after its end, in the events' own time."""
    warm_labels: str = WARM_LABELS[0]
    """Labels of the warm-up part: as known at the split, or final (of a log that is older than d_max)."""
    keep: int = 48
    seed: int = 0
    threads: int = 1
    hold_on_outage: bool = True
    """Learn nothing while conversions have stopped arriving, nor later from clicks that were open then."""
    outages: Outages = ()
    """Times in which conversions were not recorded, or no events sent."""
    alarms_by: str | None = None
    """The feature whose values are watched for alarms and forecast; the first with few values by default."""


@dataclass(frozen=True, eq=False)
class Store:
    """What is fixed about a live model."""

    folder: Path
    content: dict[str, Any]

    @classmethod
    def create(
        cls,
        folder: Path,
        base: Path,
        method: Method,
        plugins: tuple[Plugin, ...],
        settings: Settings,
        origin: StartingRun | None = None,
        stream: StreamLearning = AS_WARM_UP,
        times: AskedTimes | None = None,
    ) -> Store:
        """A new store that starts where the prepared log `base` is split, or where a run over it ended."""
        _refuse_privileged(method)
        if not ClickTable.exists(base):
            raise UserError(f"{base}: not a prepared log; make one with `tracecvr prepare`")
        manifest = read_manifest(base)
        schema = Schema.from_json(manifest["schema"])
        content = {
            "format": _FORMAT,
            **parts_record(method, plugins, stream),
            "settings": asdict(settings),
            "fingerprint": manifest["fingerprint"],
            "options": manifest["options"],
            "tracecvr": version("tracecvr"),
        }
        if origin is not None:
            if manifest["fingerprint"] != origin.recorded["fingerprint"]:
                raise UserError(f"{base}: not the log that {origin.folder} was run over")
            content["start"] = asdict(origin.start)
        start = schema.split if origin is None else origin.start.time
        kind: type[Dataset] = registry.available("dataset").get(schema.dataset, Dataset)
        dated = kind.origin is not Dataset.origin
        content["times"] = asdict((times or AskedTimes()).settle(manifest.get("origin"), None if dated else start))
        Engine(method, schema, settings.seed, plugins, stream=stream)  # refuses what does not fit together
        with atomic_directory(folder) as made:
            made.chmod(0o700)  # users' events will be in it
            shutil.copytree(base, made / "base", ignore=shutil.ignore_patterns(".*"))
            (made / "models").mkdir()
            (made / "archive").mkdir()
            if origin is not None:
                shutil.copyfile(origin.state, made / START)
            write_json(made / "store.json", content)
            files.write(made)
        return cls(folder, content)

    @classmethod
    def from_run(
        cls, folder: Path, run: Path, source: Path | None, settings: Settings, times: AskedTimes | None = None
    ) -> Store:
        """A new store that goes on where a finished run ended; `source` is the run's log, if it was moved."""
        origin = StartingRun.of(run)
        recorded, labels = origin.recorded, origin.plan.warm_labels
        settings = replace(settings, warm_labels=labels, seed=recorded["seed"], threads=recorded["threads"])
        method, plugins, stream = parts(recorded)
        with _prepare(folder, origin.dataset, origin.log() if source is None else source) as base:
            return cls.create(folder, base, method, plugins, settings, origin, stream, times)

    @classmethod
    def open(cls, folder: Path, check: bool = True) -> Store:
        """An existing store, unless something is wrong with it that would not be noticed later."""
        if not (folder / "store.json").is_file():
            raise UserError(f"{folder}: not a store; create one with `tracecvr init`")
        content = read_json(folder / "store.json")
        refuse_other_format(content, _FORMAT, folder / "store.json")
        store = cls(folder, content)
        if check:
            files.refuse_if_changed(folder)
            if os.access(folder, os.W_OK):  # a copy to look at has no log that could be opened
                store.refuse_lost_log()
                if (folder / "events.db").is_file():
                    with closing(store.log()) as log:
                        choices.mend(log, folder)
        return store

    def refuse_lost_log(self) -> None:
        """Stop if the log ends before what was learnt from it, or before what was acknowledged."""
        newest, path = self.versions.newest(), self.folder / "events.db"
        acknowledged = read_position(path)
        learnt, position = (newest["intervals"], newest["position"]) if newest else (0, 0)
        if not path.is_file():
            if newest is None and not acknowledged:
                return
            raise UserError(f"{path} is missing: {_log_advice(path)} create another store")
        with closing(self.log()) as log:
            closed, reached, recorded = log.closed(), log.position(), log.recorded(self.model)
            other = [m["intervals"] for m in self.versions.manifests() if not self._is_of_log(m, log)]
            learnt_with = (log.tick(recorded - 1, self.model) or {}).get("store")
        lost = f"{path} has lost events: it ends at event {reached} and interval {closed}, and"
        advice = f"{_log_advice(path)} delete {path.stem}.position"
        if closed < learnt or reached < position:
            raise UserError(
                f"{lost} version {learnt} has learnt up to event {position} and interval {learnt}; {advice} and the "
                f"versions after {min(closed, learnt - 1)} in {self.home / 'models'}"
            )
        if reached < acknowledged:
            raise UserError(f"{lost} {acknowledged} were acknowledged; {advice}")
        if recorded < learnt:  # what came of learning is recorded before a version is written
            raise UserError(
                f"{path} is older than version {learnt}: it ends with what came of version {recorded}; {advice} and "
                f"the versions after {recorded} in {self.home / 'models'}"
            )
        if learnt_with not in (None, digest(self.content)):
            raise UserError(f"{self.home} is not what {path} has learnt with: copy both from where the store is whole")
        if other:
            raise UserError(
                f"{path} knows other weights of version {other[-1]} than {self.home / 'models'} has: one of them is of "
                f"another store or time; copy it from where the store is whole; or remove the versions from {other[0]} "
                "on: they are learnt again from the log"
            )

    def _is_of_log(self, manifest: dict[str, Any], log: Inbox) -> bool:
        """Whether a version is what the log says that came of learning. Nothing is said of the start."""
        tick = log.tick(manifest["intervals"] - 1, self.model)
        return not manifest["intervals"] or (tick is not None and tick["weights"] == manifest["weights"])

    @property
    def settings(self) -> Settings:
        return Settings(**self.content["settings"])

    @cached_property
    def schema(self) -> Schema:
        return Schema.from_json(read_json(self.folder / "base" / "table.json")["schema"])

    @cached_property
    def reader(self) -> Reader:
        return Reader(self.schema, Encoder.load(self.folder / "base" / "encoder.json"), self.times)

    @property
    def times(self) -> Times:
        return Times(**self.content["times"])

    @cached_property
    def base(self) -> ClickTable:
        table = prepared.load(self.folder / "base").table
        if table.fingerprint != self.content["fingerprint"]:
            raise UserError(f"{self.folder / 'base'}: not the log that this store was created with")
        return table

    @property
    def grid(self) -> Grid:
        s, start = self.schema, self.start
        first, interval = (s.split, s.interval) if start is None else (start.time, start.interval)
        advance = max(s.d_max, DAY) if self.times.unit == "log" else None
        return Grid(first, interval, self.settings.lateness, s.d_max, origin=self.times.origin, advance=advance)

    @property
    def start(self) -> RunEnd | None:
        """The end of the run that it continues, if there is one."""
        recorded = self.content.get("start")
        return None if recorded is None else RunEnd(**recorded)

    # What differs between a store's own model and a challenger of it.

    @property
    def model(self) -> str | None:
        """The name of a challenger; None is the store's own model."""
        return None

    @property
    def home(self) -> Path:
        """Where the versions of the model are."""
        return self.folder

    @cached_property
    def versions(self) -> Versions:
        return Versions(self.home, self.settings.keep, self.content)

    def restore_start(self, engine: Engine, start: RunEnd) -> None:
        state = self.folder / START
        if not state.is_file() or sha256(state) != start.sha256:
            raise UserError(
                f"{state}: not the state that this store started from; copy it from where the store is whole"
            )
        engine.restore(state)

    def log(self, clock: Callable[[], float] = time.time) -> Inbox:
        return Inbox(self.folder / "events.db", self.grid, clock)

    def unknown_clicks(self, keys: Collection[int]) -> list[int]:
        """Which clicks are neither in its event log nor in the log that it started from."""
        with closing(self.log()) as log:
            absent = np.array(sorted(set(keys) - set(log.arrivals(list(keys), 0, NEVER))), np.int64)
        unknown: list[int] = absent[~np.isin(absent, self.base.click_id)].tolist() if len(absent) else []
        return unknown

    def engine(self, device: str | None = "cpu") -> Engine:
        """A new engine of its model: to answer, on the processor; with None, on the device that it learns on."""
        method, plugins, stream = parts(self.content, device)
        return Engine(method, self.schema, self.settings.seed, plugins, stream=stream)


def _log_advice(path: Path) -> str:
    return f"copy {path.name} and {path.name}-wal from where the store is whole; or, to go on without these events,"


def read_parts(method: str, plugins: Sequence[str], options: Mapping[str, str]) -> Parts:
    owners = owners_of(method, plugins)
    del owners["plan"]  # intervals and split are the log's
    return give_options(owners, options)


def give_options(owners: Mapping[str, Any], options: Mapping[str, str]) -> Parts:
    """Method, plugins and learning settings by name, with options changed."""
    _refuse_privileged(owners["method"])
    owners = config.distribute(owners, options, "--set")
    plugins = tuple(part for name, part in owners.items() if name not in ("method", "stream"))
    return owners["method"], plugins, owners["stream"]


def _refuse_privileged(method: Method) -> None:
    if method.privileged:
        raise UserError(f"{method.name!r} learns from labels before they are known, so it cannot run live")


@contextmanager
def _prepare(folder: Path, dataset: Dataset, source: Path | None) -> Iterator[Path]:
    """A prepared log: `source` itself if it is one, else what is made of it beside the directory of the store."""
    if source is not None and ClickTable.exists(source):
        yield source
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".base.") as room:
        prepared.prepare_to(Path(room) / "base", dataset, source)
        yield Path(room) / "base"
