"""Reading and writing some rows of a large table, each as one block of bytes.

Torch computes an address for every number of a row. NumPy copies a row at once if an item of the array is a whole row.
With 70,000 of ten million rows of 16, on one core, reading took 2 ms instead of 13, writing 2 ms instead of 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def read_rows(table: Tensor, ids: Tensor) -> Tensor:
    """A copy of `table[ids]`."""
    rows = _records(table).take(ids.numpy())
    values = torch.from_numpy(rows if table.dim() == 1 else rows.view(np.uint8))
    return values.view(table.dtype).view(len(ids), *table.shape[1:])


def write_rows(table: Tensor, ids: Tensor, values: Tensor) -> None:
    """`table[ids] = values`, with a value for each id."""
    assert values.shape == (len(ids), *table.shape[1:])
    assert values.dtype == table.dtype
    np.put(_records(table), ids.numpy(), _records(values.contiguous()))


def _records(table: Tensor) -> npt.NDArray[Any]:
    """The same memory as an array with one item per row."""
    array: npt.NDArray[Any] = table.detach().numpy()
    return array if array.ndim == 1 else array.view(f"V{array.strides[0]}")[:, 0]
