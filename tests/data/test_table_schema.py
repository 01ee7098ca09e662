"""Schema: what a log says of itself, and what of that tells one table from another."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tracecvr.checks.subject import small_log
from tracecvr.data.dataset import Dataset
from tracecvr.data.table import Schema
from tracecvr.datasets.criteo import Criteo
from tracecvr.datasets.criteo_search import CriteoSearch
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.datasets.taobao import Taobao


@pytest.mark.parametrize("dataset", [Taobao, Criteo, CriteoSearch, Synthetic])
def test_what_a_log_wants_of_methods_is_no_part_of_its_fingerprint(dataset: type[Dataset]) -> None:
    wants: dict[str, Any] = {"windows": dataset.windows, "conversions_at_click": dataset.conversions_at_click}
    schema = replace(small_log().schema, dataset=dataset.name, **wants)
    plain = replace(schema, windows=None, conversions_at_click=False)
    assert schema.text == plain.text
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    others = {name: value for name, value in schema.to_json().items() if name not in wants}
    assert json.dumps(others, sort_keys=True) == schema.text
    assert Schema.from_json(plain.to_json()) == plain
