"""The notebooks run, and show what their text says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import documents
from tracecvr.base import registry

notebooks = documents.script("notebooks")
PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def left_by(name: str) -> dict[str, Any]:
    """The names that a notebook leaves."""
    names: dict[str, Any] = notebooks.run(notebooks.FOLDER / f"{name}.ipynb")[0]
    return names


def test_methods_are_compared_on_a_frame() -> None:
    names = left_by("compare")
    figures = {row["method"]: row for row in names["board"].frame.iter_rows(named=True)}
    assert figures["Vanilla"]["nll"] > figures["Telescoped"]["nll"]
    assert figures["Vanilla"]["pcoc"] < 0.8
    assert 0.9 < figures["Telescoped"]["pcoc"] < 1.1
    result = names["result"].content
    assert result["metrics"]["pooled"]["nll"] < result["references"]["logistic"]["nll"]


def test_a_method_of_your_own_is_checked_and_compared() -> None:
    try:
        names = left_by("own_method")
    finally:
        registry.unregister("method", "late_boost")
    assert {outcome.status for outcome in names["outcomes"]} == {"passed", "not applicable"}
    pcoc = dict(zip(names["board"].frame["method"], names["board"].frame["pcoc"], strict=True))
    assert pcoc["Vanilla + late positives"] < pcoc["Late boost 1"] < pcoc["Late boost 3"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_its_output_and_shown_as_a_page(path: Path) -> None:
    code = [cell for cell in notebooks.cells(path) if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code), "run python docs/notebooks.py"
    page = notebooks.markdown(path)
    assert page.startswith("# Notebook: ")
    assert page.count("```python\n") == len(code)
