"""Brokers that events come from, and messages that could not be read."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tracecvr.errors import UserError
from tracecvr.online.cli.arguments import AsJson, Store, flat, store_at

app = typer.Typer(
    help="Brokers that events are pulled from: how far they were read, what was set aside.", no_args_is_help=True
)


@app.command("list")
def list_sources(store: Store, as_json: AsJson = False) -> None:
    """How far each source was read, and what became of its messages."""
    found = store_at(store).inbox().sources()
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(f"{k}: {v}" for k, v in flat(found)))


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
    from tracecvr.online.sources.messages import parsed

    found = store_at(store)
    log, values = found.inbox(), _values(fill or [], found.reader.features)
    again = [parsed(found.reader, message, values) for message, _, _ in log.aside()]
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
    found = store_at(store)
    from tracecvr.online.sources.pump import held

    with held(found):
        found.inbox().forget(source)
    typer.echo(f"forgotten: {source}")


def _values(pairs: list[str], features: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in features:
            raise UserError(f"--fill {pair}: there is no feature {name!r}; known: {', '.join(features)}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            raise UserError(f"--fill {pair}: expected a value in JSON: a number, null, or text in quotes") from None
    return found
