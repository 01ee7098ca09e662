"""A figure of the log itself: how late conversions come, and what "not yet" is worth at each age."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.durations import duration
from tracecvr.bench.report.figure import Axis, Chart, Figure, Series
from tracecvr.bench.report.scene import Scene


def delays(scene: Scene) -> Figure | None:
    """None if nothing is known of the log."""
    log = scene.log
    if not log.get("clicks"):
        return None
    ages, share = log["delays"]["age_s"], log["delays"]["share"]
    rate = log["conversions"] / log["clicks"]
    conversion = np.asarray(share[log["actions"][0]])
    open_converts = rate * (1 - conversion) / np.maximum(1 - rate * conversion, 1e-12)
    low = max(10.0, min((age for age, s in zip(ages, conversion, strict=True) if age and s > 0.005), default=60.0))
    x = Axis("age of the click", "age", low=low, high=float(log["d_max"]))
    keep = [n for n, age in enumerate(ages) if age >= low]
    at = tuple(float(ages[n]) for n in keep)
    rules = tuple((float(end), "") for end in log["horizons"] if end < log["d_max"])
    by_action = tuple(
        Series(action, 0 if n == 0 else 3 + n, at, tuple(share[action][k] for k in keep))
        for n, action in enumerate(log["actions"])
    )
    known = Chart("Share that has come by an age", x, Axis("share", "percent", 0.0, 1.0), by_action, rules)
    lost = Series("converts later", 5, at, tuple(float(open_converts[k]) for k in keep))
    meaning = Chart(
        'What "not yet" hides', x, Axis("share of open clicks", "percent", low=0.0), (lost,), rules, labels=False
    )
    first = [
        f"{_share_known(ages, conversion, age):.0%} come within {duration(age)}"
        for age in (HOUR, DAY)
        if age < log["d_max"]
    ]
    caption = (
        f"{log['conversions']:,} conversions come within d_max = {duration(log['d_max'])} of their clicks"
        f"{''.join(f'; {text}' for text in first)}. A click without a conversion is a sure negative only at d_max. The "
        "second panel: of the clicks that have not converted by an age, the share that still will. Vertical lines: "
        "horizons."
    )
    return Figure("delays", "Delays, and labels known by age", caption, (known, meaning), columns=2)


def _share_known(ages: Sequence[int], share: Sequence[float] | np.ndarray[Any, Any], age: int) -> float:
    return float(share[max(n for n, known in enumerate(ages) if known <= age)])
