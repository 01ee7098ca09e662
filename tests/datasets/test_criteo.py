"""The Criteo Conversion Logs: features by hand, repeats, and every broken file named by its line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from saving import save_table
from tracecvr.base.config import DAY, configure
from tracecvr.base.errors import UserError
from tracecvr.data import raw_csv
from tracecvr.data.encoder import Encoder
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.criteo import BINS, CATEGORIES, Criteo

NUMBERS = ("1", "2", "3", "4", "5", "6", "7", "8")
WORDS = ("a", "b", "c", "d", "e", "f", "g", "h", "i")


def line(click: object, conversion: object = "", numbers: Sequence[str] = NUMBERS, words: Sequence[str] = WORDS) -> str:
    return "\t".join((str(click), str(conversion), *numbers, *words))


GOOD = [line(0), line(DAY, DAY + 60), line(20 * DAY, 25 * DAY), line(15 * DAY)]


def write(folder: Path, lines: Sequence[str], end: str = "\n") -> Path:
    path = folder / "data.txt"
    path.write_bytes(end.join([*lines, ""]).encode())
    return path


def test_clicks_are_sorted_and_keep_their_line(tmp_path: Path) -> None:
    table, _ = Criteo().prepare(write(tmp_path, GOOD))
    assert table.click_ts.tolist() == [0, DAY, 15 * DAY, 20 * DAY]
    assert table.click_id.tolist() == [0, 1, 3, 2]
    assert table.action_ts[:, 0].tolist() == [NEVER, DAY + 60, NEVER, 25 * DAY]
    assert table.counts == {"rows": 4, "clicks": 4, "dropped_conversion_before_click": 0, "dropped_duplicates": 0}


def test_features_are_categories_then_numbers(tmp_path: Path) -> None:
    table, _ = Criteo().prepare(write(tmp_path, GOOD))
    assert [f.size for f in table.schema.features] == [*CATEGORIES, *BINS]
    assert [f.name for f in table.schema.features[8:10]] == ["categorical_9", "numeric_1"]
    assert table.schema.embedding_dim == 16
    expected = [xxhash.xxh3_64_intdigest(w.encode()) % size for w, size in zip(WORDS, CATEGORIES, strict=True)]
    assert table.x[0, :9].tolist() == expected


def test_missing_words_are_the_empty_text(tmp_path: Path) -> None:
    table, _ = Criteo().prepare(write(tmp_path, [line(0, words=[""] * 9), line(11 * DAY)]))
    assert table.x[0, 0] == xxhash.xxh3_64_intdigest(b"") % 512


def numeric_1(folder: Path, values: dict[int, str], bins: str = "linear") -> list[int]:
    """Bins of the first number (64 of them), one click per day."""
    lines = [line(day * DAY, numbers=(value, *NUMBERS[1:])) for day, value in values.items()]
    table, _ = Criteo(bins=bins).prepare(write(folder, lines))
    return [int(i) for i in table.x[:, 9]]


def test_bins_come_from_the_warm_up_part_alone(tmp_path: Path) -> None:
    warm = {0: "", 1: "63", 2: "15", 3: "0.5"}
    # Missing is -1, so the range is 64 wide and a bin is 1 wide: v falls into bin floor(v + 1).
    assert numeric_1(tmp_path, warm | {12: "30"}) == [0, 63, 16, 1, 31]
    assert numeric_1(tmp_path, warm | {12: "1e6", 13: "-50"}) == [0, 63, 16, 1, 63, 0]


def test_log_bins_spread_small_counts(tmp_path: Path) -> None:
    values = {0: "", 1: "1", 2: "7", 3: "65534", 12: "15"}
    # log2(v + 2) is 0, 1.58, 3.17, 16 and 4.09, of 16: times four.
    assert numeric_1(tmp_path, values, "log") == [0, 6, 12, 63, 16]
    assert numeric_1(tmp_path, values, "linear")[1:3] == [0, 0]


def test_repeated_lines_are_counted_and_the_first_is_kept(tmp_path: Path) -> None:
    lines = [GOOD[0], GOOD[1], GOOD[0], *GOOD[2:], GOOD[1], line(DAY, DAY + 61)]
    dropping, _ = Criteo(max_bad=1).prepare(write(tmp_path, lines))
    assert dropping.click_id.tolist() == [0, 1, 6, 4, 3]
    assert (dropping.counts["clicks"], dropping.counts["dropped_duplicates"]) == (5, 2)
    keeping, _ = configure(Criteo(), {"duplicates": "keep"}, "--data-set").prepare(write(tmp_path, lines))
    assert keeping.click_id.tolist() == [0, 2, 1, 5, 6, 4, 3]
    with pytest.raises(UserError, match="2 of 7 rows are bad"):
        Criteo().prepare(write(tmp_path, lines))


def test_conversions_before_the_click_are_dropped_and_counted(tmp_path: Path) -> None:
    table, _ = Criteo(max_bad=1).prepare(write(tmp_path, [*GOOD, line(5 * DAY, 5 * DAY - 1), line(6 * DAY, 6 * DAY)]))
    assert table.counts["dropped_conversion_before_click"] == 1
    assert table.click_id.tolist() == [0, 1, 5, 3, 2]


def test_nothing_is_learnt_from_a_click_that_is_dropped(tmp_path: Path) -> None:
    sound = [line(0, numbers=("0", *NUMBERS[1:])), line(DAY, numbers=("64", *NUMBERS[1:])), line(20 * DAY)]
    expected, encoder = Criteo().prepare(write(tmp_path, sound))
    huge = line(2 * DAY, DAY, numbers=("9999", *NUMBERS[1:]))
    table, again = Criteo(max_bad=1).prepare(write(tmp_path, [*sound, huge]))
    assert again == encoder
    assert table.fingerprint == expected.fingerprint


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    table, encoder = Criteo().prepare(path)
    assert Criteo().prepare(path)[0].fingerprint == table.fingerprint
    assert Criteo(bins="log").prepare(path)[0].fingerprint == table.fingerprint  # constant columns bin alike
    save_table(table, tmp_path / "table")
    encoder.save(tmp_path / "encoder.json")
    loaded = ClickTable.load(tmp_path / "table")
    assert (loaded.fingerprint, loaded.counts, loaded.schema) == (table.fingerprint, table.counts, table.schema)
    assert np.array_equal(loaded.x, table.x)
    # A live row has text where the reader had codes, and gets the same ids.
    names = [c.raw for c in encoder.columns]
    row = dict(zip(names, (*WORDS, *(float(n) for n in NUMBERS)), strict=True))
    assert Encoder.load(tmp_path / "encoder.json").encode(pl.DataFrame([row])).tolist() == table.x[:1].tolist()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_do_not_matter(tmp_path: Path, end: str) -> None:
    expected = Criteo().prepare(write(tmp_path, GOOD))[0].fingerprint
    path = write(tmp_path, GOOD, end)
    assert Criteo().prepare(path)[0].fingerprint == expected
    path.write_bytes(path.read_bytes().removesuffix(end.encode()))
    assert Criteo().prepare(path)[0].fingerprint == expected
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Criteo().prepare(path)[0].fingerprint == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["", "0", "7", "900"]), st.sampled_from(["", "x", '"', "é"]))
    )
)
def test_any_log_keeps_one_click_per_different_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str, str]]
) -> None:
    lines = GOOD + [line(day * DAY, numbers=(n, *NUMBERS[1:]), words=(*WORDS[:8], w)) for day, n, w in rows]
    table, _ = Criteo(max_bad=1).prepare(write(tmp_path_factory.mktemp("any"), lines))
    assert len(table) == len(set(lines))
    assert table.counts["dropped_duplicates"] == len(lines) - len(set(lines))
    sizes = [f.size for f in table.schema.features]
    assert (table.x >= 0).all()
    assert (table.x < sizes).all()


TIME = "expected a whole number of at least 0, found"
WIDTH = "expected 19 columns separated by tabs, found"
MANY, ENDLESS, NAN = (line(9, numbers=(*NUMBERS[:7], word)) for word in ("many", "inf", "nan"))
BROKEN = {
    "header": (["click\tconversion" + "\tx" * 17, *GOOD], f"line 1, column 'click_ts': {TIME} 'click'; correct or"),
    "commas": ([g.replace("\t", ",") for g in GOOD], f"line 1: {WIDTH} 1"),
    "short": ([*GOOD[:2], "5\t6\t7", *GOOD[2:]], f"line 3: {WIDTH} 3; correct or remove the line"),
    "truncated": ([*GOOD, line(30 * DAY)[:-6]], f"line 5: {WIDTH} 16; correct or remove the line, or fetch the file"),
    "long": ([GOOD[0], GOOD[1] + "\tz", *GOOD[2:]], f"line 2: {WIDTH} 20"),
    "one short, one long": ([GOOD[0], line(3)[:-2], line(4) + "\tz", GOOD[2]], f"line 2: {WIDTH} 18"),
    "blank": ([GOOD[0], "", *GOOD[1:]], f"line 2: {WIDTH} 0"),
    "text as time": ([GOOD[0], line("noon")], f"line 2, column 'click_ts': {TIME} 'noon'; correct or remove the line"),
    "fraction as time": ([GOOD[0], line("3.5")], f"line 2, column 'click_ts': {TIME} '3.5'"),
    "huge time": ([GOOD[0], line("9" * 20)], f"line 2, column 'click_ts': {TIME} '9999"),
    "no time": ([*GOOD, line("")], f"line 5, column 'click_ts': {TIME} nothing"),
    "negative time": ([*GOOD, line(-3)], f"line 5, column 'click_ts': {TIME} -3"),
    "negative conversion": ([*GOOD, line(3, -1)], "line 5, column 'conversion': expected a whole number of at least 0"),
    "text as number": ([*GOOD, MANY], "line 5, column 'numeric_8': expected a number or nothing, found 'many'"),
    "endless number": ([*GOOD, ENDLESS], "line 5, column 'numeric_8': expected a number or nothing, found inf"),
    "not a number": ([*GOOD, NAN], "line 5, column 'numeric_8': expected a number or nothing, found nan"),
    "the first of two": ([*GOOD, line(-3), MANY], "line 5, column 'click_ts'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_line_is_named(tmp_path: Path, case: str) -> None:
    lines, message = BROKEN[case]
    path = write(tmp_path, lines)
    with pytest.raises(UserError) as error:
        Criteo().prepare(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_a_broken_line_far_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the first block, where line numbers are counted and not read off."""
    monkeypatch.setattr(raw_csv, "_BATCH", 10_000)
    lines = [line(i, numbers=(str(i), *NUMBERS[1:])) for i in range(40_000)]
    for broken, message in ((line("x"), "column 'click_ts'"), (GOOD[0][:-2], "expected 19")):
        with pytest.raises(UserError, match=f"line 35001[,:] {message}"):
            Criteo().prepare(write(tmp_path, [*lines[:35_000], broken, *lines[35_000:]]))


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.write_bytes(path.read_bytes() + line(9).encode().replace(b"c", b"\xff") + b"\n")
    with pytest.raises(UserError, match="line 5: not UTF-8 text"):
        Criteo().prepare(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"", "the file is empty"), (b"\x1f\x8b\x08\x00", "is a gzip archive")],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "data.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        Criteo().prepare(path)
    with pytest.raises(UserError, match="is a directory"):
        Criteo().prepare(tmp_path)


def test_a_log_that_ends_before_the_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leaves no stream"):
        Criteo().prepare(write(tmp_path, GOOD[:2]))
