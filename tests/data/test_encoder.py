"""Encoding: hashes are a contract, ranges come from the warm-up part alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tracecvr.base.errors import UserError
from tracecvr.data import encoder as encoding
from tracecvr.data.encoder import MISSING_WORDS, Binned, Encoder, Hashed, Modulo, RowEncoder, Vocabulary


@pytest.mark.parametrize(
    ("text", "digest"),
    [("", 0x2D06800538D394C2), ("abc", 0x78AF5F94892F3950), ("éà", 0x169D9F5A03B52996)],
)
def test_golden_hashes(text: str, digest: int) -> None:
    """If this fails, every saved model reads other ids: never change the expected values."""
    assert xxhash.xxh3_64_intdigest(text.encode()) == digest
    ids = Encoder((Hashed("c", 1009),)).encode(pl.DataFrame({"c": [text]}))
    assert ids.tolist() == [[digest % 1009]]


@given(st.lists(st.text(max_size=20) | st.none(), min_size=1), st.integers(1, 2**20))
def test_hashes_follow_the_reference(texts: list[str | None], size: int) -> None:
    frame = pl.DataFrame({"c": texts}, schema={"c": pl.String})
    expected = [xxhash.xxh3_64_intdigest((t or "").encode()) % size for t in texts]
    assert Encoder((Hashed("c", size),)).encode(frame)[:, 0].tolist() == expected


def test_numbers_hash_as_their_text() -> None:
    as_number, as_text = (Encoder((Hashed("c", 97),)).encode(pl.DataFrame({"c": [v]})) for v in (42, "42"))
    assert as_number.tolist() == as_text.tolist()


def test_bins_come_from_the_warm_up_part_and_later_values_are_clipped() -> None:
    encoder = Encoder((Binned("n", 10),)).fit(pl.DataFrame({"n": [0, 100, None]}))  # missing is -1
    later = pl.DataFrame({"n": [-1.0, None, 0.0, 49.6, 100.0, 1e9, -50.0]})
    assert encoder.encode(later)[:, 0].tolist() == [0, 0, 0, 5, 9, 9, 0]


@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.none(), max_size=5), min_size=1), st.sampled_from(["linear", "log"]))
def test_ranges_are_learnt_from_pieces_as_from_the_whole(pieces: list[list[float | None]], scale: str) -> None:
    whole = in_pieces = Encoder((Binned("n", 10, scale=scale),))
    frames = [pl.DataFrame({"n": piece}, {"n": pl.Float64}) for piece in pieces]
    for frame in frames:
        in_pieces = in_pieces.fit(frame)
    assert in_pieces == whole.fit(pl.concat(frames))


@pytest.mark.parametrize("size", [2**8, 2**8 + 1, 2**16, 2**16 + 1])
def test_what_is_kept_of_a_row_gives_its_ids(size: int) -> None:
    raw = pl.DataFrame({"c": range(size - 300, size), "n": [float(i % 7) for i in range(300)]})
    encoder = Encoder((Modulo("c", size), Hashed("c", size), Binned("n", 5), Vocabulary("c")))
    kept = raw.select(encoder.keep())
    fitted = encoder.fit(raw)
    assert fitted.encode(raw)[-1, 0] == size - 1
    assert np.array_equal(fitted.finish(kept), fitted.encode(raw))


WORDS = st.none() | st.sampled_from(["", "NaN", "a", "b", "éà", "0"]) | st.text(max_size=3)


@given(st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=4), st.lists(WORDS, min_size=1))
def test_a_vocabulary_tells_all_words_apart_and_unseen_ones_from_missing_ones(
    pieces: list[list[str | None]], later: list[str | None]
) -> None:
    frames = [pl.DataFrame({"c": piece}, {"c": pl.String}) for piece in pieces]
    whole = in_pieces = Encoder((Vocabulary("c"),))
    for frame in frames:
        in_pieces = in_pieces.fit(frame)
    assert in_pieces == whole.fit(pl.concat(frames))
    words = sorted({word for piece in pieces for word in piece} - {None, *MISSING_WORDS})  # type: ignore[type-var]
    assert in_pieces.features[0].size == len(words) + 2
    expected = [0 if w in (None, *MISSING_WORDS) else words.index(w) + 2 if w in words else 1 for w in later]
    assert in_pieces.encode(pl.DataFrame({"c": later}, {"c": pl.String}))[:, 0].tolist() == expected
    assert RowEncoder(in_pieces, ["c"]).encode([[word] for word in later])[0][:, 0].tolist() == expected


def test_a_vocabulary_reads_numbers_as_their_text() -> None:
    encoder = Encoder((Vocabulary("c"),)).fit(pl.DataFrame({"c": ["3", "3.0", "true"]}))
    ids, unreadable = RowEncoder(encoder, ["c"]).encode([[3], [3.0], [True], [4], [None]])
    assert ids[:, 0].tolist() == [2, 3, 4, 1, 0]
    assert not unreadable
    assert encoder.encode(pl.DataFrame({"c": ["3"]}, {"c": pl.Categorical})).tolist() == [[2]]


def test_a_vocabulary_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_WORDS", 3)
    with pytest.raises(UserError, match=r"column 'c' has more than 3 values.*hashed"):
        Encoder((Vocabulary("c"),)).fit(pl.DataFrame({"c": range(4)}))


def test_log_bins_tell_small_counts_apart() -> None:
    warm = pl.DataFrame({"n": [0, 1, 2, 3, 100_000]})
    linear, log = (Encoder((Binned("n", 64, scale=s),)).fit(warm).encode(warm)[:, 0] for s in ("linear", "log"))
    assert len(set(linear.tolist())) == 2
    assert len(set(log.tolist())) == 5


@given(st.integers(2, 400), st.integers(2, 100), st.sampled_from(["linear", "log"]), st.data())
def test_a_click_has_the_same_bin_alone_as_among_others(high: int, size: int, scale: str, data: st.DataObject) -> None:
    encoder = Encoder((Binned("n", size, scale=scale),)).fit(pl.DataFrame({"n": [-1, high]}))
    value = data.draw(st.integers(0, high))
    assert encoder.encode(pl.DataFrame({"n": [value]})) == encoder.encode(pl.DataFrame({"n": [value] * 2}))[:1]


def test_a_number_on_the_edge_of_a_bin_has_one_bin() -> None:
    """49 / 98 is a half, 49 times the inverse of 98 a little less: polars took either, by the number of rows."""
    encoder = Encoder((Binned("n", 64),)).fit(pl.DataFrame({"n": [-1, 97]}))
    for count in (1, 2, 1000):
        assert set(encoder.encode(pl.DataFrame({"n": [48] * count})).ravel().tolist()) == {31}


def test_a_constant_column_is_one_bin() -> None:
    frame = pl.DataFrame({"n": [7, 7]})
    assert Encoder((Binned("n", 4),)).fit(frame).encode(frame).tolist() == [[0], [0]]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(UserError, match="column 'b' is missing"):
        Encoder((Modulo("a", 3), Modulo("b", 3))).encode(pl.DataFrame({"a": [1]}))


def test_saved_and_loaded(tmp_path: Path) -> None:
    frame = pl.DataFrame({"n": [1.0, 9.0], "c": ["x", None], "u": [12, 13]})
    encoder = Encoder((Binned("n", 8, scale="log"), Hashed("c", 50), Modulo("u", 5, table="shared", one_hot=True)))
    encoder = Encoder((*encoder.columns, Vocabulary("c")))
    fitted = encoder.fit(frame)
    fitted.save(tmp_path / "encoder.json")
    loaded = Encoder.load(tmp_path / "encoder.json")
    assert loaded == fitted
    assert np.array_equal(loaded.encode(frame), fitted.encode(frame))
    assert loaded.features[2].table == "shared"


def test_log_bins_spread_small_counts() -> None:
    frame = pl.DataFrame({"n": [None, 1.0, 7.0, 65534.0, 15.0]})
    # log2(v + 2) is 0, 1.58, 3.17, 16 and 4.09, of 16: times four.
    assert Encoder((Binned("n", 64, scale="log"),)).fit(frame).encode(frame)[:, 0].tolist() == [0, 6, 12, 63, 16]
    assert Encoder((Binned("n", 64),)).fit(frame).encode(frame)[1:3, 0].tolist() == [0, 0]
