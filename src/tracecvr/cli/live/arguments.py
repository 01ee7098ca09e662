"""What several commands take, and how they open a store and print what they found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracecvr.base.errors import UserError

if TYPE_CHECKING:
    from tracecvr.online.store.store import Store as LiveStore

Store = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the live model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Source = Annotated[Path | None, typer.Option("--source", help="Raw log, or a directory written by `prepare`.")]
DataSettings = Annotated[
    list[str] | None, typer.Option("--data-set", metavar="KEY=VALUE", help="Option of the dataset.")
]

Data = Annotated[
    str | None, typer.Option("--data", help="Dataset, as listed by `tracecvr datasets`; a prepared log tells its own.")
]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", help="Schema of a log of your own (dataset `logs`), as `inspect` proposes it."),
]


def with_schema(data_set: list[str] | None, schema: Path | None) -> list[str]:
    """Options of the dataset, of which `--schema FILE` is one."""
    return [*(data_set or []), *([] if schema is None else [f"schema={schema}"])]


def name_dataset(data: str | None, source: Path | None, schema: Path | None = None) -> str:
    """The dataset: as given, or that of a prepared log or a schema. Only a given name may be a file."""
    from tracecvr.base.registry import Given
    from tracecvr.data.prepared import dataset_name

    name = Given(data) if data else "logs" if schema is not None else dataset_name(source)
    if name is not None:
        return name
    if source is None:
        raise UserError("--data is missing: name the dataset, or give a prepared log as --source")
    if not source.exists():
        raise UserError(f"--source {source}: no such file or directory")
    raise UserError(
        f"--source {source} was not written by `tracecvr prepare`: name its dataset with --data; for a log of your "
        "own, give --schema (`tracecvr inspect` proposes one)"
    )


def store_at(folder: Path, check: bool = True) -> LiveStore:
    from tracecvr.online.store.store import Store

    return Store.open(folder, check)


def print_facts(content: dict[str, Any], as_json: bool) -> None:
    """Print nested facts: as JSON, or a line for each, lists left out."""
    typer.echo(json.dumps(content, indent=2) if as_json else "\n".join(_flatten(content)))


def _flatten(content: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield f"{prefix}{name}: {value:.4g}" if isinstance(value, float) else f"{prefix}{name}: {value}"


def time_of(store: LiveStore, text: str, option: str) -> int:
    """Seconds since a store's origin, of a time that is written as its events' are."""
    try:
        return store.times.read(int(text) if text.lstrip("-").isdecimal() else text)
    except UserError as error:
        raise UserError(f"{option}: {str(error).removeprefix('ts is ')}") from None
