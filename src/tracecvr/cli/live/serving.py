"""The service, tokens, and brokers that events are pulled from."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import Store, store_at
from tracecvr.cli.live.operate import learn
from tracecvr.online.service.options import Options

_FLAGS = {"host_names": "--host-name", "learn": "--learn/--no-learn"}
"""Options of the service whose flags have other names than they."""


def serve(
    store: Annotated[
        Path | None,
        typer.Argument(metavar="[STORE]", help="Directory of the live model; beside --replica URL, of the copy."),
    ] = None,
    **flags: Any,
) -> None:
    """Serve a live model over HTTP: score, accept events, watch it learn at /."""
    try:
        from tracecvr.online.service.serve import serve as answer
        from tracecvr.online.service.serve import serve_replica
    except ImportError:
        raise UserError("the service is an extra: pip install 'tracecvr[serve]'") from None
    options = Options(**flags)
    if options.replica is not None:
        serve_replica(store, options, _say)
        return
    if store is None:
        raise UserError("which store? give the directory that `tracecvr init` has made")
    answer(store_at(store), options, learn if options.learn else None, _say)


def _declare_flags(command: Callable[..., None]) -> None:
    """Give a command a flag for each option of the service, instead of `**flags`."""
    parameters = {name: p for name, p in signature(command, eval_str=True).parameters.items() if name != "flags"}
    kinds = get_type_hints(Options)
    for field in fields(Options):
        words = field.metadata["help"]
        flag = typer.Option(
            _FLAGS.get(field.name, f"--{field.name.replace('_', '-')}"),
            min=field.metadata["low"],
            max=field.metadata["high"],
            help=f"{words[0].upper()}{words[1:]}.",
        )
        kind: Any = list[str] if field.name == "host_names" else kinds[field.name]
        given = Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[kind, flag])
        parameters[field.name] = given
    command.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {name: p.annotation for name, p in parameters.items()}


_declare_flags(serve)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def pull(
    store: Store,
    source: Annotated[str, typer.Option(metavar="URL", help="nats://HOST/STREAM or kafka://HOST/TOPIC.")],
    start: Annotated[
        str, typer.Option("--from", help="Where a source starts that is new: earliest or latest.")
    ] = "earliest",
    source_config: Annotated[
        Path | None, typer.Option(help="TOML file for the broker's client: credentials, TLS.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Messages that are committed together.")] = 500,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Read it from --from on, however far it was read. Events count once.")
    ] = False,
) -> None:
    """Pull events from a broker into the log of a live model. Stop it in any way: it goes on where the store is."""
    opened_store = store_at(store)
    from tracecvr.online.sources import BrokerSource
    from tracecvr.online.sources.pump import Pump

    pump = Pump(opened_store, BrokerSource.of(source, start, source_config), batch)
    if again:
        pump.forget()
    if once:
        typer.echo(f"pulled: {pump.drain():,} messages")
    else:
        pump.run(threading.Event())


def token(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    scope: Annotated[list[str], typer.Option("--scope", help="score, ingest, admin or replicate, as often as needed.")],
) -> None:
    """Make a token: it is printed once; its entry, which holds its hash only, is for the file of `serve --tokens`."""
    from tracecvr.base import config
    from tracecvr.online.service.auth import SCOPES, new_token

    scopes = [config.check_choice(s, SCOPES, "--scope") for s in scope]
    made, digest = new_token()
    typer.echo(f"token: {made}", err=True)
    typer.echo(f"[[token]]\nname = {json.dumps(name)}\nsha256 = {json.dumps(digest)}\nscopes = {json.dumps(scopes)}")
