"""Suites: what the built-in ones hold, how rows are made, and what is said of mistakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tracecvr.base import config, registry
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.bench import suite
from tracecvr.bench.suite import LEARNING, Row, rows_of, title_of
from tracecvr.checks.subject import small_log
from tracecvr.learn.stream_learning import AS_WARM_UP, StreamLearning
from tracecvr.runs.spec import owners_of

SCHEMA = small_log().schema
NAMES = ("quick", "table1", "table2", "ablation", "calibration", "tune", "gauntlet", "forecast")

FINAL = {"warm_labels": "mature"}
"""What suites of the papers' tables say of warm-up labels."""
SEVEN = {"fnw", "ftp", "miss", "es_dfm", "gdfm", "defer", "defuse"}
"""Methods of the paper's Table 2."""
PAPERS = ("table1", "table2", "ablation", "calibration")
"""Suites that learn the stream as the paper does."""
PAPER = FINAL | LEARNING["paper"].settings


def rows(name: str, *methods: str, **settings: str) -> tuple[Row, ...]:
    return rows_of(suite.load(name), methods, settings)


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_every_built_in_suite_makes_rows_that_can_be_run() -> None:
    assert set(suite.built_in()) == set(NAMES)
    for name in suite.built_in():
        made = rows(name)
        assert len({row.name for row in made}) == len(made) > 1
        labels = {row.label for row in made}
        assert {row.base for row in made} - {""} <= labels, name


def test_every_built_in_suite_says_how_warm_up_clicks_are_labelled() -> None:
    for name in suite.built_in():
        assert all("warm_labels" in row.settings for row in rows(name)), name
    assert {row.settings["warm_labels"] for row in rows("table1", warm_labels="censored")} == {"censored"}


def parts_of(row: Row) -> dict[str, Any]:
    """What a cell of the row is run with, by owner."""
    return config.distribute(owners_of(row.method, row.plugins), row.settings, "--set")


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_tables_learn_as_the_paper_does(name: str) -> None:
    """Section 4.2.3: Adam at 1e-3 in batches of 4,096, L2 1e-6, hidden sizes 256, 256, 128; nothing of averages."""
    for row in rows(name):
        method, stream = (parts_of(row)[owner] for owner in ("method", "stream"))
        assert stream == AS_WARM_UP, row.label
        assert (stream.optimiser, stream.average) == ("adam", None)
        assert (method.learning_rate, method.batch_size, method.weight_decay) == (1e-3, 4096, 1e-6)
        assert (method.backbone, method.hidden) == ("mlp", (256, 256, 128))
        assert [len(range(4096)[part]) for part in stream.batches(4096, method.batch_size)] == [4096]


def test_a_switch_gives_the_papers_tables_our_learning() -> None:
    table1 = suite.load("table1")
    for row in rows_of(replace(table1, learning="ours")):
        assert row.settings == FINAL
        assert parts_of(row)["stream"] == StreamLearning()


def test_other_suites_learn_as_we_do_unless_told_otherwise() -> None:
    assert {name for name in suite.built_in() if suite.load(name).learning == "paper"} == set(PAPERS)
    # The demo has larger steps, for speed; all else is ours, or the paper's.
    assert all(parts_of(row)["stream"] == StreamLearning(batch_size=256) for row in rows("quick"))
    papers = replace(suite.load("quick"), learning="paper")
    assert all(parts_of(row)["stream"] == replace(AS_WARM_UP, batch_size=256) for row in rows_of(papers))


@pytest.mark.parametrize("key", ["stream.average", "average"])
def test_what_the_user_or_tuning_says_wins_over_the_papers_learning(key: str) -> None:
    tuned = {"vanilla": {key: "2d", "stream.learning_rate": "0.01"}}
    made = rows_of(suite.load("table1"), ("vanilla", "fnw"), {"stream.learning_rate": "0.02"}, tuned)
    learnt = {row.method: parts_of(row)["stream"] for row in made}
    assert learnt["fnw"] == replace(AS_WARM_UP, learning_rate=0.02)
    assert learnt["vanilla"] == replace(AS_WARM_UP, learning_rate=0.02, average=2 * DAY)
    (row,) = rows_of(suite.load("table1"), ("vanilla",), {key: "3d"})
    assert parts_of(row)["stream"] == replace(AS_WARM_UP, average=3 * DAY)


