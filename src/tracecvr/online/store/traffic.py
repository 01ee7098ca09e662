"""Which model answers a click: the one that was promoted, or a challenger that has a share of the clicks.

`STORE/traffic.json` holds the choice; without it the store's own model answers everything. Whatever it says, learning
goes on as before: it changes what is served, never what is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import xxhash

from tracecvr.base.errors import UserError
from tracecvr.online.store import choices

NAME = choices.TRAFFIC
CLICK_ID, USER = "click_id", "user"


@dataclass(frozen=True)
class Traffic:
    """Which model answers which clicks: the name of a challenger, or None for the store's own."""

    model: str | None = None
    """Answers everything that no share is given of."""
    shares: dict[str, float] = field(default_factory=dict)
    """By challenger: the share of the clicks that it answers."""
    column: str = CLICK_ID
    """Clicks with the same value of it are answered by the same model: `click_id`, `user`, or a feature."""
    before: str | None = None
    """The model that answered before the last promotion."""

    def choose(self, value: object) -> str | None:
        """The model that answers a click, by its value of the column; one without a value is in no share."""
        place = 1.0 if value is None else xxhash.xxh3_64_intdigest(f"share:{value}".encode()) / 2**64
        end = 0.0
        for name in sorted(self.shares):
            end += self.shares[name]
            if place < end:
                return name
        return self.model

    def with_share(self, name: str, share: float, column: str | None = None) -> Traffic:
        """The same with a share of the clicks for a challenger, or an error that says why it cannot have it."""
        if not 0 <= share <= 1:
            raise UserError(f"share {share:g}: give a number from 0 to 1")
        if share and self.model == name:
            raise UserError(f"{name!r} answers everything already: it needs no share")
        others = {n: s for n, s in self.shares.items() if n != name}
        if (taken := math.fsum(others.values())) + share > 1 + 1e-9:
            raise UserError(f"share {share:g}: other challengers have {taken:g}, and that is more than 1 together")
        if others and column not in (None, self.column):
            raise UserError(f"--by {column}: other challengers have shares by {self.column!r}; take them back first")
        return replace(self, shares=others | ({name: share} if share else {}), column=column or self.column)


def current(folder: Path) -> Traffic:
    """As a store's directory says now."""
    return Traffic(**choices.read(folder / NAME) or {})


def promote(folder: Path, model: str | None) -> Traffic:
    """Let a model answer everything that no share is given of."""

    def change(traffic: Traffic) -> Traffic:
        if traffic.model == model:
            return traffic
        shares = {name: share for name, share in traffic.shares.items() if name != model}
        return replace(traffic, model=model, shares=shares, before=traffic.model)

    return _change(folder, change)


def rollback(folder: Path) -> Traffic | None:
    """Let the model answer that did before the last promotion; None if the store's own answers already."""
    if current(folder).model is None:
        return None
    return _change(folder, lambda now: replace(now, model=now.before, before=None))


def give_share(folder: Path, name: str, share: float, column: str | None = None) -> Traffic:
    """Let a challenger answer a share of the clicks, chosen by a hash of a column; 0 takes it back."""
    return _change(folder, lambda now: now.with_share(name, share, column))


def forget(folder: Path, name: str) -> None:
    """Take everything back that a challenger was given; one that was promoted has to be rolled back first."""

    def change(traffic: Traffic) -> Traffic:
        if traffic.model == name:
            raise UserError(f"{name!r} serves: promote another first, or roll back (`tracecvr models rollback`)")
        shares = {n: s for n, s in traffic.shares.items() if n != name}
        before = None if traffic.before == name else traffic.before
        return replace(traffic, shares=shares, before=before)

    _change(folder, change)


def _change(folder: Path, change: Callable[[Traffic], Traffic]) -> Traffic:
    return Traffic(**choices.change(folder / NAME, lambda old: asdict(change(Traffic(**old or {})))))
