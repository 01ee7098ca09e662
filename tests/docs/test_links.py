"""Links of all pages lead to files and headings that exist; the site's own tools find what is wrong with a site."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import documents
from tracecvr.base import registry

ROOT = documents.ROOT
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def pages() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / name for name in tracked.stdout.split()]


def anchors(page: Path) -> set[str]:
    """What headings of a page are called in links."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def is_drawn(file: Path) -> bool:
    """Whether `make docs` draws it: reports are not in the repository."""
    return file.name == "report.html" and (file.parent / "bench.json").is_file()


def broken(page: Path) -> list[str]:
    lines = []
    for target, anchor in LINK.findall(CODE.sub("`code`", page.read_text(encoding="utf-8"))):
        file = (page.parent / target).resolve() if target else page
        if not file.exists() and not is_drawn(file):
            lines.append(target)
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            lines.append(f"{target}#{anchor}")
    return lines


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, indeed\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#a-heading-indeed) [c](gone.md) [d](there.md#gone) [e](#gone)\n")
    assert broken(page) == ["gone.md", "there.md#gone", "#gone"]


def test_the_check_of_the_site_finds_broken_links_and_what_comes_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h2 id="one">One</h2><a href="b.html#two">b</a><a href="https://example.org">c</a>'
    )
    (tmp_path / "b.html").write_text('<h2 id="two">Two</h2><a href="a.html#one">a</a>')
    check = documents.script("site_check")
    assert check.problems(tmp_path) == []
    (tmp_path / "b.html").write_text('<script src="https://example.org/x.js"></script><a href="gone.html">d</a>')
    assert check.problems(tmp_path) == [
        "a.html links to b.html#two, which does not exist",
        "b.html loads https://example.org/x.js",
        "b.html links to gone.html, which does not exist",
    ]


def test_the_gallery_has_every_method_once() -> None:
    gallery = tomllib.loads((ROOT / "docs" / "gallery.toml").read_text(encoding="utf-8"))
    listed = [name for group in gallery["group"] for name in group["methods"]]
    assert sorted(listed) == sorted(gallery["method"]) == sorted(registry.available("method"))


def test_the_navigation_has_every_page() -> None:
    text = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    own = {path.relative_to(ROOT / "docs").as_posix() for path in pages() if path.is_relative_to(ROOT / "docs")}
    listed = set(re.findall(r'"([\w/]+\.md)"', text))
    left_out = {name for name in own - listed if not name.startswith("methods/") and not name.endswith("table.md")}
    assert left_out == set()
