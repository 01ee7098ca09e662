"""Raw values by id, as far as an encoder can tell."""

from __future__ import annotations

import polars as pl
import pytest

from tracecvr.data.encoder import Binned, Column, Encoder, Hashed, value_names


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_bin_is_named_by_its_range(scale: str) -> None:
    column: Column = Encoder((Binned("n", 4, scale=scale),)).fit(pl.DataFrame({"n": [0.0, 40.0]})).columns[0]
    names = value_names(column)
    assert list(names) == [0, 1, 2, 3]
    for value in (1.0, 17.0, 39.0):
        (place,) = Encoder((column,)).encode(pl.DataFrame({"n": [value]}))[0]
        low, high = map(float, names[place].split(" to "))
        assert low <= value < high


def test_hashes_have_no_names() -> None:
    assert value_names(Hashed("c", 8)) == {}
