"""Finds methods, plugins, datasets and backbones: the package's own files and third parties' entry points.

A kind of thing is a package of one-subject files (`tracecvr.methods`, ...) and an entry-point group of the same
name. Whatever class there has a `name` is found; nothing is registered by hand.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from tracecvr.config import nearest
from tracecvr.errors import UserError

_HOMES = {
    "method": "tracecvr.methods",
    "plugin": "tracecvr.plugins",
    "dataset": "tracecvr.datasets",
    "backbone": "tracecvr.nets",
}


@cache
def found(kind: str) -> dict[str, type]:
    """Every class of a kind by name, sorted; two of one name are an error."""
    classes = _walk(_HOMES[kind]) + [point.load() for point in entry_points(group=_HOMES[kind])]
    by_name: dict[str, type] = {}
    for cls in classes:
        name: str = cls.name
        if by_name.setdefault(name, cls) is not cls:
            raise UserError(
                f"two {kind}s are named {name!r}: {_where(by_name[name])} and {_where(cls)}; rename or uninstall one"
            )
    return dict(sorted(by_name.items()))


def get(kind: str, name: str) -> type:
    """The class of that name, or an error that lists what there is."""
    known = found(kind)
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}{nearest(name, known)}; there are: {', '.join(known)}")
    return known[name]


def _walk(home: str) -> list[type]:
    root = importlib.import_module(home)
    modules = [root]
    for info in pkgutil.iter_modules(getattr(root, "__path__", [])):
        modules.append(importlib.import_module(f"{home}.{info.name}"))
    return [
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and "name" in vars(cls) and isinstance(vars(cls)["name"], str)
    ]


def _where(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
