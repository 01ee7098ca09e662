"""What is memorised: the more often labels are shown, the better shown clicks are known."""

from __future__ import annotations

import pytest

from memorisation import AGES, Gains, gains
from tracecvr.base.config import HOUR


def measured(method: str) -> Gains:
    return gains(method, "synthetic", None, days=8, every=3, options=("clicks=15000",))


def test_a_model_that_never_learns_gains_nothing() -> None:
    (new, gain) = measured("pretrain:hidden=8")[HOUR, "nll"]
    assert 0.1 < new < 1
    assert gain is not None
    assert (gain.mean, gain.low, gain.high) == (0, 0, 0)


@pytest.mark.slow
def test_labels_that_are_shown_often_are_learnt_by_heart() -> None:
    once, often = (measured(f"oracle:hidden=64,batch_size=256,passes={passes}") for passes in (1, 10))
    for metric, sign in (("nll", -1), ("auc", 1)):
        few, many = once[HOUR, metric][1], often[HOUR, metric][1]
        assert few is not None
        assert many is not None
        assert few.clear
        assert many.clear
        assert 0 < 3 * sign * few.mean < sign * many.mean
    assert once[AGES[-1], "auc"][1] is None  # a week old, on two days: too few for an interval
