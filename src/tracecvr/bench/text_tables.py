"""Tables as data, and how they are written in Markdown and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, field

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
