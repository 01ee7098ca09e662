"""The live learner's commands. Imported by the command line at every start, so it imports nothing heavy itself."""

from __future__ import annotations

import typer

from tracecvr.cli.live import models
from tracecvr.cli.live.create import init
from tracecvr.cli.live.operate import aside_app, compact, erase, events, ingest, learn, status, table, tick, verify
from tracecvr.cli.live.serving import pull, serve, token


def add_to(app: typer.Typer) -> None:
    commands = (init, ingest, tick, learn, serve, pull, token, status, table, compact, erase, verify)
    for command in (*commands, models.challenge, events):
        app.command()(command)
    app.add_typer(models.app, name="models")
    app.add_typer(aside_app, name="aside")
