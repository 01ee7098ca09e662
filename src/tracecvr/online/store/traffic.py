"""Which model answers clicks: the store's own, or a challenger that was promoted.

`STORE/traffic.json` holds the choice; without it the store's own model answers. Whatever it says, learning goes on as
before: it changes what is served, never what is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tracecvr.base.errors import UserError
from tracecvr.online.store import choices

NAME = choices.TRAFFIC


@dataclass(frozen=True)
class Traffic:
    """Names of challengers; None is the store's own model."""

    model: str | None = None
    """Answers all clicks."""
    before: str | None = None
    """The model that answered before the last promotion."""


def current(folder: Path) -> Traffic:
    """As a store's directory says now."""
    return Traffic(**choices.read(folder / NAME) or {})


def promote(folder: Path, model: str | None) -> Traffic:
    """Let a model answer all clicks."""
    return _change(folder, lambda now: now if now.model == model else Traffic(model, before=now.model))


def rollback(folder: Path) -> Traffic | None:
    """Let the model answer that did before the last promotion; None if the store's own answers already."""
    if current(folder).model is None:
        return None
    return _change(folder, lambda now: Traffic(now.before))


def forget(folder: Path, name: str) -> None:
    """Never go back to a challenger; one that serves has to be rolled back first."""

    def change(now: Traffic) -> Traffic:
        if now.model == name:
            raise UserError(f"{name!r} serves: promote another first, or roll back (`tracecvr models rollback`)")
        return replace(now, before=None) if now.before == name else now

    _change(folder, change)


def _change(folder: Path, change: Callable[[Traffic], Traffic]) -> Traffic:
    return Traffic(**choices.change(folder / NAME, lambda old: asdict(change(Traffic(**old or {})))))
