"""Stores are made: of a prepared log, or of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import Store
from tracecvr.stream import WARM_LABELS

if TYPE_CHECKING:
    from tracecvr.online.store.store import Store as LiveStore


def init(
    context: typer.Context,
    store: Store,
    source: Annotated[
        Path | None,
        typer.Option("--source", help="The log: a directory written by `prepare`; of a run, if it was moved."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="RUN", help="Go on where a finished run over the log ended.")
    ] = None,
    method: Annotated[str, typer.Option("--method")] = "telescoped",
    plugin: Annotated[list[str] | None, typer.Option("--plugin", help="A plugin, as often as needed.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Option of the method or of a plugin.")
    ] = None,
    lateness: Annotated[str, typer.Option(help="How long an interval waits for late events.")] = "1h",
    warm_labels: Annotated[
        str, typer.Option(help="Labels of the warm-up part: censored, as known at the split; or mature, final ones.")
    ] = WARM_LABELS[0],
    keep: Annotated[int, typer.Option(min=2, help="Versions to keep.")] = 48,
    seed: int = 0,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    time: Annotated[
        str | None,
        typer.Option(
            help="How events tell the time: unix or unix-ms (seconds or milliseconds since 1970), iso (text), or log "
            "(seconds since the log's origin). By default unix if the log has a calendar, else log."
        ),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(help="When second 0 of the log is, such as 2026-01-31T12:00:00Z, if the log does not say."),
    ] = None,
    gap: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="FROM TO",
            help="A time of the log without events or conversions, such as 44d 46d: it is not learnt, nor are clicks "
            "that were open then.",
        ),
    ] = None,
    hold_on_outage: Annotated[
        bool,
        typer.Option(
            "--hold-on-outage/--learn-outages",
            help="Learn nothing while conversions have stopped arriving, nor later from clicks that were open then.",
        ),
    ] = True,
    alarms_by: Annotated[
        str | None,
        typer.Option(metavar="FEATURE", help="Watch and forecast its values; by default the first with few values."),
    ] = None,
) -> None:
    """Create a live model. It starts where a log is split, its clicks before that the warm-up; or where a run ended."""
    from tracecvr.base import config
    from tracecvr.data.outages import pair
    from tracecvr.online.learner.learner import open_learner
    from tracecvr.online.log.times import UNITS, AskedTimes, unix_time
    from tracecvr.online.store.store import Settings, Store, read_parts

    chosen = Settings(
        lateness=config.parse_duration(lateness, "--lateness"),
        warm_labels=config.check_choice(warm_labels, WARM_LABELS, "--warm-labels"),
        keep=keep,
        seed=seed,
        threads=threads,
        hold_on_outage=hold_on_outage,
        outages=pair([config.parse_duration(end, "--gap") for end in gap or ()], "--gap"),
        alarms_by=alarms_by,
    )
    times = AskedTimes(
        None if time is None else config.check_choice(time, tuple(UNITS), "--time"),
        None if origin is None else unix_time(origin, "--origin"),
    )
    if model is not None:
        for name in ("method", "plugin", "settings", "warm_labels", "seed", "threads"):
            if (how := context.get_parameter_source(name)) is not None and how.name == "COMMANDLINE":
                flag = {"settings": "set"}.get(name, name.replace("_", "-"))
                raise UserError(f"--{flag} is the run's: leave it out beside --model")
        live_store = Store.from_run(store, model, source, chosen, times)
        with open_learner(live_store):  # a version to serve at once
            _say_made(live_store)
        typer.echo(f"the log may go on after the run: tracecvr events --model {model} prints what happened since")
        return
    if source is None:
        raise UserError("give a log that `tracecvr prepare` has written as --source, or a finished run as --model")
    refuse_files(method, plugin or [])
    made, plugins, stream = read_parts(method, plugin or (), config.pairs(settings or [], "--set"))
    _say_made(Store.create(store, source, made, plugins, chosen, stream=stream, times=times))


def refuse_files(method: str, plugins: list[str]) -> None:
    """A store must not name a file with code: opening it would execute the file."""
    from tracecvr.base.registry import as_entry_point

    for kind, name in (("method", method), *(("plugin", name) for name in plugins)):
        if name.endswith(".py"):
            raise UserError(f"--{kind} {name}: a live model cannot be made of a file; {as_entry_point(kind)}")


def _say_made(store: LiveStore) -> None:
    start = store.times.facts(store.grid.split)
    typer.echo(f"store: {store.folder}; its stream starts at {store.grid.split} s, {start['example']['means']}")
    typer.echo(f"events: ts is {start['ts']}; for example {json.dumps(start['example']['ts'])}")
    typer.echo(f"next: tracecvr ingest {store.folder} EVENTS, and tracecvr learn {store.folder}")
