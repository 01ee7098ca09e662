"""tracecvr: online conversion-rate prediction when conversions come late.

>>> import tracecvr as tc
>>> log = tc.dataset("synthetic", clicks=2000)  # or tc.read(clicks, conversions, click_time="ts", id="click_id")
>>> result = tc.replay(log, "vanilla", progress=False, hidden=[8], warm_epochs=1)
>>> result.scores.columns
['click_id', 'time', 'probability', 'log_odds', 'label']
>>> model = result.model  # model.predict(frame), model.posterior(frame, at=...), model.save(path), tc.load(path)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracecvr.api.authors import register
    from tracecvr.api.comparisons import Board, compare
    from tracecvr.api.logs import Log, dataset, read
    from tracecvr.api.models import Model, load
    from tracecvr.api.replays import Result, load_result, replay
    from tracecvr.authoring.method import Method, Plugin
    from tracecvr.base.errors import UserError
    from tracecvr.base.registry import available
    from tracecvr.data.dataset import Dataset
    from tracecvr.runs.intervals import Interval

__all__ = [
    "Board",
    "Dataset",
    "Interval",
    "Log",
    "Method",
    "Model",
    "Plugin",
    "Result",
    "UserError",
    "available",
    "compare",
    "dataset",
    "load",
    "load_result",
    "read",
    "register",
    "replay",
]

_HOMES = {
    "api.authors": ("register",),
    "api.comparisons": ("Board", "compare"),
    "api.logs": ("Log", "dataset", "read"),
    "api.models": ("Model", "load"),
    "api.replays": ("Result", "load_result", "replay"),
    "authoring.method": ("Method", "Plugin"),
    "base.errors": ("UserError",),
    "base.registry": ("available",),
    "data.dataset": ("Dataset",),
    "runs.intervals": ("Interval",),
}
"""Public names by the module that has them. It is imported when a name is used: torch alone takes seconds."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tracecvr")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'tracecvr' has no attribute {name!r}")
    return getattr(import_module(f"tracecvr.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
