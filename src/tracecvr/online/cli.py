"""The live learner's commands. Imported by the command line at every start, so it imports nothing heavy itself."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracecvr.errors import UserError

if TYPE_CHECKING:
    from tracecvr.online.learner import Tick
    from tracecvr.online.service.options import Options
    from tracecvr.online.sources import Source as PulledFrom
    from tracecvr.online.store import Store as LiveStore

Store = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the live model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[str, typer.Option("--data", help="Dataset, as listed by `tracecvr datasets`.")]
Source = Annotated[Path | None, typer.Option("--source", help="Raw log, or a directory written by `prepare`.")]
DataSettings = Annotated[
    list[str] | None, typer.Option("--data-set", metavar="KEY=VALUE", help="Option of the dataset.")
]

Url = Annotated[str, typer.Option("--source", metavar="URL", help="nats://HOST/STREAM or kafka://HOST/TOPIC.")]
_FROM = typer.Option(
    "--from",
    "--start",
    help="Where a source starts that is new: earliest, latest, a position, @SECONDS since 1970, a time.",
)
From = Annotated[str, _FROM]
Announce = Annotated[
    str | None, typer.Option("--announce", help="Subject or topic that is told of new versions, at the same broker.")
]
SourceConfig = Annotated[
    Path | None, typer.Option("--source-config", help="TOML file for the broker's client: credentials, TLS.")
]

models = typer.Typer(help="Versions of a live model: list them, choose which serves.", no_args_is_help=True)

sources = typer.Typer(
    help="Brokers that events are pulled from: how far they were read, what was set aside.", no_args_is_help=True
)


def add_to(app: typer.Typer) -> None:
    """Give the command line the commands of this room."""
    for command in (init, ingest, tick, learn, serve, pull, token, status, compact, erase):
        app.command()(command)
    app.command("replay-log")(replay_log)
    app.command("events")(events)
    app.add_typer(models, name="models")
    app.add_typer(sources, name="sources")


def init(
    told: typer.Context,
    store: Store,
    data: Annotated[str | None, typer.Option("--data", help="Dataset, as listed by `tracecvr datasets`.")] = None,
    source: Source = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="RUN", help="Go on where a finished run over the log ended.")
    ] = None,
    method: Annotated[str, typer.Option("--method")] = "trace",
    plugin: Annotated[list[str] | None, typer.Option("--plugin", help="A plugin, as often as needed.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Option of the method or of a plugin.")
    ] = None,
    data_set: DataSettings = None,
    lateness: Annotated[str, typer.Option(help="How long an interval waits for late events.")] = "1h",
    warm_labels: Annotated[str, typer.Option(help="censored, as known at the split; or mature.")] = "censored",
    keep: Annotated[int, typer.Option(min=2, help="Versions to keep.")] = 48,
    seed: int = 0,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Create a live model. It starts where a log is split, its clicks before that the warm-up; or where a run ended."""
    from tracecvr import config
    from tracecvr.online.store import Settings, Store

    waits = config.duration(lateness, "--lateness")
    if model is not None:
        _refuse_beside_model(told)
        _made_of_run(store, model, source, waits, keep)
        return
    if data is None:
        raise UserError("--data is missing: name the dataset of a log, or give a finished run as --model")
    found = Store.from_log(
        store,
        data,
        source,
        data_set or (),
        method,
        plugin or (),
        config.pairs(settings or [], "--set"),
        Settings(
            lateness=waits,
            warm_labels=config.chosen(warm_labels, ("censored", "mature"), "--warm-labels"),
            keep=keep,
            seed=seed,
            threads=threads,
        ),
    )
    _say_made(found)


def _refuse_beside_model(told: typer.Context) -> None:
    """A run has its own method, log and seed: who asks for others should not believe that he got them."""
    for name in ("data", "data_set", "method", "plugin", "settings", "warm_labels", "seed", "threads"):
        if (how := told.get_parameter_source(name)) is not None and how.name == "COMMANDLINE":
            flag = {"settings": "set"}.get(name, name.replace("_", "-"))
            raise UserError(f"--{flag} is the run's: leave it out beside --model")


def _made_of_run(store: Path, run: Path, source: Path | None, lateness: int, keep: int) -> LiveStore:
    """A store that goes on where a run ended, with a version to serve at once."""
    from tracecvr.online.learner import opened
    from tracecvr.online.store import Store

    made = Store.from_run(store, run, source, lateness, keep)
    with opened(made):
        _say_made(made)
    return made


