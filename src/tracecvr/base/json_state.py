"""The state of a dataclass as JSON has it: its numbers, arrays and other dataclasses, by the names of its fields."""

from __future__ import annotations

from typing import Any, Self, get_type_hints

import numpy as np


class JsonState:
    """A dataclass whose fields are what has to be kept of it."""

    def state(self) -> dict[str, Any]:
        packed = {name: value.state() if isinstance(value, JsonState) else value for name, value in vars(self).items()}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in packed.items()}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        hints = get_type_hints(cls)
        return cls(**{name: _unpack(hints[name], value) for name, value in state.items()})


def _unpack(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, JsonState):
        return kind.of(value)
    return np.array(value, np.float64) if getattr(kind, "__origin__", None) is np.ndarray else value
