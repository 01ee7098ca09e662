"""Options: parsing, ranges, and errors that say what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from tracecvr.base.config import Seconds, configure, distribute, option, options, pairs, values
from tracecvr.base.errors import UserError
from tracecvr.checks.subject import KnownLaw
from tracecvr.learn.engine import Engine
from tracecvr.methods.trace import Trace
from tracecvr.runs.replay import Plan


@dataclass
class Sample:
    rate: float = option(0.1, "a rate", low=0, high=1)
    window: Seconds | None = option(None, "a window", low=0)
    ends: tuple[Seconds, ...] = option((60,), "ends")
    count: int = option(1, "a count", above=0)
    on: bool = option(True, "a switch")
    mode: str = option("a", "a mode", choices=("a", "b"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate=0.5", 0.5),
        ("window=90", 90),
        ("window=15min", 900),
        ("window=1.5h", 5400),
        ("window=30d", 30 * 86400),
        ("window=none", None),
        ("ends=6min,1h,30d", (360, 3600, 2592000)),
        ("count=3", 3),
        ("on=false", False),
        ("mode=b", "b"),
    ],
)
def test_text_becomes_a_value(text: str, expected: object) -> None:
    key = text.partition("=")[0]
    assert getattr(configure(Sample(), pairs([text], "--set"), "--set"), key) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate", "expected key=value"),
        ("rats=1", "did you mean 'rate'"),
        ("rate=2", "at most 1"),
        ("rate=nan", "finite"),
        ("rate=inf", "finite"),
        ("rate=x", "expected number, found 'x'"),
        ("window=5 years", "expected duration"),
        ("window=-5", "expected duration"),
        ("count=1.5", "expected whole number"),
        ("count=0", "greater than 0"),
        ("on=maybe", "expected true or false"),
        ("mode=c", "one of a, b"),
    ],
)
def test_bad_settings_are_explained(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        configure(Sample(), pairs([text], "--set"), "--set")


def test_a_key_given_twice_is_an_error() -> None:
    with pytest.raises(UserError, match="twice"):
        pairs(["rate=1", "rate=0"], "--set")


def test_settings_reach_their_owner() -> None:
    given = distribute({"method": Trace(), "plan": Plan()}, {"lam": "0.3", "plan.interval": "2h"}, "--set")
    assert given["method"] == Trace(lam=0.3)
    assert given["plan"] == Plan(interval=7200)
    with pytest.raises(UserError, match="unknown key"):
        distribute({"method": Trace()}, {"plan.lam": "1"}, "--set")


def test_values_are_ready_for_json() -> None:
    assert values(Sample(ends=(1, 2))) == {
        "rate": 0.1,
        "window": None,
        "ends": [1, 2],
        "count": 1,
        "on": True,
        "mode": "a",
    }
    assert [o.name for o in options(Sample)] == list(values(Sample()))
    assert all(o.help for o in options(Trace))


@pytest.mark.parametrize(
    "wrong", [{"lam": math.nan}, {"lam": "1"}, {"batch_size": 2.5}, {"hidden": 8}, {"hidden": ("a",)}, {"gate": 1}]
)
def test_python_users_are_checked_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Engine(Trace(**wrong), KnownLaw().schema)


def test_a_list_does_for_a_tuple() -> None:
    method = Trace(hidden=[8, 4])  # type: ignore[arg-type]
    Engine(method, KnownLaw().schema)
    assert method.hidden == (8, 4)
