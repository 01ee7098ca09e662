"""Where the cells of a bench are, as their tasks tell it. In a file of its own, so that its process imports nothing."""

from __future__ import annotations

Where = tuple[str, int, int]
"""Stage, done, total."""


class CellProgress:
    """Becomes an actor of Ray, so that tasks on any node and the process that shows their progress can reach it."""

    def __init__(self) -> None:
        self.at: dict[str, Where] = {}

    def tell(self, cell: str, where: Where) -> None:
        """A cell is there now."""
        self.at[cell] = where

    def ask(self) -> dict[str, Where]:
        """All that was told."""
        return self.at
