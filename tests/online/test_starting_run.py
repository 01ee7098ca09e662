"""A live model that goes on where a run ended: what is learnt in two parts is what one run over all of it learns."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Call

from livestore import OPTIONS, dataset, learnt, send
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.online.dataset_events import events_of
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.service.options import Options
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import verify_log, write_table
from tracecvr.runs import run
from tracecvr.runs.spec import spec_of
from tracecvr.stream.source import TableSource

LOG = [f"{key}={value}" for key, value in OPTIONS.items()]
END, LAST = 4 * DAY, 5 * DAY + 12 * HOUR


def carry_out(
    out: Path,
    until: int,
    method: str = "vanilla",
    plugins: tuple[str, ...] = (),
    source: Path | None = None,
    **settings: Any,
) -> Path:
    given = {
        "hidden": "16,8",
        "batch_size": "128",
        "warm_epochs": "1",
        "warm_batch_size": "128",
        "until": str(until),
    } | {k: str(v) for k, v in settings.items()}
    run.run(spec_of(method, plugins, "synthetic", source, given, () if source else LOG, seed=4), out)
    return out


def gone_on(folder: Path, origin: Path, source: Path | None = None) -> Store:
    """A store from a run, sent what happened after that, up to where the other run ends."""
    store = Store.from_run(folder, origin, source, Settings())
    send(store, list(events_of(dataset(), None, store.grid.split, LAST)))
    store.log().close_until(LAST)
    return store


@pytest.mark.parametrize(
    ("method", "plugins", "settings"),
    [
        ("trace", (), {}),
        ("miss", (), {"warm_labels": "censored"}),  # logs what it served
        ("ulc", (), {"interval": "6h", "split": "3d"}),  # trains its helpers again
        ("es_dfm", ("completer",), {}),
    ],
)
def test_a_run_and_live_events_after_it_are_one_run_to_the_byte(
    method: str, plugins: tuple[str, ...], settings: dict[str, Any], tmp_path: Path
) -> None:
    origin = carry_out(tmp_path / "run", END, method, plugins, **settings)
    whole = carry_out(tmp_path / "whole", LAST, method, plugins, **settings)
    store = gone_on(tmp_path / "store", origin)
    weights, intervals = learnt(store)
    assert intervals == (LAST - END) // store.grid.interval > 5
    assert weights == run.load(whole).fingerprint() != run.load(origin).fingerprint()
    versions = Versions(store.folder, 48).manifests()
    assert versions[0]["weights"] == run.load(origin).fingerprint()
    assert store.log().facts().get("late", 0) == 0
    assert verify_log(store).same
    engine, source = store.engine(), TableSource(write_table(store, tmp_path / "table"))
    engine.warm_up(source.history(store.schema.split, store.settings.warm_labels))
    for start in range(store.schema.split, LAST, store.grid.interval):
        engine.tick(source, start, start + store.grid.interval)
    assert engine.fingerprint() == weights, "the log as a table has the run's part, too"


def test_a_run_over_a_prepared_log_that_was_moved_is_gone_on_from_there(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "log")
    origin = carry_out(tmp_path / "run", END, source=tmp_path / "log")
    assert Store.from_run(tmp_path / "store", origin, None, Settings()).grid.split == END
    (tmp_path / "log").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="is gone: give it as `tracecvr init --source`"):
        Store.from_run(tmp_path / "other", origin, None, Settings())
    assert Store.from_run(tmp_path / "other", origin, tmp_path / "moved", Settings()).grid.split == END


def test_what_cannot_be_taken_up_exactly_is_refused(hourly: Path, tmp_path: Path) -> None:
    origin = carry_out(tmp_path / "run", END)
    cases: list[tuple[Path, Path | None, str]] = [
        (tmp_path, None, "holds no run"),
        (carry_out(tmp_path / "late", END, publish_lag=1), None, "publish_lag = 1"),
        (carry_out(tmp_path / "oracle", END, "oracle"), None, "'oracle' learns from labels before"),
        (origin, hourly, "not the log that"),
    ]
    for place, source, message in cases:
        with pytest.raises(UserError, match=message):
            Store.from_run(tmp_path / "store", place, source, Settings())
    (origin / "raw_log.json").unlink()  # as if it did not say where its log is
    with pytest.raises(UserError, match="does not say which raw log"):
        Store.from_run(tmp_path / "store", origin, None, Settings())
    (origin / "result.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        Store.from_run(tmp_path / "store", origin, None, Settings())
    assert not (tmp_path / "store").exists()


def test_a_store_whose_start_is_damaged_says_so(tmp_path: Path) -> None:
    store = Store.from_run(tmp_path / "store", carry_out(tmp_path / "run", END), None, Settings())
    (store.folder / "start.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="not the state that this store started from"), open_learner(store):
        pass


# The command line.


def test_init_takes_a_run(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr("tracecvr.online.service.serve.serve", lambda *given: served.append(given))
    origin, store = carry_out(tmp_path / "run", END), tmp_path / "store"
    assert call("init", store, "--model", origin, "--lateness", "2h") == 0
    assert f"its stream starts at {END} s" in capsys.readouterr().out
    assert Store.open(store).settings.lateness == 2 * HOUR
    assert Versions(store, 48).serving() == 0, "there is something to serve at once"
    assert call("serve", store) == 0
    assert [given[0].folder for given in served] == [store]
    mistakes: list[tuple[tuple[object, ...], str]] = [
        (("init", store, "--model", origin), "exists already"),
        (("init", tmp_path / "new", "--model", origin, "--seed", 0), "--seed is the run's"),
        (("init", tmp_path / "new", "--model", origin, "--set", "hidden=8"), "--set is the run's"),
        (("init", tmp_path / "new"), "as --source, or a finished run as --model"),
        (("serve",), "which store"),
        (("serve", tmp_path / "new"), "not a store"),
    ]
    for words, message in mistakes:
        assert call(*words) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "new").exists()


def test_flags_of_serve_are_its_options(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr("tracecvr.online.service.serve.serve", lambda *given: served.append(given))
    store = Store.from_run(tmp_path / "store", carry_out(tmp_path / "run", END), None, Settings())
    assert call("serve", store.folder) == 0
    flags = ("--host", "::1", "--port", 8001, "--rate", 7, "--tokens", "t.toml", "--host-name", "a", "--host-name", "b")
    assert call("serve", store.folder, *flags, "--no-learn") == 0
    (_, by_default, learner, *_), (opened_store, options, no_learner, *_) = served
    assert opened_store.folder == store.folder
    assert replace(by_default, host_names=()) == Options()
    expected = Options(host="::1", port=8001, rate=7, tokens=Path("t.toml"), host_names=("a", "b"), learn=False)
    assert replace(options, host_names=tuple(options.host_names)) == expected
    assert (learner is None, no_learner) == (False, None)
    for words, message in (
        (("--prot", 1), "No such option: --prot"),
        (("--port", 99999), "'--port': Input should be less than or equal to 65535"),
        (("--rate", "often"), "'--rate': "),
        (("--body-seconds", 0), "'--body-seconds': Input should be greater than or equal to 0.01"),
    ):
        assert call("serve", store.folder, *words) == 2
        assert message in " ".join(capsys.readouterr().err.split())
