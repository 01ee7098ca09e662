"""Raw logs of any size in the published formats, for benchmarks: only their shape is real, no value in them is.

    python benchmarks/rawlogs.py criteo 2000000 data.txt
    python benchmarks/rawlogs.py taobao 100000000 UserBehavior.csv

The same seed and number of rows give the same bytes. Rows are made and written in blocks: memory does not grow with
the file, and sixteen million Criteo clicks or a hundred million Taobao rows take a minute or two.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK = 500_000
MINUTE, HOUR, DAY = 60, 3_600, 86_400

CRITEO_DAYS, CRITEO_RATE, CRITEO_D_MAX = 60, 0.227, 30 * DAY
CRITEO_DELAYS = ((0.35, 10 * MINUTE), (0.25, 5 * HOUR), (0.40, 5 * DAY))
"""Shares and means of the exponentials that make up a delay: a third within the hour, a tail up to 30 days."""
CRITEO_NUMBERS = ((0.0, 1.5), (0.7, 1.2), (0.1, 2.5), (0.45, 1.8), (0.02, 2.2), (0.5, 2.0), (0.0, 3.0), (0.05, 3.5))
"""Share of empty cells and log-standard deviation of each numeric column."""
CRITEO_WORDS = (
    (0.0, 3_000),
    (0.3, 60),
    (0.0, 6_000),
    (0.5, 1_500),
    (0.0, 30),
    (0.6, 40_000),
    (0.7, 1_200),
    (0.0, 8),
    (0.2, 9_000),
)
"""Share of empty cells and number of values of each categorical column."""
REPEATED = 0.001
"""Lines that are equal to the line before."""

TAOBAO_START, TAOBAO_DAYS = 1_511_539_200, 9
TAOBAO_SHARES = {"pv": 0.8965, "cart": 0.0550, "fav": 0.0285, "buy": 0.0200}
TAOBAO_ROWS_A_USER = 101
TAOBAO_ITEMS, TAOBAO_CATEGORIES = 4_000_000, 9_400
TAOBAO_SEEN_BEFORE = 0.2
"""Views of an item that the user has viewed before."""


def write_criteo(path: Path, rows: int, seed: int = 0) -> None:
    """Clicks of 60 days, nearly in order of time, as in the Criteo Conversion Logs: tab-separated, no header."""
    words = [_vocabulary(i, size, np.random.default_rng((seed, i))) for i, (_, size) in enumerate(CRITEO_WORDS)]
    _write(path, (_criteo_block(rows, first, seed, words) for first in range(0, rows, BLOCK)), "\t")


def write_taobao(path: Path, rows: int, seed: int = 0) -> None:
    """Rows of nine days, one user after the other, as in Taobao UserBehavior: comma-separated, no header."""
    _write(path, (_taobao_block(rows, first, seed) for first in range(0, rows, BLOCK)), ",")


def _write(path: Path, blocks: Iterator[pl.DataFrame], separator: str) -> None:
    with path.open("wb") as stream:
        for block in blocks:
            block.write_csv(stream, include_header=False, separator=separator)


def _vocabulary(column: int, size: int, rng: np.random.Generator) -> pl.Series:
    """Distinct values of 32 hexadecimal digits; the last, null, stands for an empty cell."""
    digests = rng.bytes(16 * size).hex().upper()
    values: list[str | None] = [digests[32 * i : 32 * (i + 1)] for i in range(size)]
    return pl.Series(f"categorical_{column + 1}", [*values, None])


def _criteo_block(rows: int, first: int, seed: int, words: list[pl.Series]) -> pl.DataFrame:
    n, rng = min(BLOCK, rows - first), np.random.default_rng((seed, 1_000, first))
    # Nearly in order: a line may be a few thousand before or after its place.
    place = first + np.arange(n) + rng.normal(0, 1_000, n)
    click = np.clip(place * CRITEO_DAYS * DAY / rows, 0, CRITEO_DAYS * DAY - 1).astype(np.int64)
    columns = [pl.Series("click", click), _null_where(rng.random(n) >= CRITEO_RATE, click + _criteo_delays(rng, n))]
    for empty, spread in CRITEO_NUMBERS:
        columns.append(_null_where(rng.random(n) < empty, np.exp(rng.normal(1, spread, n)).astype(np.int64)))
    for values, (empty, size) in zip(words, CRITEO_WORDS, strict=True):
        codes = np.where(rng.random(n) < empty, size, _skewed(rng, n, size))
        columns.append(values.gather(codes))
    block = pl.DataFrame([c.alias(str(i)) for i, c in enumerate(columns)])
    repeated = rng.random(n) < REPEATED
    repeated[0] = False
    return block[np.arange(n) - repeated]


def _criteo_delays(rng: np.random.Generator, n: int) -> Ints:
    shares, means = zip(*CRITEO_DELAYS, strict=True)
    mean = np.asarray(means)[rng.choice(len(means), n, p=shares)]
    longest = -np.expm1(-CRITEO_D_MAX / mean)
    return (1 - mean * np.log1p(-rng.random(n) * longest)).astype(np.int64)


def _null_where(null: npt.NDArray[np.bool_], values: Ints) -> pl.Series:
    return pl.select(pl.when(pl.Series(~null)).then(pl.Series(values))).to_series()


def _skewed(rng: np.random.Generator, n: int, size: int, level: int = 1) -> Ints:
    """Ranks below `size`, density falling as 1 / (rank + level)."""
    ranks: Ints = (level * np.exp(rng.random(n) * np.log(size / level + 1))).astype(np.int64) - level
    return ranks


def _taobao_block(rows: int, first: int, seed: int) -> pl.DataFrame:
    n, rng = min(BLOCK, rows - first), np.random.default_rng((seed, 2_000, first))
    user = _taobao_users(rng, n, first)
    item = _skewed(rng, n, TAOBAO_ITEMS, level=2_000)
    shares = np.array([*TAOBAO_SHARES.values()])
    kind = rng.choice(len(shares), n, p=shares / shares.sum())
    time = rng.integers(0, TAOBAO_DAYS * DAY, n)
    # An action, and a view now and then, is of an item viewed a few rows before, and comes some time after that view.
    earlier = np.maximum(np.arange(n) - rng.geometric(0.3, n), 0)
    again = (user[earlier] == user) & ((kind > 0) | (rng.random(n) < TAOBAO_SEEN_BEFORE))
    item = np.where(again, item[earlier], item)
    time = np.where(again, time[earlier] + rng.exponential(8 * HOUR, n).astype(np.int64), time)
    # A few times are far outside, as in the published file.
    time = np.where(rng.random(n) < 5e-4, rng.integers(-2 * 365 * DAY, 0, n), time)
    frame = pl.DataFrame(
        {
            "user": user,
            "item": item,
            "category": item * 7_919 % TAOBAO_CATEGORIES,
            "behaviour": pl.Series(list(TAOBAO_SHARES)).gather(kind),
            "time": np.minimum(time, TAOBAO_DAYS * DAY - 1) + TAOBAO_START,
        }
    )
    return frame.sort("user", "time", maintain_order=True)


def _taobao_users(rng: np.random.Generator, n: int, first: int) -> Ints:
    """Users of a block, each with about a hundred rows, a few with a thousand; none has rows in two blocks."""
    users = 2 * BLOCK // TAOBAO_ROWS_A_USER
    sizes = np.ceil(rng.gamma(1.2, TAOBAO_ROWS_A_USER / 1.2, users)).astype(np.int64)
    return np.repeat(1 + first // BLOCK * users + np.arange(users), sizes)[:n]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("format", choices=("criteo", "taobao"))
    parser.add_argument("rows", type=int)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write = {"criteo": write_criteo, "taobao": write_taobao}[given.format]
    write(given.path, given.rows, given.seed)


if __name__ == "__main__":
    main()
