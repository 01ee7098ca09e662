"""Checks a built site: every link leads to a page and an anchor that exist, and nothing is loaded from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src")}
"""What a browser fetches by itself when it shows a page."""


class Links(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.loads: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value is None:
                continue
            if name in ("id", "name"):
                self.anchors.add(value)
            elif (tag, name) in LOADED:
                self.loads.add(value)
            elif tag == "a" and name == "href":
                self.targets.add(value)


def problems(site: Path) -> list[str]:
    """One line for each link that leads nowhere and for each page that loads something from elsewhere."""
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    lines = []
    for path, page in pages.items():
        where = path.relative_to(site)
        lines += [f"{where} loads {url}" for url in sorted(page.loads) if urlsplit(url).netloc]
        local = sorted(
            url for url in page.targets | page.loads if not urlsplit(url).scheme and not urlsplit(url).netloc
        )
        lines += [f"{where} links to {url}, which does not exist" for url in local if not _exists(path, url, pages)]
    return lines


def _exists(path: Path, url: str, pages: dict[Path, Links]) -> bool:
    target, anchor = unquote(urlsplit(url).path), unquote(urlsplit(url).fragment)
    file = (path.parent / target).resolve() if target else path
    if file.is_dir():
        file /= "index.html"
    if not anchor or file not in pages:
        return file.is_file()
    return anchor in pages[file].anchors or anchor.startswith("__")  # the theme's own anchors
