"""Figures of the log itself: how late conversions come, and clicks and rate of each day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.durations import duration
from tracecvr.bench.report.figure import Axis, Chart, Figure, Series
from tracecvr.bench.report.scene import Scene


def log_figures(scene: Scene) -> list[Figure]:
    """None if nothing is known of the log."""
    return [_delays(scene.log), _days(scene)] if scene.log.get("clicks") else []


def _delays(log: dict[str, Any]) -> Figure:
    """Delay distributions, and what "not yet" is worth at each age."""
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


def _days(scene: Scene) -> Figure:
    """Clicks and conversion rate of each whole day."""
    log = scene.log
    whole = _whole_days(log)
    days, clicks, conversions = (log["days"][name][whole] for name in ("day", "clicks", "conversions"))
    rules = ((log["split"] / DAY, "stream begins"),)
    known = [n for n, count in enumerate(clicks) if count]
    volume = Series("clicks", 5, tuple(map(float, days)), tuple(map(float, clicks)))
    rates = Series("rate", 0, tuple(float(days[n]) for n in known), tuple(conversions[n] / clicks[n] for n in known))
    panels = (
        Chart("Clicks a day", scene.days, Axis("clicks", "count", low=0.0), (volume,), rules, labels=False),
        Chart(
            "Conversion rate", scene.days, Axis("share converted", "percent", low=0.0), (rates,), rules, labels=False
        ),
    )
    caption = (
        f"{log['clicks']:,} clicks whose labels are final; {log['conversions'] / log['clicks']:.2%} of them convert."
    )
    left_out = len(log["days"]["day"]) - len(days)
    if left_out:
        which = "A first or last day" if left_out == 1 else "First and last day"
        caption += f" {which} with clicks of only a part of the day {'is' if left_out == 1 else 'are'} not drawn."
    return Figure("days", "Days of the log", caption, panels, columns=2)


def _whole_days(log: dict[str, Any]) -> slice:
    """Without a first or last day of which the log has only a part."""
    days = log["days"]["day"]
    if len(days) < 3:
        return slice(0, len(days))
    first, last = log["covers"]
    most = DAY // 10  # a quiet hour at night is no missing part
    return slice(int(first - days[0] * DAY > most), len(days) - int((days[-1] + 1) * DAY - last > most))
