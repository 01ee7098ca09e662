"""The words that reports and pages explain on the spot: those of the glossary that say how they are written there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_ENTRY = re.compile(r"^### (?P<name>.+)\n<!-- shown: (?P<written>.+) -->\n(?P<meaning>(?:.+\n?)+)", re.MULTILINE)


@dataclass(frozen=True)
class Term:
    """A word of the field. `written` are the ways in which headings and sentences write it."""

    name: str
    meaning: str
    written: tuple[str, ...]


def read_glossary() -> str:
    """The glossary, in Markdown: docs/glossary.md is a copy of it."""
    return resources.files(__package__).joinpath("glossary.md").read_text(encoding="utf-8")


@cache
def read_terms() -> tuple[Term, ...]:
    """The words that are explained where they are shown."""
    terms = []
    for entry in _ENTRY.finditer(read_glossary()):
        meaning = re.sub(r"[`*]", "", " ".join(entry["meaning"].split()))
        terms.append(Term(entry["name"], meaning, tuple(entry["written"].split(", "))))
    return tuple(terms)


def terms_in(text: str) -> list[Term]:
    """The words of a text that have an explanation, in the order of the glossary.

    >>> [term.name for term in terms_in("PR-AUC and NLL over intervals")]
    ['interval', 'NLL', 'PR-AUC']
    """
    names = {term: "|".join(map(re.escape, term.written)) for term in read_terms()}
    return [term for term, name in names.items() if re.search(rf"(?<![\w-])(?:{name})(?![\w-])", text)]