def _say_made(store: LiveStore) -> None:
    typer.echo(f"store: {store.folder}; its stream starts at {store.grid.split} s")
    typer.echo(f"next: tracecvr ingest {store.folder} EVENTS, and tracecvr learn {store.folder}")


def ingest(
    store: Store,
    file: Annotated[Path, typer.Argument(help="Events, one JSON object per line; - for standard input.")] = Path("-"),
    batch: Annotated[int, typer.Option(min=1, help="Events that are accepted together.")] = 500,
) -> None:
    """Accept events into the log of a live model. To send some twice does no harm."""
    opened = _opened(store)
    log, totals = opened.log(), {"accepted": 0, "duplicates": 0}
    lines = _lines(file)
    while chunk := list(islice(lines, batch)):
        rows = []
        for number, line in chunk:
            try:
                rows.append(opened.reader.read(json.loads(line)))
            except (UserError, json.JSONDecodeError) as error:
                accepted = f"lines before {chunk[0][0]} are accepted; mend it and send the file again"
                raise UserError(f"{file}: line {number}: {error}; {accepted}") from None
        receipt = log.append(rows)
        for name, n in {"accepted": receipt.accepted, "duplicates": receipt.duplicates, **receipt.counts}.items():
            totals[name] = totals.get(name, 0) + n
    typer.echo(", ".join(f"{name}: {n:,}" for name, n in totals.items()))


def tick(
    store: Store,
    to: Annotated[int | None, typer.Option("--to", help="Close every interval that ends by this time first.")] = None,
) -> None:
    """Learn every interval that is closed, then end."""
    from tracecvr.online.learner import opened

    found = _opened(store)
    if to is not None:
        found.log().close_until(to)
    with opened(found) as learner:
        while (done := learner.tick()) is not None:
            _say(done)


