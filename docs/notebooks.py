"""Notebooks of docs/notebooks/: carries out their cells and keeps the output, and shows them as pages of the site.

python docs/notebooks.py            # runs all notebooks and writes their output into them

No kernel is needed: a cell is carried out here, and its last expression is shown as a notebook shows it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def cells(path: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return content


def run(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Carry out the cells of a notebook; returns the names that they leave, and the cells with their output."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done = []
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            cell = {**cell, "execution_count": number + 1, "outputs": _outputs("".join(cell["source"]), path, names)}
        done.append(cell)
    return names, done


def _outputs(source: str, path: Path, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, and what its last expression shows."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, path.name, "exec"), names)
        value = (
            eval(compile(ast.Expression(last.value), path.name, "eval"), names) if isinstance(last, ast.Expr) else None
        )
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = str(value._repr_html_()).splitlines(keepends=True)
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def write(path: Path, done: list[dict[str, Any]]) -> None:
    content = {"cells": done, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def markdown(path: Path) -> str:
    """A notebook as a page."""
    parts = []
    for cell in cells(path):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return "```text\n" + "".join(output["text"]) + "```"
    data = output["data"]
    if "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()
        return '<div class="output">' + "\n".join(line for line in lines if line.strip()) + "</div>"
    return "```text\n" + "".join(data["text/plain"]) + "\n```"


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        write(path, run(path)[1])


if __name__ == "__main__":
    main()
