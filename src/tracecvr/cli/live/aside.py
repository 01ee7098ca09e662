"""Events that are set aside: dated too far ahead, or in contradiction to earlier ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tracecvr.cli.live.arguments import AsJson, Store, store_at, time_of

if TYPE_CHECKING:
    from tracecvr.online.log.times import Times

app = typer.Typer(
    help="Events that are set aside: dated too far ahead, or contradicting earlier ones.", no_args_is_help=True
)


@app.command("list")
def list_aside(store: Store, as_json: AsJson = False) -> None:
    """Events that are set aside, and why; one per line."""
    live_store = store_at(store)
    log, times = live_store.log(), live_store.times
    rows = [
        {"event": e.event, "reason": "dated too far ahead", "ts": times.shown(e.ts), "time": times.iso(e.ts)}
        for _, e in log.ahead()
    ]
    rows += [{"event": event, "reason": "contradicts an earlier one"} for event, _ in log.contradictions()]
    for row in rows:
        typer.echo(json.dumps(row) if as_json else ", ".join(f"{name}: {value}" for name, value in row.items()))


@app.command()
def accept(
    store: Store,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Accept events dated up to this time; by default those that the clock allows now.",
        ),
    ] = None,
) -> None:
    """Accept events that were set aside because of their date. What is over by their time is closed."""
    live_store = store_at(store)
    receipt = live_store.log().accept_ahead(None if to is None else time_of(live_store, to, "--to"))
    left = len(live_store.log().ahead())
    typer.echo(f"accepted: {receipt.accepted:,}, duplicates: {receipt.duplicates:,}, left: {left:,}")


@app.command()
def drop(store: Store) -> None:
    """Delete the events that are set aside."""
    ahead, contradictions = store_at(store).log().drop_aside()
    typer.echo(f"dropped: {ahead:,} events dated too far ahead, {contradictions:,} contradictions")


def set_aside(times: Times, events: int, not_kept: int, limit: int) -> str:
    """What to tell a sender whose events are dated too far ahead."""
    when = times.iso(limit) or f"second {limit}"
    text = f"set aside: {events:,} events are dated later than {when}, which is not believed"
    if not_kept:
        text += f"; {not_kept:,} of them were not kept, because too many are"
    return f"{text}; see `tracecvr aside list`, and `tracecvr status` for how times are read"
