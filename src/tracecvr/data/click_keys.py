"""The number by which a click is known, in tables, event logs and ledgers alike."""

from __future__ import annotations

from typing import Any

import polars as pl
import polars_hash  # noqa: F401  (registers the .nchash namespace)
import xxhash

from tracecvr.base.errors import UserError


def click_key(click_id: object) -> int:
    """The number of a click: its id, if that is a whole number, else 63 bits of a hash of the text.

    >>> click_key(17), click_key("c-17")
    (17, 1085493075321268311)
    """
    if isinstance(click_id, int) and not isinstance(click_id, bool) and abs(click_id) < 1 << 63:
        return click_id
    if isinstance(click_id, str) and click_id:
        return xxhash.xxh3_64_intdigest(click_id.encode()) >> 1
    raise UserError(f"click_id is {click_id!r}: expected text, or a whole number of at most 63 bits")


def key_of_text(name: str) -> pl.Expr:
    """The same of a column of texts."""
    text: Any = pl.col(name)
    digest: pl.Expr = text.nchash.xxh3_64()
    return (digest // 2).cast(pl.Int64)
