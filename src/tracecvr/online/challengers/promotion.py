"""Choosing what serves: a version of the store's own model, or a challenger; and going back to what served before."""

from __future__ import annotations

from tracecvr.base.errors import UserError
from tracecvr.online.store import traffic
from tracecvr.online.store.challenge import Challenger, find_challenger, list_names
from tracecvr.online.store.store import Store


def promote_own(store: Store, version: int | None) -> None:
    """Let a version of the store's own model serve; None for always the newest."""
    store.versions.promote(version)
    leave_challenger(store)


def promote_challenger(store: Store, name: str) -> None:
    """Let the newest version of a challenger serve."""
    if _sound(store, name).versions.serving() is None:
        raise UserError(f"challenger {name!r} has no version yet: `tracecvr tick` or `tracecvr learn` makes one")
    traffic.promote(store.folder, name)


def _sound(store: Store, name: str) -> Challenger:
    """A challenger. If its files are damaged, the answer over HTTP has no path."""
    if name in list_names(store):
        try:
            return find_challenger(store, name)
        except UserError:
            raise UserError(f"challenger {name!r} is damaged: `tracecvr verify` says what is wrong") from None
    return find_challenger(store, name)


def leave_challenger(store: Store) -> None:
    """Let the store's own model serve, with the version that was chosen before."""
    if traffic.current(store.folder).model is not None:
        traffic.promote(store.folder, None)


def rollback(store: Store) -> str:
    """Let what served before the last promotion do so; its version or, of a challenger, its name."""
    before = traffic.rollback(store.folder)
    if before is None:
        return str(store.versions.rollback())
    return f"{store.versions.serving()}" if before.model is None else before.model
