"""What SECURITY.md promises: each item names tests, and they are there. And the promises that no other file tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from tracecvr.base.errors import UserError
from tracecvr.data.column_files import mapped

TESTS = Path(__file__).parents[1]
PROMISED = (TESTS.parent / "SECURITY.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]
UNPICKLING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def test_every_promise_names_a_test_that_is_there() -> None:
    items = re.split(r"^- ", PROMISED, flags=re.MULTILINE)[1:]
    assert len(items) > 20
    for item in items:
        (comment,) = re.findall("<!-- (.*?) -->", item, re.DOTALL) or [""]
        named = re.findall(r"(test_\w+\.py)::(test_\w+)", comment)
        assert named, item
        for file, test in named:
            (path,) = TESTS.rglob(file)
            assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), f"{file}::{test}"


def test_no_file_is_unpickled() -> None:
    """Workers of one run talk to each other by pickles, through libraries: those are no files of somebody's."""
    for path in (TESTS.parent / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not {name.partition(".")[0] for name in names} & UNPICKLING, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "torch.load", path
                assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords), path


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "column.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="column not readable"):
        mapped(tmp_path / "column.npy")
    np.save(tmp_path / "column.npy", np.array([1]))
    assert mapped(tmp_path / "column.npy").tolist() == [1]
