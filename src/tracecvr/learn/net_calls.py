"""Calls of nets by a method and its plugins: a net is computed once per batch, a frozen net of features once per click.

Authors of methods call nets as often as it suits their formulas. What is remembered, and for how long, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tracecvr.authoring.part import Net, call_directly
from tracecvr.learn.per_click_cache import PerClickCache
from tracecvr.nets.backbones import is_frozen
from tracecvr.stream.reveal import After, Reveals, Schedule
from tracecvr.stream.source import Source

BLOCK = 8192
"""Rows computed at once: fixed, because a net's last bits may depend on how many rows it is given."""


@dataclass
class ShownEvents:
    """The events of an interval, and the batch of them that is being learnt from."""

    events: Reveals
    source: Source
    start: int
    end: int
    x: Tensor | None = None
    index: Tensor | None = None

    def batch(self, b: Reveals, index: Tensor) -> Reveals:
        """Go on to a batch; `index` says which of the events it has."""
        self.x, self.index = b.x, index
        return b


class NetCalls:
    """Calls nets for the parts of an engine. A net that is called twice with the same inputs is computed once: a second
    forward would cost time, and count the batch twice in the net's statistics.

    Frozen nets that see features alone are computed for all clicks of an interval together, and kept for `memory`
    seconds, if the schedule shows every click more than once.
    """

    def __init__(self, schedule: Schedule, memory: int) -> None:
        self._memory = memory
        self._keeps_clicks = sum(isinstance(t, After) and t.seen is None for t in schedule) > 1
        self._results: dict[tuple[int, Net, bool], tuple[tuple[Tensor, ...], Tensor]] = {}
        self._clicks: dict[tuple[int, str], PerClickCache] = {}
        self._of_events: dict[tuple[int, str], Tensor] = {}
        self._shown: ShownEvents | None = None
        self._folder: Path | None = None

    def __call__(self, nets: nn.ModuleDict, net: Net, inputs: tuple[Tensor, ...]) -> Tensor:
        """The outputs of one of a part's nets, or of a function."""
        key = id(nets), net, torch.is_grad_enabled()
        if key not in self._results or not _same(self._results[key][0], inputs):
            self._results[key] = inputs, self._compute(nets, net, inputs)
        return self._results[key][1]

    def forget(self, net: Net | None = None) -> None:
        """Drop results of a net, or all, after weights or the mode of a net have changed."""
        self._results = {key: result for key, result in self._results.items() if net not in (None, key[1])}

    def forget_clicks(self) -> None:
        """Drop what frozen nets gave for clicks, after these nets have changed."""
        self._clicks.clear()

    def keep_clicks_in(self, folder: Path) -> None:
        """Keep what frozen nets give for clicks in files: of many clicks it takes much memory."""
        self._folder = folder
        self._clicks.clear()

    @contextmanager
    def showing(self, events: Reveals, source: Source, start: int, end: int) -> Iterator[ShownEvents]:
        """While it lasts, these events of an interval are learnt from."""
        self._shown = ShownEvents(events, source, start, end)
        try:
            yield self._shown
        finally:
            self._shown = None
            self._of_events.clear()

    def _compute(self, nets: nn.ModuleDict, net: Net, inputs: tuple[Tensor, ...]) -> Tensor:
        shown = self._shown if self._keeps_clicks else None
        if shown is not None and isinstance(net, str) and _same(inputs, (shown.x,)) and is_frozen(nets[net]):
            return self._per_click((id(nets), net), nets[net], shown)
        return call_directly(nets, net, inputs)

    def _per_click(self, key: tuple[int, str], net: nn.Module, shown: ShownEvents) -> Tensor:
        if key not in self._of_events:
            cache = self._clicks.setdefault(key, PerClickCache(self._folder))
            self._of_events[key] = cache.of(shown.events, shown.source, shown.start, shown.end, in_blocks(net))
            cache.drop(shown.start - self._memory)
        return self._of_events[key][shown.index]


def in_blocks(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function of rows, computed for a fixed number of rows at a time and without gradient."""

    @torch.no_grad()
    def computed(rows: Tensor) -> Tensor:
        return torch.cat([compute(block) for block in rows.split(BLOCK)])

    return computed


def _same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
