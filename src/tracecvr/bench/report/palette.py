"""The style sheets of drawings and pages. `colours.css` has all colours, light and dark.

Other style sheets name them as `var(--ink)`. A page has all of these files; a drawing that stands alone has the light
colours filled in, since programs other than browsers know no variables.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

SERIES = 8
"""Colours of series, `--s0` to `--s7`."""


def read_style_sheet(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


@cache
def light_colours() -> dict[str, str]:
    """The light colours by name."""
    return dict(re.findall(r"--(\w+): (#\w+);", read_style_sheet("colours.css").partition("@media")[0]))


def fill_in(css: str) -> str:
    """A style sheet with the light colours in place of variables.

    >>> fill_in("text { fill: var(--soft) }")
    'text { fill: #5b6067 }'
    """
    return re.sub(r"var\(--(\w+)\)", lambda named: light_colours()[named[1]], css)
