"""A log of two kinds of clicks in exact proportions: what a helper claims to estimate is a ratio of counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.data.table import NEVER, ClickTable, Feature, Ints, Schema
from tracecvr.stream.source import TableSource

WINDOW, D_MAX = HOUR, DAY
HORIZONS = (HOUR, 6 * HOUR, DAY)

# Of 100 clicks, so many convert after so many seconds. Delays lie on the boundaries (the end of the window, of a
# horizon and of d_max) and one second after them.
DELAYS = (
    ((0, 5), (HOUR, 10), (HOUR + 1, 5), (3 * HOUR, 15), (DAY, 10), (DAY + 1, 5)),
    ((30 * MINUTE, 10), (6 * HOUR, 6), (12 * HOUR, 14)),
)
KINDS, SIZE = len(DELAYS), 100

SCHEMA = Schema(
    dataset="known",
    features=(Feature("kind", KINDS, "kind"),),
    actions=("conversion", "cart"),
    horizons=HORIZONS,
    d_max=D_MAX,
    split=4 * DAY,
    interval=HOUR,
    observed_until=100 * DAY,
    window=WINDOW,
    embedding_dim=4,
    estimator_hidden=(16, 16),
)


def known_log(click_times: Sequence[int], copies: int = 1) -> ClickTable:
    """The whole law once per click time, or so many times."""
    conversion, cart = (np.tile(column, copies * len(click_times)) for column in _delays())
    click_ts = np.repeat(np.asarray(click_times, np.int64), copies * KINDS * SIZE)
    delay = np.stack([conversion, cart], axis=1)
    return ClickTable(
        x=np.tile(np.repeat(np.arange(KINDS), SIZE), copies * len(click_times)).astype(np.int32)[:, None],
        click_ts=click_ts,
        click_id=np.arange(len(click_ts)),
        action_ts=np.where(delay == NEVER, NEVER, np.where(delay == NEVER, 0, delay) + click_ts[:, None]),
        schema=SCHEMA,
    )


def _delays() -> tuple[Ints, Ints]:
    """Delays of conversion and cart of one copy of the law, kind by kind."""
    conversion = np.full((KINDS, SIZE), NEVER)
    for kind, law in enumerate(DELAYS):
        converted = np.repeat([delay for delay, _ in law], [count for _, count in law])
        conversion[kind, : len(converted)] = converted
    row = np.arange(SIZE)
    # Converters are the first rows: they have more carts than others. Some carts come at the end of a horizon.
    early, late = (row < 20) | (row % 3 == 0), row % 4 == 1
    cart = np.where(early, 10 * MINUTE, np.where(late, 6 * HOUR, NEVER))
    return conversion.ravel(), np.tile(cart, KINDS)


def delays_of(kind: int) -> tuple[Ints, Ints]:
    """Delays of conversion and cart of the 100 clicks of one kind."""
    conversion, cart = (column.reshape(KINDS, SIZE)[kind] for column in _delays())
    return conversion, cart


def source_of(click_times: Sequence[int], copies: int = 1) -> TableSource:
    return TableSource(known_log(click_times, copies))


class Tabular(nn.Module):
    """Free outputs for each distinct input: the loss alone decides what is learnt, no net's bias does."""

    def __init__(self, *shape: int, capacity: int = 200) -> None:
        super().__init__()
        self.shape = shape
        self.logits = nn.Parameter(torch.zeros(capacity, *shape))
        self.known: dict[tuple[float, ...], int] = {}
        self._last = torch.empty(0), torch.empty(0, dtype=torch.int64)

    def forward(self, x: Tensor, *beside: Tensor) -> Tensor:
        inputs = torch.cat([part.reshape(len(x), -1).float() for part in (x, *beside)], dim=1)
        if not torch.equal(inputs, self._last[0]):  # a minimiser asks the same again and again
            self._last = inputs, self._position(inputs)
        return self.logits[self._last[1]]

    def _position(self, inputs: Tensor) -> Tensor:
        distinct, inverse = torch.unique(inputs, dim=0, return_inverse=True)
        index = [self.known.setdefault(tuple(row), len(self.known)) for row in distinct.tolist()]
        return torch.tensor(index)[inverse]


def minimise(loss: Callable[[], Tensor], net: nn.Module) -> None:
    """Bring a smooth loss to its minimum in the parameters of a net."""
    optimiser = torch.optim.LBFGS(net.parameters(), max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
