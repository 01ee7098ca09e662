"""The file that `tracecvr new-method` writes: a method that is sound and does not learn yet."""

from __future__ import annotations

import re
from pathlib import Path

from tracecvr.base.errors import UserError

TEMPLATE = '''"""{title}: one line about what it does."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tracecvr.base.config import option
from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Windowed
from tracecvr.stream.reveal import After, On, Reveals, Schedule


@dataclass
class {title}(Windowed):
    """What it does, in two sentences.

    >>> {title}(window=900).schedule()
    (After(seconds=900, seen=None), On(action=0, later_than=900))
    """

    name = "{name}"
    title = "{title}"
    reference = "who published it, where and when"
    status = "ours"
    serves = "the net's rate"

    strength: float = option(0.0, "what this option does", low=0)

    def schedule(self) -> Schedule:
        """Each click when its window ends, and once more if it converts later."""
        return (After(self.wait), On(0, later_than=self.wait))

    def loss(self, b: Reveals) -> Tensor:
        """Replace this. b.label is the label as known; b.trigger is 0 when the window ends, 1 for a late conversion.

        For a net that is trained on history, write helpers() and helper_loss(name, b), and call it here by
        self.call(NAME, b.x). Put what must not be trained through behind self.stop_gradient(...).
        """
        return self.strength * cross_entropy(self.logit(b.x), b.label).mean()

    def fixed_point(self, p: float, delayed: float) -> float | None:
        """The rate that it converges to on a stationary stream; p if it is unbiased."""
        return p
'''


def write(name: str, folder: Path) -> Path:
    """Write the skeleton of a method to a new file."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"method name {name!r}: use lower case, digits and underscores, and start with a letter")
    path = folder / f"{name}.py"
    if path.exists():
        raise UserError(f"{path} exists already: choose another name, or --out another directory")
    title = "".join(word.capitalize() for word in name.split("_"))
    path.write_text(TEMPLATE.format(name=name, title=title), encoding="utf-8")
    return path
