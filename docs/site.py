"""Builds the site from docs/ into site/, without a network; a warning ends it with exit code 1.

python docs/site.py

Pages of docs/ are written for GitHub, too. They link to files of the repository (`../SECURITY.md`,
`../../src/tracecvr/methods/trace.py`) and have formulas as LaTeX. So the pages are staged in build/site/ first. Every
file that a page links to becomes a page of the site, formulas become MathML, notebooks become pages, and the reports of
docs/results/ are drawn. zensical builds the site from that, and `site_check` looks at every link.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import notebooks
import reports
import site_check
from latex2mathml.converter import convert

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SITE = ROOT / "site"
STAGE = ROOT / "build" / "site"
TAKEN = {".md", ".png", ".svg", ".css", ".js", ".html", ".ipynb"}
ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
"""A link to a file, with an anchor or without: not one with a scheme, nor to an anchor of the same page."""
DRAWING = re.compile(r"^!\[[^\]]*\]\(([^)]+\.svg)\)$", re.MULTILINE)
CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
BLOCK = re.compile(r"^\$\$\n?(.*?)\n?\$\$$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![\w$\\])\$([^$\n]+)\$(?![\w$])")
LANGUAGES = {".py": "python", ".toml": "toml", ".conf": "nginx", ".service": "ini"}


def main() -> int:
    stage()
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    if subprocess.run(command, cwd=STAGE, check=False).returncode:
        return 1
    shutil.move(STAGE / "html", SITE)
    (SITE / "404.html").unlink()  # its links hold only at the root of a server
    lines = site_check.problems(SITE)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return 1 if lines else 0


def stage() -> None:
    """Write build/site/: the pages as the site has them, and its configuration."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    waiting = [path for path in sorted(DOCS.rglob("*")) if path.suffix in TAKEN] + [ROOT / name for name in ROOT_PAGES]
    known = set(waiting)
    for path in waiting:
        target = STAGE / "docs" / uri(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in TAKEN - {".md", ".ipynb"}:
            shutil.copyfile(path, target)
            continue
        text = source_text(path)
        target.write_text(staged(path, text), encoding="utf-8")
        linked = (linked_file(path, link) for _, link, _ in LINK.findall(without_code(text)))
        outside = {file for file in linked if file.is_file() and not file.is_relative_to(DOCS)} - known
        waiting += sorted(outside)
        known |= outside
    reports.draw(STAGE / "docs" / "results")
    (STAGE / "zensical.toml").write_text(configuration(), encoding="utf-8")


def configuration() -> str:
    """The configuration with the methods, in the groups of the gallery, in the navigation."""
    gallery = tomllib.loads((DOCS / "gallery.toml").read_text(encoding="utf-8"))
    groups = {group["title"]: [f"methods/{name}.md" for name in group["methods"]] for group in gallery["group"]}
    pages = [f"{{ {json.dumps(title)} = {json.dumps(names)} }}" for title, names in groups.items()]
    text = (DOCS / "zensical.toml").read_text(encoding="utf-8")
    return text.replace('["methods/README.md"]', f'["methods/README.md", {", ".join(pages)}]')


def source_text(path: Path) -> str:
    """A file as Markdown."""
    if path.suffix == ".ipynb":
        return notebooks.markdown(path)
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".md" else f"# {path.name}\n\n```{LANGUAGES.get(path.suffix, '')}\n{text}```\n"


def staged(path: Path, text: str) -> str:
    """A page with links that hold in the site, and formulas that browsers draw."""
    if path.suffix not in (".md", ".ipynb"):
        return text
    page = uri(path)

    def link(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        file = linked_file(path, target)
        return f"{before}{os.path.relpath(uri(file), Path(page).parent)}{after}" if file.exists() else match[0]

    def prose(part: str) -> str:
        part = DRAWING.sub(lambda match: drawing(linked_file(path, match[1])), part)
        part = BLOCK.sub(lambda match: f'<div class="formula">{mathml(match[1], "block")}</div>', part)
        part = INLINE.sub(lambda match: mathml(match[1], "inline"), part)
        return LINK.sub(link, part)

    return "".join(part if i % 2 else prose(part) for i, part in enumerate(CODE.split(text)))


def drawing(file: Path) -> str:
    """A drawing inside the page, so that it follows the theme of the page."""
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if line)
    return '<div class="picture">' + "\n".join(lines) + "</div>"


def mathml(formula: str, display: str) -> str:
    """A formula for browsers. Few machines have a font whose brace grows: cases get a line on their left instead."""
    text = str(convert(formula.strip(), display=display))
    return re.sub(r"<mo[^>]*>&#x0007B;</mo><mtable>", '<mtable class="cases">', text)


def without_code(text: str) -> str:
    return CODE.sub("", text)


def linked_file(origin: Path, target: str) -> Path:
    path = Path(os.path.normpath(origin.parent / target))
    return path / "README.md" if path.is_dir() else path


def uri(path: Path) -> str:
    """Where a file of the repository is in the site."""
    inside = path.is_relative_to(DOCS)
    name = path.relative_to(DOCS if inside else ROOT)
    if path.suffix == ".ipynb":
        return name.with_suffix(".md").as_posix()
    return name.as_posix() if inside or path.suffix == ".md" else f"files/{name.as_posix()}.md"


if __name__ == "__main__":
    sys.exit(main())
