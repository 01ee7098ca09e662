"""Which model serves: versions of a live model, and its challengers."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Annotated, Any

import typer

from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import AsJson, Store, store_at
from tracecvr.cli.live.create import refuse_files

app = typer.Typer(
    help="Versions of a live model and its challengers: list them, choose which serves.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the challenger.")]


@app.command("list")
def list_models(store: Store, as_json: AsJson = False) -> None:
    """The versions, which of them serves, and how challengers compare with the store's own model."""
    from tracecvr.online.upkeep.status import challengers_of, versions_of

    opened_store = store_at(store)
    versions, serving = versions_of(opened_store, opened_store.versions), opened_store.versions.serving()
    with closing(opened_store.log()) as log:
        challengers = challengers_of(opened_store, log)
    if as_json:
        typer.echo(json.dumps({"serving": serving, "versions": versions, "challengers": challengers}, indent=2))
        return
    for one in versions:
        mark = "serves" if one["version"] == serving else "" if one["published"] else f"undone: {one['undone']}"
        typer.echo(f"{one['version']:>6}  {one['clicks']:>8,} clicks  {one['events']:>9,} events  {mark}".rstrip())
    for name, facts in challengers.items():
        typer.echo(f"{name}: {_describe(facts)}")


def _describe(facts: dict[str, Any]) -> str:
    if facts.get("problem"):
        return f"PROBLEM: {facts['problem']}"
    words = [facts["method"], f"{facts['learnt']:,} intervals learnt"]
    if facts["serves"]:
        words.append("serves instead")
    if "comparison" in facts:
        compared = facts["comparison"]
        d = compared["nll_difference"]
        words.append(compared["verdict"])
        if d["mean"] is not None:
            interval = "" if d["low"] is None else f" (95 % at any time: {d['low']:+.5f} to {d['high']:+.5f})"
            words.append(f"NLL {d['mean']:+.5f} per click{interval} on {d['clicks']:,} clicks")
    return ", ".join(words)


@app.command()
def promote(
    store: Store,
    version: Annotated[
        str, typer.Argument(help="A version; `newest` for always the newest; the name of a challenger for its newest.")
    ],
) -> None:
    """Let a version, or a challenger, serve until another is chosen. Training goes on as before."""
    from tracecvr.online.store.challenge import list_names, promote_challenger, promote_own

    opened_store = store_at(store)
    if version == "newest" or version.isdecimal():
        promote_own(opened_store, None if version == "newest" else int(version))
    elif version in list_names(opened_store):
        promote_challenger(opened_store, version)
    else:
        raise UserError(
            f"version {version!r}: give a number of `tracecvr models list`, newest, or the name of a challenger"
        )
    typer.echo(f"serving: {version}")


@app.command()
def drop(store: Store, name: Name) -> None:
    """Remove a challenger and its versions. The log still says which clicks it answered."""
    from tracecvr.online.store.challenge import drop

    drop(store_at(store), name)
    typer.echo(f"dropped: {name}")


def challenge(
    store: Store,
    name: Name,
    method: Annotated[str | None, typer.Option("--method", help="By default the store's, with its options.")] = None,
    plugin: Annotated[list[str] | None, typer.Option("--plugin", help="A plugin, as often as needed.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Option of the method or of a plugin.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="By default the store's.")] = None,
) -> None:
    """Let another model learn from the same log, and compare it with the store's own. What serves stays as it is."""
    from tracecvr.api import shown
    from tracecvr.base import config
    from tracecvr.online.challengers.learners import ChallengerLearner
    from tracecvr.online.learner.learner import open_learner
    from tracecvr.online.store.challenge import choose_parts, create

    opened_store = store_at(store)
    refuse_files(method or "", plugin or [])
    chosen = choose_parts(opened_store, method, plugin or (), config.pairs(settings or [], "--set"))
    made = create(opened_store, name, chosen, seed)
    with shown.progress(True) as progress, open_learner(made, progress, ChallengerLearner):
        pass  # the warm-up, here and not in the learner: that has other things to do meanwhile
    typer.echo(f"challenger: {name}; compared on clicks from interval {made.since} on")
    typer.echo(f"next: tracecvr learn {opened_store.folder}, and tracecvr models list {opened_store.folder}")
