"""A finished run that a live model continues: its log, its options and its final state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracecvr.base import config, registry
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.learn.checkpoint import Checkpoints
from tracecvr.runs.replay import FullPlan


@dataclass(frozen=True)
class RunEnd:
    """Where a run ended. The first interval of a store that continues it starts there."""

    time: int
    interval: int
    sha256: str


@dataclass(frozen=True)
class StartingRun:
    """A run whose state can be taken up exactly."""

    folder: Path
    recorded: dict[str, Any]
    """Its `run.json`."""
    plan: FullPlan
    start: RunEnd
    state: Path

    @classmethod
    def of(cls, folder: Path) -> StartingRun:
        """The run of a directory; an error if it cannot be continued."""
        checkpoints = Checkpoints(folder / "checkpoint")
        manifest = checkpoints.latest() if (folder / "run.json").is_file() else None
        if manifest is None:
            raise UserError(f"{folder} holds no run: give a directory that `tracecvr run --out` has written")
        if not (folder / "result.json").is_file():
            raise UserError(f"{folder}: the run is not finished; go on with `tracecvr run ... --resume` first")
        recorded, plan = read_json(folder / "run.json"), FullPlan(**read_json(folder / "result.json")["plan"])
        if plan.publish_lag:
            raise UserError(
                f"{folder}: the run served with publish_lag = {plan.publish_lag}, a live model serves the newest "
                "version; run it without"
            )
        start = RunEnd(plan.bounds(manifest["intervals"])[0], plan.interval, manifest["sha256"])
        return cls(folder, recorded, plan, start, checkpoints.state(manifest))

    @property
    def dataset(self) -> Dataset:
        if (self.folder / prepared.RAW_LOG).is_file():  # else it was run over a table that a live model has written
            return prepared.reopen(self.folder)[0]
        made: Dataset = config.restore(registry.get("dataset", self.recorded["data"]), self.recorded["config"]["data"])
        return made

    def log(self) -> Path | None:
        """Where its log was, raw or prepared; None of a dataset that needs no file."""
        path = Path((self.recorded["source"] or {}).get("path", ""))
        if path.name != "table.json":
            return prepared.reopen(self.folder)[1]
        if not path.exists():
            raise UserError(f"{path}, the log of {self.folder}, is gone: give it as `tracecvr init --source`")
        return path.parent