def learn(
    store: Store,
    poll: Annotated[float, typer.Option(min=0.01, help="Seconds between looks at the log.")] = 1.0,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Learn each interval as it is closed, until stopped. Stop it in any way: it goes on where it was."""
    if with_parent:
        _end_with_parent()
    from tracecvr.online.learner import opened

    with opened(_opened(store)) as learner:
        for done in learner.follow(poll):
            _say(done)


def serve(
    place: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Directory of the live model.")] = None,
    store: Annotated[Path | None, typer.Option("--store", help="The same, by its name.")] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="RUN", help="Create STORE, if there is none yet, where a finished run ended."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file of these options; flags win.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen at, 127.0.0.1 by default; others need --tokens.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="8000 by default; 0 for a free one.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="TOML file of tokens and scopes: see `tracecvr token`.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS key, PEM.")] = None,
    learn: Annotated[bool | None, typer.Option("--learn/--no-learn", help="Run the learner beside it, or not.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Requests per second of each token, 500.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Events or clicks of one request, 500.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="URL", help="Pull events, too: see `tracecvr pull`.")
    ] = None,
    start: Annotated[str | None, _FROM] = None,
    announce: Announce = None,
    source_config: SourceConfig = None,
) -> None:
    """Serve a live model over HTTP: score, accept events, watch it learn at /."""
    try:
        from tracecvr.online.service.options import Options
        from tracecvr.online.service.serve import Address
        from tracecvr.online.service.serve import serve as answer
    except ImportError:
        raise UserError("the service is an extra: pip install 'tracecvr[serve]'") from None
    if place is not None and store is not None:
        raise UserError("STORE and --store are the same: give one")
    flags: dict[str, Any] = {"store": place or store, "model": model, "host": host, "port": port, "tokens": tokens}
    flags |= {"certificate": certificate, "key": key, "learn": learn, "rate": rate, "batch": batch}
    flags |= {"source": source, "start": start, "announce": announce, "source_config": source_config}
    chosen = Options.told(config, flags)
    address = Address(chosen.host, chosen.port, chosen.path("certificate"), chosen.path("key"))
    found = _opened_or_made(chosen.path("store"), chosen.path("model"))
    answer(found, chosen.path("tokens"), address, chosen, chosen.learn, _pulled(chosen), _say_where)


def _pulled(told: Options) -> PulledFrom | None:
    if told.source is not None:
        return _source(told.source, told.start, told.announce, told.path("source_config"))
    if told.announce is not None:
        raise UserError("--announce needs --source: versions are announced at the broker that events come from")
    return None


def _opened_or_made(store: Path | None, model: Path | None) -> LiveStore:
    """A store: as it is, or made of a run the first time that it is asked for."""
    if store is None:
        raise UserError("which store? give the directory that `tracecvr init` has made")
    if model is None:
        return _opened(store)
    from tracecvr.online.origin import Origin
    from tracecvr.online.store import Settings, Store

    if not store.exists():
        return _made_of_run(store, model, None, Settings.lateness, Settings.keep)
    found = Store.open(store)
    if found.start != Origin.of(model).start:
        raise UserError(f"{store} does not go on from {model}: leave --model out, or choose another store")
    return found


def pull(
    store: Store,
    source: Url,
    start: From = "earliest",
    announce: Announce = None,
    source_config: SourceConfig = None,
    batch: Annotated[int, typer.Option(min=1, help="Messages that are committed together.")] = 500,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left.")] = False,
) -> None:
    """Pull events from a broker into the log of a live model. Stop it in any way: it goes on where the store is."""
    found = _opened(store)
    from tracecvr.online.sources.pump import Pump

    pump = Pump(found, _source(source, start, announce, source_config), batch)
    if once:
        typer.echo(f"pulled: {pump.drain():,} messages")
    else:
        pump.run(threading.Event())


def token(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    scope: Annotated[list[str], typer.Option("--scope", help="score, ingest or admin, as often as needed.")],
) -> None:
    """Make a token: it is printed once; its entry, which holds its hash only, is for the file of `serve --tokens`."""
    from tracecvr import config
    from tracecvr.online.service.auth import SCOPES, new_token

    scopes = [config.chosen(s, SCOPES, "--scope") for s in scope]
    made, digest = new_token()
    typer.echo(f"token: {made}", err=True)
    typer.echo(f"[[token]]\nname = {json.dumps(name)}\nsha256 = {json.dumps(digest)}\nscopes = {json.dumps(scopes)}")


def status(store: Store, as_json: AsJson = False) -> None:
    """What was accepted, how far the learner is, and how well it predicts."""
    from tracecvr.online.report import status_of

    found = status_of(_opened(store))
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(f"{k}: {v}" for k, v in _flat(found)))


def replay_log(
    store: Store,
    table: Annotated[
        Path | None, typer.Option("--table", help="Only write the log as a prepared table, for `run` and `bench`.")
    ] = None,
) -> None:
    """Learn everything again from the log alone, and compare with the versions."""
    from rich.console import Console

    from tracecvr.online.relive import as_table, relive
    from tracecvr.progress import Display

    found = _opened(store)
    if table is not None:
        made = as_table(found, table)
        typer.echo(f"table: {table}, {len(made):,} clicks; --data {made.schema.dataset} --source {table}")
        return
    with Display(Console(stderr=True)) as progress:
        relived = relive(found, progress)
    typer.echo(relived.summary())
    if not relived.same:
        raise typer.Exit(1)


def compact(store: Store) -> None:
    """Move events that no horizon needs any more from the database to Parquet."""
    from tracecvr.online.archive import compact

    found = _opened(store)
    typer.echo(f"archived: {compact(found, found.engine().memory):,} events")


def erase(store: Store, user: Annotated[str, typer.Argument(help="As the events name the user.")]) -> None:
    """Delete all events of a user, for good. Models keep what they have learnt."""
    from tracecvr.online.archive import erase

    clicks, actions = erase(_opened(store), user)
    typer.echo(f"erased: {clicks:,} clicks, {actions:,} actions")


def events(
    data: Data,
    source: Source = None,
    data_set: DataSettings = None,
    start: Annotated[str | None, typer.Option("--start", help="From this time on; the split by default.")] = None,
    end: Annotated[str, typer.Option("--end", help="Up to this time.")] = "36500d",
) -> None:
    """Print a log as the events that a live system would have been sent, one JSON object per line."""
    from tracecvr import config
    from tracecvr.online.feed import events_of
    from tracecvr.spec import dataset_of

    dataset = dataset_of(data, data_set or ())
    first = dataset.split if start is None else config.duration(start, "--start")
    for event in events_of(dataset, source, first, config.duration(end, "--end")):
        sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")


@models.command("list")
def list_models(store: Store, as_json: AsJson = False) -> None:
    """The versions, and which of them serves."""
    found = _versions(store)
    serving = found.serving()
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
        for m in found.listed()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        mark = "serves" if row["serves"] else "" if row["published"] else f"undone: {row['undone']}"
        typer.echo(f"{row['version']:>6}  {row['clicks']:>8,} clicks  {row['events']:>9,} events  {mark}".rstrip())


@models.command()
def promote(
    store: Store,
    version: Annotated[str, typer.Argument(help="A version; `newest` for always the newest.")],
) -> None:
    """Let a version serve until another is chosen. Training goes on as before."""
    if version != "newest" and not version.isdecimal():
        raise UserError(f"version {version!r}: give a number of `tracecvr models list`, or newest")
    _versions(store).promote(None if version == "newest" else int(version))
    typer.echo(f"serving: {version}")


@models.command()
def rollback(store: Store) -> None:
    """Let the version before the one that serves do so. Training goes on as before."""
    typer.echo(f"serving: {_versions(store).rollback()}")


@sources.command("list")
def list_sources(store: Store, as_json: AsJson = False) -> None:
    """How far each source was read, and what became of its messages."""
    found = _opened(store).inbox().sources()
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(f"{k}: {v}" for k, v in _flat(found)))


@sources.command()
def aside(
    store: Store,
    payload: Annotated[bool, typer.Option("--payload", help="Print the messages themselves, for `ingest`.")] = False,
) -> None:
    """List the messages that could not be read, and why."""
    for message, reason, _ in _opened(store).inbox().aside():
        typer.echo(message.payload if payload else reason)


@sources.command()
def replay(
    store: Store,
    fill: Annotated[
        list[str] | None, typer.Option("--fill", metavar="FEATURE=JSON", help="A value for clicks that lack it.")
    ] = None,
) -> None:
    """Read messages that were set aside again, once the cause is mended; what can be read is accepted."""
    from tracecvr.online.sources.messages import parsed

    opened = _opened(store)
    log, values = opened.inbox(), _values(fill or [], opened.reader.features)
    again = [parsed(opened.reader, message, values) for message, _, _ in log.aside()]
    mended = [p for p in again if not p.reason]
    receipt = log.mend(mended)
    typer.echo(f"read: {len(mended):,} messages, accepted: {receipt.accepted:,}, left: {len(again) - len(mended):,}")


@sources.command()
def drop(store: Store) -> None:
    """Delete the messages that were set aside."""
    log = _opened(store).inbox()
    messages = [message for message, _, _ in log.aside()]
    log.drop(messages)
    typer.echo(f"dropped: {len(messages):,} messages")


@sources.command()
def forget(store: Store, source: Annotated[str, typer.Argument(help="As listed by `tracecvr sources list`.")]) -> None:
    """Forget how far a source was read: it will be read from --from on. Events that come again count once."""
    found = _opened(store)
    from tracecvr.online.sources.pump import held

    with held(found):
        found.inbox().forget(source)
    typer.echo(f"forgotten: {source}")


def _source(url: str, start: str, announce: str | None, config: Path | None) -> PulledFrom:
    from tracecvr.online.sources import Source

    found = Source.of(url, start, announce, config)
    found.check()
    return found


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


def _opened(store: Path) -> LiveStore:
    try:
        from tracecvr.online.store import Store
    except ImportError:
        raise UserError("the live learner is an extra: pip install 'tracecvr[online]'") from None
    return Store.open(store)


def _end_with_parent() -> None:
    """End when the process that holds the other end of standard input does, however it ends."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _versions(store: Path) -> Any:
    from tracecvr.online.versions import Versions

    found = _opened(store)
    return Versions(found.folder, found.settings.keep)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    if str(file) == "-":
        yield from ((number, line) for number, line in enumerate(sys.stdin, start=1) if line.strip())
        return
    with file.open(encoding="utf-8") as lines:
        yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _say(done: Tick) -> None:
    word = f"undone: {done.undone}" if done.undone else f"version {done.number + 1}"
    typer.echo(
        f"interval {done.number}: {done.clicks:,} clicks, {done.events:,} events, {done.seconds:.2f} s, {word}",
        err=True,
    )


def _say_where(url: str) -> None:
    typer.echo(f"listening: {url}\ndashboard: {url}/", err=True)


def _flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", f"{value:.4g}" if isinstance(value, float) else value
