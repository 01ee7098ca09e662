"""What the documents show: blocks of code, and the commands in them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str, heading: str | None = None) -> list[str]:
    """Blocks of code of a document, or of its section with that heading."""
    text = (ROOT / document).read_text(encoding="utf-8")
    if heading is not None:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_commands(call: Callable[..., int], text: str) -> None:
    """Carry out lines such as `tracecvr run ...`, in this process."""
    for line in text.splitlines():
        program, *words = shlex.split(line)
        assert program == "tracecvr", line
        assert call(*words) == 0, line


def run_code(text: str, document: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Carry out a block of Python, after others that left these names."""
    names = {} if names is None else names
    exec(compile(text, document, "exec"), names)
    return names


@contextmanager
def served(command: str) -> Iterator[str]:
    """A service as a document starts it, at a port that is free; yields that port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = [sys.executable, "-m", "tracecvr.cli", *shlex.split(command.replace("8000", port))[1:]]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as service:
        try:
            for _ in range(600):
                with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
                    break
                time.sleep(0.1)
            yield port
        finally:
            service.terminate()


def script(name: str) -> Any:
    """A program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
