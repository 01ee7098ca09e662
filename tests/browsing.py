"""A real browser for tests: Chromium on PATH, which `make browser` installs, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

QUIET = [  # no service of the browser's own may call out
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path is not None, "no chromium on PATH: `make browser` installs it"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield started
        started.close()