def test_a_suite_with_unknown_learning_is_named(tmp_path: Path) -> None:
    text = "learning = 'paper'\n[[row]]\nmethod = 'vanilla'\n"
    assert suite.load(written(tmp_path, text)).learning == "paper"
    for wrong in ("'papers'", "1"):
        with pytest.raises(UserError, match=r"mine\.toml: option 'learning' is "):
            suite.load(written(tmp_path, text.replace("'paper'", wrong)))


def test_quick_and_calibration_have_every_method() -> None:
    for name in ("quick", "calibration"):
        assert {row.method for row in rows(name)} == set(registry.available("method"))


def test_each_method_has_a_title_of_its_own(tmp_path: Path) -> None:
    methods = registry.available("method")
    titles = [vars(cls)["title"] for cls in methods.values()]
    assert [title_of(name) for name in methods] == titles
    assert len(set(titles)) == len(titles)
    assert title_of("es_dfm") == "ES-DFM"
    file = tmp_path / "mine.py"
    head = "from dataclasses import dataclass\nfrom tracecvr.methods.vanilla import Vanilla\n"
    file.write_text(f"{head}@dataclass\nclass Mine(Vanilla):\n    name = 'my_own'\n")
    assert title_of(registry.Given(file)) == "my_own"
    assert title_of(str(tmp_path / "gone.py")) == "gone"


def test_table1_has_the_papers_methods_and_three_vanillas() -> None:
    methods = {row.method for row in rows("table1")}
    assert methods == SEVEN | {"pretrain", "vanilla", "trace", "oracle"} | {"vanilla_dup", "wait", "esdf", "telescoped"}
    roles = {row.method: row.role for row in rows("table1") if row.role != "method"}
    assert roles == {"pretrain": "lower", "vanilla": "zero", "telescoped": "ours", "oracle": "upper"}


def test_table2_pairs_the_papers_seven() -> None:
    made = rows("table2")
    assert {row.method for row in made if row.plugins} == SEVEN
    assert {(row.base, row.plugins) for row in made if row.base} == {
        (title_of(method), ("completer",)) for method in SEVEN
    }


def test_ablation_takes_one_part_away_at_a_time() -> None:
    changes = [{}, {"trajectory": "false"}, {"lam": "0"}, {"gate": "false"}]
    assert [row.settings for row in rows("ablation")] == [PAPER | change for change in changes]


def test_methods_are_picked_and_settings_go_where_they_are_known() -> None:
    made = rows("table1", "vanilla", "trace", "oracle", lam="0.3", until="5d")
    assert [row.method for row in made] == ["vanilla", "trace", "oracle"]
    given = [{"until": "5d"}, {"lam": "0.3", "until": "5d"}, {"until": "5d"}]
    assert [row.settings for row in made] == [PAPER | one for one in given]
    assert [row.name for row in made] == ["vanilla", "trace", "oracle"]  # what all have is not in the name
    with pytest.raises(UserError, match="no row of suite 'table1' has such an option"):
        rows("table1", "vanilla", "oracle", lam="0.3")
    with pytest.raises(UserError, match="unknown method 'vanila'"):
        rows("table1", "vanila")


def test_a_comparison_takes_methods_that_it_does_not_list() -> None:
    assert [row.method for row in rows("table1", "vanilla", "ulc")] == ["vanilla", "ulc"]
    with pytest.raises(UserError, match="has no row of it"):
        rows("ablation", "ulc")


