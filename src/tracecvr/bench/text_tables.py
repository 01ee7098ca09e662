"""Tables as data, and how they are written in Markdown and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracecvr.bench import stats

_TEX = {letter: f"\\{letter}" for letter in "&%_#${}"} | {
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "|": r"$\mid$",
    "~": r"\textasciitilde{}",
    "\\": r"\textbackslash{}",
}


@dataclass(frozen=True)
class Text:
    """The text of one place in a table, and how it stands out."""

    text: str
    bold: bool = False
    underline: bool = False
    detail: str = ""
    """What comes after the text, such as its interval; a page has it on a line of its own."""

    def markdown(self) -> str:
        plain = self.whole.replace("|", "\\|")
        if self.bold:
            return f"**{plain}**"
        return f"<u>{plain}</u>" if self.underline else plain

    def latex(self) -> str:
        plain = escape(self.whole)
        if self.bold:
            return rf"\textbf{{{plain}}}"
        return rf"\underline{{{plain}}}" if self.underline else plain

    @property
    def whole(self) -> str:
        """Text and detail."""
        return f"{self.text} {self.detail}" if self.detail else self.text


@dataclass
class Table:
    """Title, headings and rows; `apart` are the rows above which a rule is drawn."""

    title: str
    headings: list[str]
    rows: list[list[Text]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    apart: set[int] = field(default_factory=set)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", f"| {' | '.join(self.headings)} |"]
        lines.append(f"|---|{'---:|' * (len(self.headings) - 1)}")
        lines += [f"| {' | '.join(place.markdown() for place in row)} |" for row in self.rows]
        lines += [line for note in self.notes for line in ("", note)]
        return "\n".join(lines)

    def latex(self) -> str:
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{escape(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}", r"\toprule"]
        lines += [" & ".join(map(escape, self.headings)) + r" \\", r"\midrule"]
        for number, row in enumerate(self.rows):
            if number in self.apart and number:
                lines.append(r"\midrule")
            lines.append(" & ".join(place.latex() for place in row) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip\footnotesize {escape(note)}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"])


def escape(text: str) -> str:
    """Plain text for LaTeX.

    >>> escape("es_dfm: 50 % ± 1")
    'es\\\\_dfm: 50 \\\\% $\\\\pm$ 1'
    """
    return "".join(_TEX.get(letter, letter) for letter in text)


def mean_text(spread: stats.Spread | None) -> str:
    """A mean with its deviation.

    >>> mean_text(stats.Spread(0.81234, 0.00321, 3))
    '0.8123 ± 0.0032'
    """
    if spread is None:
        return "n/a"
    return f"{spread.mean:.4f}" if spread.sd is None else f"{spread.mean:.4f} ± {spread.sd:.4f}"


def difference_cell(difference: stats.Difference | None) -> Text:
    """A difference with its interval and p-value, bold if the interval excludes zero."""
    if difference is None:
        return Text("n/a")
    mean, _, detail = difference_text(difference).partition(" ")
    return Text(mean, bold=difference.clear, detail=detail)


def difference_text(difference: stats.Difference | None) -> str:
    """A difference with its interval and p-value.

    >>> difference_text(stats.Difference(0.0123, 0.01, 0.0146, 0.004, 3))
    '+0.0123 [+0.0100, +0.0146] p=0.004'
    """
    if difference is None:
        return "n/a"
    if difference.low is None or difference.high is None or difference.p is None:
        return f"{difference.mean:+.4f}"
    p = "p<0.001" if difference.p < 0.001 else f"p={difference.p:.3f}"
    return f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}] {p}"
