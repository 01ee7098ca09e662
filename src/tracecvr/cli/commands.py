"""The command line: thin, and quick to answer. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from tracecvr.base import config, registry
from tracecvr.base.errors import UserError, explain
from tracecvr.base.registry import Given
from tracecvr.cli import tables
from tracecvr.cli.live.arguments import AsJson, Data, DataSettings, SchemaFile, Source, name_dataset, with_schema
from tracecvr.cli.live.create import init
from tracecvr.cli.live.models import app as models_app
from tracecvr.cli.live.models import challenge
from tracecvr.cli.live.operate import aside_app, compact, erase, events, ingest, learn, status, table, tick, verify
from tracecvr.cli.live.serving import pull, serve, token

app = typer.Typer(
    help="Online conversion-rate prediction under delayed feedback.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_SET_HELP = (
    "Option of the method, of a plugin (PLUGIN.KEY=VALUE), or of the replay: "
    "split, interval, until, judge_from, warm_labels (mature, censored), publish_lag; "
    "or of how the stream is learnt: stream.learning_rate, stream.batch_size, stream.average and others."
)

_STOPPED = {
    "run": "stopped; the run goes on with --resume",
    "bench": "stopped; the bench goes on when it is started again",
}
_EXTRAS = {"apsw": "online", "fastapi": "serve", "uvicorn": "serve", "prometheus_client": "serve"}
"""What is not installed without an extra, and in which it is."""

Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_SET_HELP)]


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tracecvr {version('tracecvr')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


def _add_list(kind: str, more: str = "") -> None:
    @app.command(f"{kind}s", help=f"List the {kind}s and their options{more}.")
    def show(as_json: AsJson = False) -> None:
        if as_json:
            typer.echo(json.dumps(tables.describe(kind), indent=2))
        else:
            tables.listing(kind)


_add_list("method")
_add_list("dataset")
_add_list("plugin", ", set as `--set PLUGIN.KEY=VALUE`")


@app.command("inspect")
def inspect_log(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Parquet or CSV: files, folders or patterns.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the schema; must not exist.")] = None,
    zone: Annotated[str, typer.Option("--zone", help="Time zone of times without an offset.")] = "UTC",
) -> None:
    """Look at a log of your own: columns, delays, defects, and a schema that `prepare logs` reads."""
    from rich.console import Console

    from tracecvr.base.files import write_text
    from tracecvr.base.progress_display import Display
    from tracecvr.data.inspection.inspect_log import inspect_files

    if out is not None and out.exists():
        raise UserError(f"{out} exists already: choose another --out, or remove it first")
    with Display(Console(stderr=True)) as progress:
        inspection = inspect_files(files, Path() if out is None else out.parent, zone, progress)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, inspection.toml)
    tables.show_inspection(inspection)
    typer.echo(inspection.toml if out is None else f"schema: {out}")
    written = "write it with --out schema.toml, " * (out is None)
    typer.echo(f"{written}read it, correct it, then: tracecvr prepare logs --schema {out or 'schema.toml'} --out TABLE")


@app.command()
def prepare(
    data: Annotated[str, typer.Argument(help="Dataset, as listed by `tracecvr datasets`.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write; must not exist.")],
    source: Source = None,
    schema: SchemaFile = None,
    data_set: DataSettings = None,
) -> None:
    """Turn a raw log into a table that `run` reads at once."""
    from tracecvr.api import shown
    from tracecvr.api.logs import describe_log

    log = describe_log(Given(data), source, with_schema(data_set, schema))
    with shown.progress(True) as progress:
        made = log.save(out, progress).table
    for name, count in made.counts.items():
        typer.echo(f"{name}: {count:,}")
    for note in made.schema.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"table: {out}")


@app.command()
def run(
    method: Annotated[str, typer.Option("--method", help="Method, as listed by `tracecvr methods`.")],
    data: Data = None,
    plugin: Annotated[list[str] | None, typer.Option("--plugin", help="Plugin to add, e.g. completer.")] = None,
    source: Source = None,
    schema: SchemaFile = None,
    settings: Settings = None,
    data_set: DataSettings = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Directory of the result.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; one for a small log, else all cores.")] = None,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 30.0,
) -> None:
    """Replay a log with one method: predict each interval, then learn from it."""
    from tracecvr.api.logs import describe_log
    from tracecvr.api.replays import replay

    data = name_dataset(data, source, schema)
    where = out or Path("runs") / f"{data}-{'+'.join([method, *(plugin or [])])}-seed{seed}"
    result = replay(
        describe_log(data, source, with_schema(data_set, schema)),
        method,
        plugins=plugin or [],
        seed=seed,
        out=where,
        resume=resume,
        threads=threads,
        checkpoint_every=checkpoint_every,
        options=config.pairs(settings or [], "--set"),
    )
    tables.result(result)
    typer.echo(f"result: {where / 'result.json'}")


@app.command()
def bench(
    suite: Annotated[str, typer.Argument(help="A built-in suite, or a TOML file.")],
    out: Annotated[Path, typer.Option("--out", help="Directory of the bench; the same command again goes on in it.")],
    data: Data = None,
    source: Source = None,
    schema: SchemaFile = None,
    methods: Annotated[str, typer.Option("--methods", metavar="A,B", help="Only rows of these methods.")] = "",
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0-4", help="Seeds: a run of each row for each; 0 by default, with --tuned a fresh one."),
    ] = None,
    settings: Settings = None,
    data_set: DataSettings = None,
    tuned: Annotated[
        Path | None,
        typer.Option(help="tuned.toml of the suite `tune`: its settings, judged on clicks that were not tuned on."),
    ] = None,
    learning: Annotated[
        str | None,
        typer.Option(metavar="paper|ours", help="How the stream is learnt; as the suite or --tuned says by default."),
    ] = None,
    logs: Annotated[str, typer.Option("--logs", metavar="A,B", help="Only these logs of the suite gauntlet.")] = "",
    by: Annotated[str | None, typer.Option("--by", metavar="FEATURE", help="Of the suite forecast: segments.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores by default.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray (an extra): cells as tasks of a cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Ray: auto or ray://HOST:PORT; a Ray of this machine alone by default.")
    ] = None,
) -> None:
    """Run a suite of methods; write tables with statistics and a report. The paper's tables, learnt as in the paper:
    table1, table2, ablation, calibration. Over many logs of its own: gauntlet. Others: quick, tune, forecast."""
    from tracecvr.api.comparisons import carry_out, run_gauntlet
    from tracecvr.bench import engines
    from tracecvr.bench import suite as suites
    from tracecvr.bench import tuned as tuning
    from tracecvr.bench.runner import Request

    chosen, given = engines.choose(engine, workers, address), tuning.load(tuned)
    loaded = suites.load(suite)
    if loaded.logs and (data or source or schema or data_set or by):
        raise UserError(f"suite {suite!r} has its own logs: leave out --data, --source, --schema, --data-set and --by")
    if logs and not loaded.logs:
        raise UserError(f"--logs: suite {suite!r} is run on one log, the one that --data names")
    request = Request(
        suite=config.validate(replace(loaded, learning=learning or given.learning or loaded.learning)),
        data="" if loaded.logs else name_dataset(data, source, schema),
        source=source,
        data_settings=tuple(with_schema(data_set, schema)),
        settings=config.pairs(settings or [], "--set"),
        methods=tuple(Given(name) for name in methods.split(",") if name),
        seeds=(tuning.fresh_seed(given),) if seeds is None else suites.seeds_of(seeds),
        tuned=given,
    )
    if loaded.logs:
        failed = run_gauntlet(request, out, chosen, tuple(filter(None, logs.split(","))))
    else:
        failed = carry_out(request, out, chosen, by).failed
    tables.bench(out, failed)
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    bench: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a bench, finished or not.")],
    pdf: Annotated[bool, typer.Option("--pdf", help="Each figure as DIR/figures/NAME.pdf, too.")] = False,
    png: Annotated[bool, typer.Option("--png", help="Each figure as DIR/figures/NAME.png, too.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Each figure as DIR/figures/NAME.svg, too.")] = False,
) -> None:
    """Draw the report of a bench again: DIR/report.html, one file that opens without a network. Of a gauntlet:
    its tables and its figure."""
    from tracecvr.bench import gauntlet
    from tracecvr.bench import report as reports

    asked = {"pdf": pdf, "png": png, "svg": svg}
    draw = gauntlet.write if (bench / "gauntlet.json").is_file() else reports.write
    for path in draw(bench, [kind for kind, wanted in asked.items() if wanted]):
        typer.echo(f"written: {path}")


@app.command()
def check(
    method: Annotated[str, typer.Argument(help="Method or plugin, or the file that defines a method.")],
    as_json: AsJson = False,
) -> None:
    """Run a method, alone and with plugins, through the conformance suite: no future, resume, fixed points and more."""
    from tracecvr import checks

    if method in registry.available("plugin"):
        report = checks.run(plugin=method)
    else:
        name = Given(method)
        registry.get("method", name)
        report = checks.run([name])
    if as_json:
        typer.echo(json.dumps([asdict(outcome) for outcome in report], indent=2))
    else:
        tables.outcomes(report)
    if any(outcome.unexpected for outcome in report):
        raise typer.Exit(1)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Directory of a run, or of a live model.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write; must not exist.")],
) -> None:
    """Write a model as ONNX, checked against torch, with a scorer that needs onnxruntime alone."""
    from tracecvr.api.models import load

    manifest = load(model).export(out)
    typer.echo(f"score.onnx: within {manifest['max_difference']:.1e} of torch's log-odds")
    typer.echo(f"export: {out}")


@app.command()
def forecast(
    model: Annotated[Path, typer.Argument(metavar="STORE|RUN", help="A live model, or the directory of a run.")],
    by: Annotated[str | None, typer.Option("--by", help="A feature: a row for each of its values and days.")] = None,
    at: Annotated[
        str | None, typer.Option(help="A past moment: a date, or a time since the log's start (45d).")
    ] = None,
    days: Annotated[int | None, typer.Option("--days", min=1, help="The last days; all that are open without.")] = None,
    level: Annotated[float, typer.Option("--level", help="The share of intervals that are to hold.")] = 0.9,
    out: Annotated[Path | None, typer.Option("--out", help="Write all rows: a .parquet or .csv file.")] = None,
) -> None:
    """Forecast the final conversions of the last days' clicks, by segment, with intervals.

    Days are the 24 hours up to the moment of the forecast, and those before.
    """
    from tracecvr.api.own_tables import moment
    from tracecvr.cli.live.arguments import store_at
    from tracecvr.forecast.of_run import open_run

    if out is not None and out.suffix not in (".parquet", ".csv"):
        raise UserError(f"--out {out}: give a file that ends with .parquet or .csv")
    if (model / "result.json").is_file():
        asked = open_run(model)
    elif (model / "store.json").is_file():
        from tracecvr.online.upkeep.verify_log import forecasts_of

        asked = forecasts_of(store_at(model))
    else:
        raise UserError(f"{model}: neither a live model nor a finished run; give the directory of one")
    frame = asked.forecast(by, None if at is None else moment(at, asked.origin, "--at"), level, days)
    if out is not None:
        write = frame.write_parquet if out.suffix == ".parquet" else frame.write_csv
        write(out)
        typer.echo(f"written: {out}")
    else:
        tables.show_forecast(frame, level)


_LIVE = (init, ingest, tick, learn, serve, pull, token, status, table, compact, erase, verify, challenge, events)
for _command in _LIVE:
    app.command()(_command)
app.add_typer(models_app, name="models")
app.add_typer(aside_app, name="aside")


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2, never a traceback."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C, if it gets there first
            raise KeyboardInterrupt
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(_STOPPED.get(next(iter(sys.argv[1:]), ""), "stopped"), err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)  # if Ctrl-C passed through code that C ran, Python would end by the signal, handled or not
    except UserError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _fail(f"this command needs {error.name}, which is not installed: pip install 'tracecvr[{extra}]'")
    except typer.TyperException as error:
        if not (message := error.format_message().rstrip(".")):  # no command given: help was printed instead
            sys.exit(2)
        _fail(f"{message}; see `tracecvr --help`")
    except OSError as error:
        _fail(explain(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        _fail("not enough memory; use a smaller log, smaller nets or a smaller batch_size")


def _fail(message: str) -> None:
    typer.echo("error: " + " ".join(message.split()), err=True)
    sys.exit(2)
