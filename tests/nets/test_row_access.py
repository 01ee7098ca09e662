"""Rows are read and written as torch would do it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracecvr.nets.row_access import read_rows, write_rows

ROWS = 7
SHAPES = st.sampled_from([(ROWS,), (ROWS, 1), (ROWS, 3), (ROWS, 16)])
TYPES = st.sampled_from([torch.float32, torch.float64, torch.int64])


@given(SHAPES, TYPES, st.lists(st.integers(0, ROWS - 1), unique=True))
def test_rows_are_those_that_torch_reads_and_writes(shape: tuple[int, ...], dtype: torch.dtype, ids: list[int]) -> None:
    table = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
    chosen, expected = torch.tensor(ids, dtype=torch.int64), table.clone()
    rows = read_rows(table, chosen)
    assert rows.dtype == dtype
    assert torch.equal(rows, table[chosen])
    rows += 1
    assert torch.equal(table, expected)  # it is a copy
    expected[chosen] = rows
    write_rows(table, chosen, rows)
    assert torch.equal(table, expected)


def test_a_row_beyond_the_table_is_an_error() -> None:
    table = torch.zeros(ROWS, 2)
    with pytest.raises(IndexError):
        read_rows(table, torch.tensor([ROWS]))
    with pytest.raises(IndexError):
        write_rows(table, torch.tensor([ROWS]), torch.ones(1, 2))
    with pytest.raises(AssertionError):  # NumPy would repeat the one row
        write_rows(table, torch.tensor([0, 1]), torch.ones(1, 2))