def test_a_rows_own_settings_win_then_the_users_then_tuned_ones(tmp_path: Path) -> None:
    text = '[set]\nhidden = [8]\n[[row]]\nmethod = "trace"\nset = {lam = 1}\n'
    mine = suite.load(written(tmp_path, text))
    (row,) = rows_of(mine, (), {"beta": "1", "lam": "2"}, {"trace": {"lam": "3", "beta": "3", "passes": "2"}})
    assert row.settings == {"hidden": "8", "lam": "1", "beta": "1", "passes": "2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 1", "unknown key 'rows' .did you mean 'row'"),
        ("layout = 'cake'\n[[row]]\nmethod = 'trace'", "option 'layout' is 'cake'"),
        ("about = 'x'", "no \\[\\[row\\]\\]"),
        ("[[row]]\nmethods = 'trace'", "row 1: unknown key 'methods'"),
        ("[[row]]\nlabel = 'trace'", "row 1: no method"),
        ("[[row]]\nmethod = 'trace'\nrole = 'king'", "role is 'king'"),
        ("[[row", "not readable as TOML"),
        ("layout = 'tune'\n[[row]]\nmethod = 'trace'", "needs .*trial"),
        ("layout = 'tune'\n[[trial]]\nlam = 1\n[[row]]\nmethod = 'trace'", "first .*defaults: leave it empty"),
        ("first = '14d'\n[[row]]\nmethod = 'trace'", "first goes with layout 'tune'"),
        ("layout = 'tune'\nfirst = 'soon'\n[[trial]]\n[[row]]\nmethod = 'trace'", "first: expected duration"),
    ],
)
def test_mistakes_in_a_suite_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        suite.load(written(tmp_path, text))


def test_mistakes_in_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown suite 'tabel1'.*did you mean 'table1'"):
        suite.load("tabel1")
    twice = suite.load(written(tmp_path, "[[row]]\nmethod = 'fnw'\n[[row]]\nmethod = 'fnw'\nlabel = 'B'"))
    with pytest.raises(UserError, match="'FNW' and 'B' are the same run"):
        rows_of(twice)
    typo = suite.load(written(tmp_path, "[[row]]\nmethod = 'fnw'\nset = {pases = 2}"))
    with pytest.raises(UserError, match="unknown key 'pases'"):
        rows_of(typo)


def test_seeds_are_ranges_and_lists() -> None:
    assert suite.seeds_of("3") == (3,)
    for wrong in ("", "a", "1-", "4-2", "1,1", "0-2,2"):
        with pytest.raises(UserError, match="--seeds"):
            suite.seeds_of(wrong)


TUNE = "layout = 'tune'\n"


def test_trials_are_the_same_for_every_method_and_start_with_its_defaults() -> None:
    tune = suite.load("tune")
    trials = rows_of(tune, ("trace", "vanilla", "defer"))
    by_method = {m: [row.settings for row in trials if row.method == m] for m in ("trace", "vanilla", "defer")}
    assert by_method["trace"] == by_method["vanilla"] == by_method["defer"]
    assert by_method["trace"][0] == {"warm_labels": "mature"}  # as in the tables that it tunes for
    assert len(by_method["trace"]) == len(tune.trials) > 2
    assert tune.first == 14 * DAY


def test_trials_can_be_listed(tmp_path: Path) -> None:
    text = TUNE + "[[trial]]\n[[trial]]\nmethod.passes = 2\nhidden = [8, 4]\n[[row]]\nmethod = ['fnw', 'trace']"
    listed = suite.load(written(tmp_path, text))
    trials = rows_of(listed)
    assert [row.settings for row in trials] == 2 * [{}, {"method.passes": "2", "hidden": "8,4"}]
    assert [row.variant for row in trials] == 2 * ["trial 0", "trial 1"]
    unknown = suite.load(written(tmp_path, TUNE + "[[trial]]\n[[trial]]\nlam = 2\n[[row]]\nmethod = ['trace', 'fnw']"))
    with pytest.raises(UserError, match=r"\[\[trial\]\] lam: fnw has no such option"):
        rows_of(unknown)


def test_references_have_the_role_of_their_class_unless_a_row_says_otherwise(tmp_path: Path) -> None:
    text = 'layout = "comparison"\n[[row]]\nmethod = ["pretrain", "vanilla", "vanilla_dup", "oracle", "trace"]\n'
    made = rows(written(tmp_path, text))
    assert {row.method: row.role for row in made} == {
        "pretrain": "lower",
        "vanilla": "zero",
        "vanilla_dup": "method",  # its class inherits from Vanilla's, its role does not
        "oracle": "upper",
        "trace": "method",
    }
    said = rows(written(tmp_path, text + 'role = "method"\n'))
    assert {row.role for row in said} == {"method"}
