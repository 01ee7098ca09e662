"""Versions of a live model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import AsJson, Store, store_at

app = typer.Typer(help="Versions of a live model: list them, choose which serves.", no_args_is_help=True)


@app.command("list")
def list_models(store: Store, as_json: AsJson = False) -> None:
    """The versions, and which of them serves."""
    versions = store_at(store).versions
    serving = versions.serving()
    rows = [
        {
            "version": m["intervals"],
            "serves": m["intervals"] == serving,
            "published": m["published"],
            "undone": m["undone"],
            "clicks": m["tick"]["clicks"],
            "events": m["tick"]["events"],
            "weights": m["weights"],
        }
        for m in versions.manifests()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        mark = "serves" if row["serves"] else "" if row["published"] else f"undone: {row['undone']}"
        typer.echo(f"{row['version']:>6}  {row['clicks']:>8,} clicks  {row['events']:>9,} events  {mark}".rstrip())


@app.command()
def promote(
    store: Store,
    version: Annotated[
        str, typer.Argument(help="A version; `newest` for always the newest; the name of a challenger for its newest.")
    ],
) -> None:
    """Let a version, or a challenger, serve until another is chosen. Training goes on as before."""
    from tracecvr.online.store.challenge import list_names, promote_challenger, promote_own

    opened_store = store_at(store)
    if version == "newest" or version.isdecimal():
        promote_own(opened_store, None if version == "newest" else int(version))
    elif version in list_names(opened_store):
        promote_challenger(opened_store, version)
    else:
        raise UserError(
            f"version {version!r}: give a number of `tracecvr models list`, newest, or the name of a challenger"
        )
    typer.echo(f"serving: {version}")


@app.command()
def rollback(store: Store) -> None:
    """Let what served before do so: the model before a challenger was promoted, or the version before the one that
    serves. Training goes on as before."""
    from tracecvr.online.store.challenge import rollback

    typer.echo(f"serving: {rollback(store_at(store))}")
