"""The ids of one click, computed without a data frame, are those of the encoder: for every kind and any value."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alone import encode_alone
from tracecvr.data.encoder import Binned, Encoder, Hashed, Modulo, RowEncoder, Vocabulary

ENCODER = Encoder(
    (
        Hashed("h", 50),
        Hashed("wide", 1 << 31),
        Modulo("m", 7),
        Modulo("large", (1 << 31) - 1),
        Binned("b", 8, low=-1.0, high=20.0),
        Binned("l", 8, scale="log", low=0.0, high=5.0),
        Modulo("both", 11),
        Hashed("both", 50),
        Vocabulary("v", 8, words=("-0.0", "0.0", "1e16", "3", "true", "\u00e9\U0001f600")),
    )
)
NAMES = tuple(dict.fromkeys(column.raw for column in ENCODER.columns))
ROWS = RowEncoder(ENCODER, NAMES)
NUMBERS = st.integers() | st.integers(-5, 30) | st.floats() | st.floats(-5, 30) | st.decimals(-99, 99).map(float)
ODD = [
    "3",
    "3.0",
    "-1.5",
    "1e3",
    "n/a",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "true",
    "1e999",
    "9" * 30,
    "007",
    "+3",
    " 3",
    "3 ",
]
ODD += [
    " 3",
    "3 ",
    "0.1",
    "-0",
    "-0.0",
    ".5",
    "5.",
    "1_0",
    "\u0663",
    "\u0663.5",
    "",
    "-",
    "--1",
    "123456789012345.6",
    "-7.000000000000001",
]
TEXTS = st.text(max_size=5) | st.sampled_from(ODD) | st.from_regex(r"-?[0-9]{1,17}(\.[0-9]{0,16})?", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
EDGES: list[Any] = [
    1 << 63,
    -(1 << 63),
    (1 << 63) - 1,
    1 << 2000,
    1 << 62,
    2.0**62,
    2.0**63,
    -(2.0**63),
    1e-4,
    9.9e-5,
    1e16,
    1e300,
]
EDGES += [
    1e-4,
    9.9e-5,
    1e16,
    -0.0,
    0.0,
    True,
    1,
    1.0,
    float("nan"),
    float("inf"),
    9999999999999998.0,
    5e-324,
    None,
    [1],
    {"a": 1},
]


def by_table(clicks: list[list[Any]]) -> tuple[Any, Any]:
    """One click at a time, as the encoder has it."""
    return encode_alone(ENCODER, dict(zip(NAMES, map(list, zip(*clicks, strict=True)), strict=True)))


def test_values_at_the_edges_of_every_rule() -> None:
    for value in (*EDGES, *ODD):
        ids, unreadable = ROWS.encode([[value] * len(NAMES)])
        assert (ids.tolist(), unreadable) == by_table([[value] * len(NAMES)]), value


@settings(max_examples=150)
@example([[-0.0] * len(NAMES), [0.0] * len(NAMES)])
@given(st.lists(st.lists(JSON, min_size=len(NAMES), max_size=len(NAMES)), min_size=1, max_size=3))
def test_any_click_has_the_ids_that_the_encoder_gives_it(clicks: list[list[Any]]) -> None:
    ids, unreadable = ROWS.encode(clicks)
    assert (ids.tolist(), unreadable) == by_table(clicks)
    assert ids.dtype == np.int32


@settings(max_examples=30)
@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-12, 1e6),
    st.integers(1, 40),
    st.sampled_from(["linear", "log"]),
    st.lists(st.floats(-2e6, 2e6) | st.integers(-100, 100), min_size=5, max_size=20),
)
def test_bins_of_any_range(low: float, width: float, size: int, scale: str, values: list[float]) -> None:
    encoder = Encoder((Binned("b", size, scale=scale, low=low, high=low + width),))
    given_values = [*values, low, low + width, low + width / 2]
    ids, _ = RowEncoder(encoder, ("b",)).encode([[value] for value in given_values])
    assert ids.tolist() == encode_alone(encoder, {"b": given_values})[0]


def test_no_clicks() -> None:
    assert ROWS.encode([])[0].shape == (0, len(ENCODER.columns))
