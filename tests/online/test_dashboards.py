"""The Grafana dashboard and the Prometheus rules in deploy/: their form, and that every metric in them exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracecvr.monitor.monitor import TEXTS
from tracecvr.online.service.gauges import FAMILIES, Gauges

DEPLOY = Path(__file__).parents[2] / "deploy"


def metrics_and_labels() -> dict[str, set[str]]:
    """Every metric of the service, as Prometheus stores it, and its labels."""
    known: dict[str, set[str]] = {}
    for collector, names in Gauges().registry._collector_to_names.items():
        known |= {name: set(getattr(collector, "_labelnames", ())) for name in names}
    known |= {f"tracecvr_{name}": set(labels) for name, (_, labels) in FAMILIES.items()}
    return known


def expressions(content: Any) -> list[str]:
    """Every `expr` in a document."""
    if isinstance(content, list):
        return [text for one in content for text in expressions(one)]
    if not isinstance(content, dict):
        return []
    own = [content["expr"]] if "expr" in content else []
    return own + [text for value in content.values() for text in expressions(value)]


def check(expression: str) -> None:
    """Metrics are known, labels are theirs, brackets are closed."""
    known, used = metrics_and_labels(), re.findall(r"\b(tracecvr_\w+)(?:\{([^}]*)\})?", expression)
    assert used, expression
    for metric, selectors in used:
        assert metric in known, metric
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selectors))
        assert labels <= known[metric] | {"job", "instance"}, expression
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        own = set.union(*(known[metric] for metric, _ in used)) | {"job", "instance", "le"}
        assert {label.strip() for label in grouped.split(",")} <= own, expression
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text(encoding="utf-8"))
    assert set(content) == {"groups"}
    return [rule for group in content["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_has_the_form_of_a_rule_and_names_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert {"alert", "expr", "labels", "annotations"} <= set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
    assert rule["annotations"]["summary"]
    check(rule["expr"])
    for kind in re.findall(r'kind!?="(\w+)"', rule["expr"]):
        assert kind in TEXTS


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    for wrong in ("tracecvr_nothing > 0", 'tracecvr_version{kind="x"} > 0', "rate(tracecvr_scores_total[5m]"):
        with pytest.raises(AssertionError):
            check(wrong)


def test_the_dashboard_has_the_form_of_a_dashboard_and_names_metrics_that_exist() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= set(board)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not taken & cells
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["title"]
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${source}"
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"source", "job"}
    for expression in expressions(board):
        check(expression)
