"""What is set aside: events dated too far ahead or in contradiction to others, and messages that could not be read."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tracecvr.cli.live.arguments import AsJson, Store, store_at, time_of

app = typer.Typer(
    help="What is set aside: events dated too far ahead or contradicting others, messages that could not be read.",
    no_args_is_help=True,
)


@app.command("list")
def list_aside(
    store: Store,
    as_json: AsJson = False,
    payload: Annotated[
        bool, typer.Option("--payload", help="Print the messages that could not be read as they came, for `ingest`.")
    ] = False,
) -> None:
    """What is set aside, and why; one per line."""
    from tracecvr.online.log.event_log import UNREAD

    live_store = store_at(store)
    times = live_store.times
    for aside in live_store.log().aside(*([UNREAD] if payload else [])):
        row: dict[str, Any] = {"name": aside.name, "reason": aside.text}
        if aside.ts is not None:
            row |= {"ts": times.show(aside.ts), "time": times.iso(aside.ts)}
        if payload:
            typer.echo(aside.content)
        else:
            typer.echo(json.dumps(row) if as_json else ", ".join(f"{name}: {value}" for name, value in row.items()))


@app.command()
def accept(
    store: Store,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Accept events dated up to this time; by default those that the clock allows now."),
    ] = None,
) -> None:
    """Accept events that were set aside because of their date. What is over by their time is closed."""
    live_store = store_at(store)
    log = live_store.log()
    receipt = log.accept_ahead(None if to is None else time_of(live_store, to, "--to"))
    typer.echo(f"accepted: {receipt.accepted:,}, duplicates: {receipt.duplicates:,}, left: {log.count_aside():,}")


@app.command()
def drop(store: Store) -> None:
    """Delete what is set aside."""
    typer.echo(f"dropped: {store_at(store).log().drop_aside():,}")
