"""The service, the pump of a broker's events, and tokens."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import Store, store_at
from tracecvr.cli.live.create import make_of_run

if TYPE_CHECKING:
    from tracecvr.online.service.options import Options
    from tracecvr.online.service.serve import Address
    from tracecvr.online.sources import BrokerSource as PulledFrom
    from tracecvr.online.store.store import Store as LiveStore

Url = Annotated[str, typer.Option("--source", metavar="URL", help="nats://HOST/STREAM or kafka://HOST/TOPIC.")]
_FROM = typer.Option("--from", "--start", help="Where a source starts that is new: earliest, latest, or a time.")
From = Annotated[str, _FROM]
SourceConfig = Annotated[
    Path | None, typer.Option("--source-config", help="TOML file for the broker's client: credentials, TLS.")
]


def serve(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Directory of the live model.")] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="RUN", help="Create STORE, if there is none yet, where a finished run ended."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file of these options; flags win.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen at, 127.0.0.1 by default; others need --tokens.")
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name by which it is asked, beside localhost and --host; may be repeated."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="8000 by default; 0 for a free one.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="TOML file of tokens and scopes: see `tracecvr token`.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS key, PEM.")] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            metavar="URL|DIR",
            help="Only score, from versions that another service publishes: its address, or the directory of its "
            "store. With an address, STORE is where the copy is kept.",
        ),
    ] = None,
    replica_token: Annotated[
        Path | None, typer.Option(help="File that holds a token of that service, of the scope replicate.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Scoring processes beside it, which share a port of their own.")
    ] = None,
    scoring_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="That port; the one after --port by default.")
    ] = None,
    learn: Annotated[bool | None, typer.Option("--learn/--no-learn", help="Run the learner beside it, or not.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Requests per second of each token, 500.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Events or clicks of one request, 500.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="URL", help="Pull events, too: see `tracecvr pull`.")
    ] = None,
    start: Annotated[str | None, _FROM] = None,
    source_config: SourceConfig = None,
) -> None:
    """Serve a live model over HTTP: score, accept events, watch it learn at /."""
    try:
        from tracecvr.online.service.options import Options
        from tracecvr.online.service.serve import Address, scoring_workers
        from tracecvr.online.service.serve import serve as answer
    except ImportError:
        raise UserError("the service is an extra: pip install 'tracecvr[serve]'") from None
    flags: dict[str, Any] = {"store": store, "model": model, "host": host, "port": port, "tokens": tokens}
    flags |= {"host_names": tuple(host_name) if host_name else None}
    flags |= {"certificate": certificate, "key": key, "learn": learn, "rate": rate, "batch": batch}
    flags |= {"source": source, "start": start, "source_config": source_config}
    flags |= {"replica": replica, "replica_token": replica_token, "workers": workers, "scoring_port": scoring_port}
    chosen = Options.from_file_and_flags(config, flags)
    address = Address(chosen.host, chosen.port, chosen.path("certificate"), chosen.path("key"), chosen.host_names)
    if chosen.replica is not None:
        _serve_replica(chosen, address)
        return
    opened_store = _open_or_make(chosen.path("store"), chosen.path("model"))
    tokens_file = chosen.path("tokens")
    pulled = None if chosen.source is None else _source(chosen.source, chosen.start, chosen.path("source_config"))
    with ExitStack() as beside:
        if chosen.workers:
            port = chosen.scoring_port if chosen.scoring_port is not None else chosen.port and chosen.port + 1
            where = scoring_workers(opened_store, chosen.workers, tokens_file, replace(address, port=port), chosen)
            typer.echo(f"scoring: {beside.enter_context(where).url}, {chosen.workers} processes", err=True)
        answer(
            opened_store,
            tokens_file,
            address,
            chosen,
            chosen.learn,
            pulled,
            lambda url: _say(f"listening: {url}\ndashboard: {url}/"),
        )


def _serve_replica(options: Options, address: Address) -> None:
    """Refuse options that a replica cannot fulfil: it neither learns nor accepts events."""
    from tempfile import TemporaryDirectory

    from tracecvr.online.service.replica import opened
    from tracecvr.online.service.serve import serve_replica

    for name in ("model", "source", "workers"):
        if getattr(options, name):
            raise UserError(f"--{name} is for the writer: leave it out beside --replica")
    assert options.replica is not None
    with TemporaryDirectory(prefix="tracecvr_replica_") as room:
        folder = options.path("store") or Path(room)
        store, mirror = opened(options.replica, folder, options.path("replica_token"), _say)
        serve_replica(store, mirror, options.path("tokens"), address, options, lambda url: _say(f"listening: {url}"))


def _open_or_make(store: Path | None, model: Path | None) -> LiveStore:
    """A store: as it is, or made of a run the first time that it is asked for."""
    if store is None:
        raise UserError("which store? give the directory that `tracecvr init` has made")
    if model is None:
        return store_at(store)
    from tracecvr.online.store.starting_run import StartingRun
    from tracecvr.online.store.store import Settings, Store

    if not store.exists():
        return make_of_run(store, model, None, Settings())
    opened_store = Store.open(store)
    if opened_store.start != StartingRun.of(model).start:
        raise UserError(f"{store} does not go on from {model}: leave --model out, or choose another store")
    return opened_store


def _say(text: str) -> None:
    typer.echo(text, err=True)


def pull(
    store: Store,
    source: Url,
    start: From = "earliest",
    source_config: SourceConfig = None,
    batch: Annotated[int, typer.Option(min=1, help="Messages that are committed together.")] = 500,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left.")] = False,
) -> None:
    """Pull events from a broker into the log of a live model. Stop it in any way: it goes on where the store is."""
    opened_store = store_at(store)
    from tracecvr.online.sources.pump import Pump

    pump = Pump(opened_store, _source(source, start, source_config), batch)
    if once:
        typer.echo(f"pulled: {pump.drain():,} messages")
    else:
        pump.run(threading.Event())


def _source(url: str, start: str, config: Path | None) -> PulledFrom:
    from tracecvr.online.sources import BrokerSource

    source = BrokerSource.of(url, start, config)
    source.check()
    return source


def token(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    scope: Annotated[list[str], typer.Option("--scope", help="score, ingest, admin or replicate, as often as needed.")],
) -> None:
    """Make a token: it is printed once; its entry, which holds its hash only, is for the file of `serve --tokens`."""
    from tracecvr.base import config
    from tracecvr.online.service.auth import SCOPES, new_token

    scopes = [config.chosen(s, SCOPES, "--scope") for s in scope]
    made, digest = new_token()
    typer.echo(f"token: {made}", err=True)
    typer.echo(f"[[token]]\nname = {json.dumps(name)}\nsha256 = {json.dumps(digest)}\nscopes = {json.dumps(scopes)}")
