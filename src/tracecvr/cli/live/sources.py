"""Brokers that events come from, and messages that could not be read."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import AsJson, Store, flat, store_at

app = typer.Typer(
    help="Brokers that events are pulled from: how far they were read, what was set aside.", no_args_is_help=True
)


@app.command("list")
def list_sources(store: Store, as_json: AsJson = False) -> None:
    """How far each source was read, and what became of its messages."""
    content = store_at(store).inbox().sources()
    typer.echo(json.dumps(content, indent=2) if as_json else "\n".join(f"{k}: {v}" for k, v in flat(content)))


@app.command()
def aside(
    store: Store,
    payload: Annotated[bool, typer.Option("--payload", help="Print the messages themselves, for `ingest`.")] = False,
) -> None:
    """List the messages that could not be read, and why."""
    for message, reason, _ in store_at(store).inbox().aside():
        typer.echo(message.payload if payload else reason)


@app.command()
def replay(
    store: Store,
    fill: Annotated[
        list[str] | None, typer.Option("--fill", metavar="FEATURE=JSON", help="A value for clicks that lack it.")
    ] = None,
) -> None:
    """Read messages that were set aside again, once the cause is mended; what can be read is accepted."""
    from tracecvr.online.sources.messages import parse

    opened_store = store_at(store)
    log, values = opened_store.inbox(), _values(fill or [], opened_store.reader.features)
    again = [parse(opened_store.reader, message, values) for message, _, _ in log.aside()]
    mended = [p for p in again if not p.reason]
    receipt = log.mend(mended)
    typer.echo(f"read: {len(mended):,} messages, accepted: {receipt.accepted:,}, left: {len(again) - len(mended):,}")


@app.command()
def drop(store: Store) -> None:
    """Delete the messages that were set aside."""
    log = store_at(store).inbox()
    messages = [message for message, _, _ in log.aside()]
    log.drop(messages)
    typer.echo(f"dropped: {len(messages):,} messages")


@app.command()
def forget(store: Store, source: Annotated[str, typer.Argument(help="As listed by `tracecvr sources list`.")]) -> None:
    """Forget how far a source was read: it will be read from --from on. Events that come again count once."""
    opened_store = store_at(store)
    from tracecvr.online.sources.pump import pump_lock

    with pump_lock(opened_store):
        opened_store.inbox().forget(source)
    typer.echo(f"forgotten: {source}")


def _values(pairs: list[str], features: tuple[str, ...]) -> dict[str, Any]:
    values = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in features:
            raise UserError(f"--fill {pair}: there is no feature {name!r}; known: {', '.join(features)}")
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            raise UserError(f"--fill {pair}: expected a value in JSON: a number, null, or text in quotes") from None
    return values
