"""Where a tick's time goes: functions are watched while TRACE learns, and what they call is not counted twice."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from measure import paper
from tracecvr.learn.engine import Engine
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import TableSource

REST = "losses and the rest"


class Watch:
    """Charges time to the innermost thing that is being done."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._doing, self._since = [REST], time.perf_counter()

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time charged to `name`."""

        def timed(*given: Any, **named: Any) -> Any:
            self.charge()
            self._doing.append(name)
            try:
                return function(*given, **named)
            finally:
                self.charge()
                self._doing.pop()

        return timed

    def charge(self) -> None:
        """Charge the time until now."""
        now = time.perf_counter()
        self.spent[self._doing[-1]] += now - self._since
        self._since = now


def shares(ticks: int, threads: int) -> dict[str, float]:
    """The share of each part in the time of TRACE's ticks, largest first."""
    torch.set_num_threads(threads)
    stream = paper.Stream("trace", paper.dense(paper.STEADY + ticks))
    for hour in range(paper.STEADY):
        stream.tick(hour)
    watch = Watch()
    with ExitStack() as stack:
        for name, owner, attribute in _parts(stream.engine):
            stack.enter_context(patch.object(owner, attribute, watch.watched(name, getattr(owner, attribute))))
        watch.charge()
        watch.spent.clear()
        for hour in range(paper.STEADY, paper.STEADY + ticks):
            stream.tick(hour)
        watch.charge()
    total = sum(watch.spent.values())
    return {name: spent / total for name, spent in sorted(watch.spent.items(), key=lambda item: -item[1])}


def _parts(engine: Engine) -> list[tuple[str, Any, str]]:
    """What is watched: its name, and the function as an attribute of its owner."""
    nets = dict(engine.method.nets.items())
    main = nets.pop("main")
    return [
        ("reveals", TableSource, "reveals"),
        ("batches", Reveals, "take"),
        ("forward", main, "forward"),
        *(("helpers", net, "forward") for net in nets.values()),
        *((plugin.name, net, "forward") for plugin in engine.plugins for net in plugin.nets.values()),
        ("backward", torch.Tensor, "backward"),
        ("optimiser", torch.optim.Adam, "step"),
    ]
