"""The colours of drawings and pages, light and dark: the one place that has them.

Style sheets name them as `var(--ink)`. A page defines these variables; a drawing that stands alone has them filled in,
since programs other than browsers know no variables.
"""

from __future__ import annotations

import re

SERIES = 8
"""Colours of series, `--s0` to `--s7`. They also differ in lightness, for readers who see few colours."""

THEMES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#fdfdfb",
        "raised": "#f4f4f0",
        "ink": "#1d1f21",
        "soft": "#5b6067",
        "line": "#dfdfd8",
        "bar": "#8b93a0",
        "good": "#006f53",
        "bad": "#a63a00",
        "link": "#0058a0",
        "s0": "#bf4a00",
        "s1": "#1d1f21",
        "s2": "#2078b4",
        "s3": "#8a7400",
        "s4": "#a83f82",
        "s5": "#007f61",
        "s6": "#6a51c8",
        "s7": "#8c564b",
    },
    "dark": {
        "paper": "#16181a",
        "raised": "#1f2225",
        "ink": "#e7e6e1",
        "soft": "#a3a7ac",
        "line": "#303438",
        "bar": "#7d8692",
        "good": "#3fc79c",
        "bad": "#ff9558",
        "link": "#7cc0f5",
        "s0": "#ff8a3d",
        "s1": "#f2f1ec",
        "s2": "#62b8f0",
        "s3": "#e3cf4a",
        "s4": "#e58fc0",
        "s5": "#35c59b",
        "s6": "#b3a3ff",
        "s7": "#d3a196",
    },
}


def define_variables() -> str:
    """CSS that defines the colours, in the system's theme."""
    light, dark = (" ".join(f"--{name}: {colour};" for name, colour in THEMES[theme].items()) for theme in THEMES)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def fill_in(css: str) -> str:
    """A style sheet with the light colours in place of variables.

    >>> fill_in("text { fill: var(--soft) }")
    'text { fill: #5b6067 }'
    """
    return re.sub(r"var\(--(\w+)\)", lambda named: THEMES["light"][named[1]], css)
