"""Files that only grow: what a learner notes of each tick. A version says how much of one belongs to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracecvr.base.files import not_written, sync


class GrowingFile:
    """Values of one type, `blank` where some were lost."""

    def __init__(self, path: Path, blank: npt.NDArray[Any]) -> None:
        self.path, self.blank, self.count = path, blank, 0

    def keep(self, count: int) -> None:
        """Go on after so many; of values that were lost, the place is kept."""
        self.path.touch()
        missing = count - self.path.stat().st_size // self.blank.itemsize
        if missing > 0:
            with self.path.open("ab") as file:
                file.write(np.full(missing, self.blank).tobytes())
        os.truncate(self.path, self.blank.itemsize * count)
        self.count = count

    def append(self, values: npt.NDArray[Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(values.tobytes())
        except OSError as error:
            raise not_written(self.path, error) from error
        self.count += len(values)

    def read(self, first: int, last: int | None = None) -> npt.NDArray[Any]:
        """Values from one on, up to another."""
        size = self.blank.itemsize
        count = (self.count if last is None else last) - first
        return np.fromfile(self.path, self.blank.dtype, count, offset=first * size) if count else self.blank[None][:0]

    def sync(self) -> None:
        sync(self.path)
