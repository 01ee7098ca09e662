"""Tables as data, and how they are written in Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracecvr.bench import stats


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

    @property
    def whole(self) -> str:
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


def mean_text(spread: stats.Spread | None) -> str:
    """A mean with its deviation.

    >>> mean_text(stats.Spread(0.81234, 0.00321, 3))
    '0.8123 ± 0.0032'
    """
    if spread is None:
        return "n/a"
    return f"{spread.mean:.4f}" if spread.sd is None else f"{spread.mean:.4f} ± {spread.sd:.4f}"


def difference_cell(difference: stats.Difference | None) -> Text:
    """A difference with its interval and p-value, bold if the interval excludes zero.

    >>> difference_cell(stats.Difference(0.0123, 0.01, 0.0146, 0.004, 3)).whole
    '+0.0123 [+0.0100, +0.0146] p=0.004'
    """
    if difference is None:
        return Text("n/a")
    mean = f"{difference.mean:+.4f}"
    if difference.low is None or difference.p is None:
        return Text(mean)
    interval = f"[{difference.low:+.4f}, {difference.high:+.4f}]"
    return Text(mean, bold=difference.clear, detail=f"{interval} {say_p(difference.p)}")


def say_p(p: float) -> str:
    """A p-value as text.

    >>> say_p(0.0001), say_p(0.02)
    ('p<0.001', 'p=0.020')
    """
    return "p<0.001" if p < 0.001 else f"p={p:.3f}"


def figure_cell(value: float | None, digits: int = 4) -> Text:
    """A number, or that there is none."""
    return Text("n/a" if value is None else f"{value:.{digits}f}")
