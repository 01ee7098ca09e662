"""Brokers that events come from."""

from __future__ import annotations

from typing import Annotated

import typer

from tracecvr.cli.live.arguments import AsJson, Store, print_facts, store_at

app = typer.Typer(help="Brokers that events are pulled from: how far they were read.", no_args_is_help=True)


@app.command("list")
def list_sources(store: Store, as_json: AsJson = False) -> None:
    """How far each source was read, and what became of its messages."""
    print_facts(store_at(store).log().sources(), as_json)


@app.command()
def forget(store: Store, source: Annotated[str, typer.Argument(help="As listed by `tracecvr sources list`.")]) -> None:
    """Forget how far a source was read: it will be read from --from on. Events that come again count once."""
    opened_store = store_at(store)
    from tracecvr.online.sources.pump import pump_lock

    with pump_lock(opened_store):
        opened_store.log().forget(source)
    typer.echo(f"forgotten: {source}")
