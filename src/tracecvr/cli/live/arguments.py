"""What several commands take, and how they open a store and print what they found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracecvr.base.errors import UserError

if TYPE_CHECKING:
    from tracecvr.online.store import Store as LiveStore

Store = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the live model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Source = Annotated[Path | None, typer.Option("--source", help="Raw log, or a directory written by `prepare`.")]
DataSettings = Annotated[
    list[str] | None, typer.Option("--data-set", metavar="KEY=VALUE", help="Option of the dataset.")
]


def store_at(folder: Path, check: bool = True) -> LiveStore:
    """Open a store."""
    try:
        from tracecvr.online.store import Store
    except ImportError:
        raise UserError("the live learner is an extra: pip install 'tracecvr[online]'") from None
    return Store.open(folder, check)


def flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of nested facts, lists left out."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", f"{value:.4g}" if isinstance(value, float) else value


def time_of(store: LiveStore, text: str, option: str) -> int:
    """Seconds since a store's origin, of a time that is written as its events' are."""
    try:
        return store.times.read(int(text) if text.lstrip("-").isdecimal() else text)
    except UserError as error:
        raise UserError(f"{option}: {str(error).removeprefix('ts is ')}") from None
