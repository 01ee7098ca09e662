"""A store at work: events go in, intervals are learnt, what became of them is looked at."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import AsJson, Store, print_facts, store_at, time_of

if TYPE_CHECKING:
    from tracecvr.online.learner.learner import Tick
    from tracecvr.online.store.store import Store as LiveStore


aside_app = typer.Typer(
    help="What is set aside: events dated too far ahead or contradicting others, messages that could not be read.",
    no_args_is_help=True,
)

_ASKED = 10_000
"""Clicks of actions that are looked up after all events of a file are in."""


def ingest(
    store: Store,
    file: Annotated[Path, typer.Argument(help="Events, one JSON object per line; - for standard input.")] = Path("-"),
    batch: Annotated[int, typer.Option(min=1, help="Events that are accepted together.")] = 500,
) -> None:
    """Accept events into the log of a live model. To send some twice does no harm."""
    opened_store = store_at(store)
    log, totals = opened_store.log(), Counter(accepted=0, duplicates=0)
    lines, acted = _lines(file), dict[int, object]()
    while chunk := list(islice(lines, batch)):
        rows = []
        for number, line in chunk:
            try:
                content = json.loads(line.decode())
                rows.append(opened_store.reader.read(content))
                if rows[-1].kind and len(acted) < _ASKED:
                    acted.setdefault(rows[-1].click, content["click_id"])
            except (UserError, ValueError, RecursionError) as error:  # text that is not UTF-8, or not JSON
                accepted = f"lines before {chunk[0][0]} are accepted; mend it and send the file again"
                raise UserError(f"{file}: line {number}: {error}; {accepted}") from None
        receipt = log.append(rows)
        totals.update({"accepted": receipt.accepted, "duplicates": receipt.duplicates, **receipt.counts})
    typer.echo(", ".join(f"{name}: {n:,}" for name, n in totals.items()))
    if totals["future"]:
        when = opened_store.times.iso(receipt.limit) or f"second {receipt.limit}"
        text = f"set aside: {totals['future']:,} events are dated later than {when}, which is not believed"
        if totals["not_kept"]:
            text += f"; {totals['not_kept']:,} of them were not kept, because too many are"
        typer.echo(f"{text}; see `tracecvr aside list`, and `tracecvr status` for how times are read", err=True)
    _say_orphans(opened_store, acted)


def _say_orphans(store: LiveStore, acted: Mapping[int, object]) -> None:
    """Warn if most actions are of unknown clicks: most likely their ids are not those of the clicks."""
    orphans = store.unknown_clicks(acted)
    if 2 * len(orphans) > len(acted):
        example = json.dumps(acted[orphans[0]], ensure_ascii=False)
        typer.echo(
            f"warning: {len(orphans):,} of {len(acted):,} clicks that actions name are not known to this store, such "
            f"as {example}: these actions have no effect unless their clicks come. Ids must be those of the clicks: "
            'the number 17 and the text "17" are two ids',
            err=True,
        )


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as lines:
        yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def tick(
    store: Store,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Close every interval that ends by this time first; written as the events' times."),
    ] = None,
) -> None:
    """Learn every interval that is closed, then end."""
    from tracecvr.online.challengers.learners import Learners

    opened_store = store_at(store)
    if to is not None:
        opened_store.log().close_until(time_of(opened_store, to, "--to"))
    with Learners(opened_store) as learners:
        for done in learners.all():
            _say(done)


def learn(
    store: Store,
    poll: Annotated[float, typer.Option(min=0.01, help="Seconds between looks at the log.")] = 1.0,
) -> None:
    """Learn each interval as it is closed, until stopped. Stop it in any way: it goes on where it was."""
    from tracecvr.online.challengers.learners import Learners

    with Learners(store_at(store)) as learners:
        for done in learners.follow(poll):
            _say(done)


def _say(done: Tick) -> None:
    word = f"undone: {done.undone}" if done.undone else f"version {done.number + 1}"
    which = f"interval {done.number}"
    if done.intervals > 1:
        which = f"intervals {done.number - done.intervals + 1} to {done.number}"
    if done.model is not None:
        which = f"{done.model}: {which}"
    typer.echo(f"{which}: {done.clicks:,} clicks, {done.events:,} events, {done.seconds:.2f} s, {word}", err=True)


def status(store: Store, as_json: AsJson = False) -> None:
    """What was accepted, how far the learner is, and how well it predicts."""
    from tracecvr.online.upkeep.status import status_of

    print_facts(status_of(store_at(store)), as_json)


def table(
    store: Store, out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory of the table, a new one.")]
) -> None:
    """Write the log of a live model as a prepared table, for `run` and `bench`."""
    from tracecvr.online.upkeep.verify_log import write_table

    made = write_table(store_at(store), out)
    typer.echo(f"table: {out}, {len(made):,} clicks; --data {made.schema.dataset} --source {out}")


def verify(
    store: Store,
    replay: Annotated[bool, typer.Option("--replay", help="Learn everything again and compare, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a live model as a whole: files, log, versions, archive. Nothing else may learn in it meanwhile."""
    from dataclasses import asdict

    from tracecvr.api import shown
    from tracecvr.online.upkeep import store_check as checking

    live_store = store_at(store, check=False)
    report = checking.verify(live_store)
    if replay and all(finding.fine for finding in report):
        with shown.progress(True) as progress:
            report += checking.replay(live_store, progress)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in report], indent=2))
    else:
        for finding in report:
            typer.echo(f"{finding.part}: {finding.text}" if finding.fine else f"{finding.part}: WRONG: {finding.text}")
    if not all(finding.fine for finding in report):
        raise typer.Exit(1)


def compact(store: Store) -> None:
    """Move events that no horizon needs any more from the database to Parquet."""
    from tracecvr.online.learner.archive import compact

    typer.echo(f"archived: {compact(store_at(store)):,} events")


def erase(store: Store, user: Annotated[str, typer.Argument(help="As the events name the user.")]) -> None:
    """Delete all events of a user, for good. Models keep what they have learnt."""
    from tracecvr.online.learner.archive import erase

    clicks, actions = erase(store_at(store), user)
    typer.echo(f"erased: {clicks:,} clicks, {actions:,} actions")


def events(
    source: Annotated[Path | None, typer.Option("--source", help="A directory written by `prepare`.")] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="RUN", help="The log of a finished run, from where it ended.")
    ] = None,
    end: Annotated[str, typer.Option("--end", help="Up to this time.")] = "36500d",
) -> None:
    """Print a log, from its split or the end of the run, as the events that a live system would have been sent, one
    JSON object per line. Times are ISO 8601 text if the log has a calendar, else seconds since its origin."""
    from tracecvr.base import config
    from tracecvr.online.dataset_events import events_of, log_of_run, log_of_table
    from tracecvr.online.log.times import Times

    if model is not None and source is None:
        dataset, raw, first = log_of_run(model)
    elif source is not None and model is None:
        dataset, raw, first = log_of_table(source)
    else:
        raise UserError("give either a log that `tracecvr prepare` has written, as --source, or a run as --model")
    times = Times("log" if (origin := dataset.origin()) is None else "iso", origin)
    for event in events_of(dataset, raw, first, config.parse_duration(end, "--end")):
        event["ts"] = times.show(event["ts"])
        sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")


# What is set aside.


@aside_app.command("list")
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


@aside_app.command()
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


@aside_app.command()
def drop(store: Store) -> None:
    """Delete what is set aside."""
    typer.echo(f"dropped: {store_at(store).log().drop_aside():,}")
