"""Random search: settings drawn from declared ranges, the same for a trial whenever they are drawn. What is drawn for
all methods is the same for all: methods differ in nothing but what is their own."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.seeds import generator

_KEYS = {"low", "high", "scale", "choices"}


def ranges_of(ranges: Mapping[str, Mapping[str, Any]], method: str) -> dict[str, Any]:
    """What is searched for a method: what all have in common, and its own."""
    return dict(ranges.get("all", {})) | dict(ranges.get(method, {}))


def draw(ranges: Mapping[str, Mapping[str, Any]], method: str, trial: int) -> dict[str, str]:
    """The settings of one trial. Trial 0 is the method's defaults, so that a search never ends with less."""
    if trial == 0:
        return {}
    settings = {}
    for key, rule in sorted(ranges_of(ranges, method).items()):
        rng = generator(0, "tune", method if key in ranges.get(method, {}) else "all", key, trial)
        if "choices" in rule:
            settings[key] = str(rule["choices"][int(rng.integers(len(rule["choices"])))])
        else:
            low, high, at = float(rule["low"]), float(rule["high"]), float(rng.random())
            by_log = rule.get("scale", "linear") == "log"
            settings[key] = f"{exp(log(low) + at * log(high / low)) if by_log else low + at * (high - low):.4g}"
    return settings


def check(ranges: Mapping[str, Any], where: str) -> None:
    """Refuse ranges that cannot be drawn from."""
    for method, rules in ranges.items():
        for key, rule in rules.items():
            name = f"{where}: [range.{method}] {key}"
            if not isinstance(rule, dict) or set(rule) - _KEYS or ("choices" in rule) == ("low" in rule):
                raise UserError(f"{name}: expected {{low, high, scale}} or {{choices}}, found {rule!r}")
            if "low" in rule and not ("high" in rule and rule["low"] < rule["high"]):
                raise UserError(f"{name}: expected low < high, found {rule!r}")
            if rule.get("scale", "linear") not in ("linear", "log") or (
                rule.get("scale") == "log" and rule["low"] <= 0
            ):
                raise UserError(f"{name}: scale is linear, or log with low > 0; found {rule!r}")
            if rule.get("choices") == []:
                raise UserError(f"{name}: no choices")
