"""From names and settings, as the command line and suites give them, to a run that can be carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tracecvr.base import config, registry
from tracecvr.base.errors import UserError
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.data.table import ClickTable
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.runs.replay import Plan
from tracecvr.runs.run import Spec


def dataset_of(name: str, settings: Sequence[str], flag: str = "--data-set") -> Dataset:
    """The dataset of that name with its options; `flag` is what errors in them name."""
    chosen: Dataset = registry.get("dataset", name)()
    return config.configure(chosen, config.pairs(settings, flag), flag)


def owners_of(method: str, plugins: Sequence[str]) -> dict[str, Any]:
    """What settings are distributed to: the method, the plan, the stream's learning and each plugin, with their
    defaults."""
    owners: dict[str, Any] = {"method": registry.get("method", method)(), "plan": Plan(), "stream": StreamLearning()}
    for name in plugins:
        if name in owners:
            raise UserError(f"plugin {name!r} is given twice: keep one")
        owners[name] = registry.get("plugin", name)()
    return owners


def plan_of(settings: Mapping[str, str], method: str, plugins: Sequence[str]) -> Plan:
    plan: Plan = config.distribute(owners_of(method, plugins), settings, "--set")["plan"]
    return plan


def spec_of(
    method: str,
    plugins: Sequence[str],
    data: str,
    source: Path | None,
    settings: Mapping[str, str],
    data_settings: Sequence[str] = (),
    seed: int = 0,
    threads: int | None = 1,
    flag: str = "--set",
) -> Spec:
    """A run of one method on one log; `source` is a raw log or a directory written by `prepare`. `flag` is what errors
    in settings name."""
    owners = owners_of(method, plugins)
    dataset = dataset_of(data, data_settings)
    owners = config.distribute(owners, settings, flag)
    if source is not None and ClickTable.exists(source):
        options = prepared.options_of(source, dataset, bool(data_settings))
        files: tuple[Path, ...] = (source / "table.json",)
        keep_record = partial(prepared.copy_record, source)
    else:
        options, files = config.values(dataset), dataset.files(source)
        keep_record = partial(prepared.record, dataset, source)
    return Spec(
        method=owners["method"],
        plugins=tuple(owners[name] for name in plugins),
        data=data,
        data_options=options,
        open_log=partial(prepared.open_log, dataset, source),
        plan=owners["plan"],
        stream=owners["stream"],
        seed=seed,
        threads=threads,
        source=signature(files),
        keep_record=keep_record,
    )


def signature(files: Sequence[Path]) -> dict[str, Any] | None:
    """What tells files from others, and from themselves after a change, without reading them."""
    facts = [_facts(path) for path in files]
    return (facts[0] if len(facts) == 1 else {"files": facts}) if facts else None


def _facts(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"path": str(path)}
    status = path.stat()
    return {"path": str(path.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
