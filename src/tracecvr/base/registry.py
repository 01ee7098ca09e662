"""Finds methods, plugins, datasets and backbones: the package's own files and third parties' entry points.

A kind of thing has a package of one-subject files (`tracecvr.methods`, ...) and an entry-point group. Whatever
class there has a `name` is found; nothing is registered by hand.

A class may also come from a Python file, and then the file is executed. So a file is named by the command line of this
very call or not at all: `Given` marks such names. A name that was read from a store, a run or a suite is plain text.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from tracecvr.base.config import nearest
from tracecvr.base.errors import UserError

_GROUPS = {
    "method": "tracecvr.methods",
    "plugin": "tracecvr.plugins",
    "dataset": "tracecvr.datasets",
    "backbone": "tracecvr.nets",
}
"""Entry-point groups by kind."""


class Given(str):
    """A name as the command line of this call gives it: only such a name may be that of a file. It can be pickled, for
    worker processes; written as JSON and read again, it is plain text."""

    __slots__ = ()


_REGISTERED: dict[str, dict[str, type]] = {kind: {} for kind in _GROUPS}
"""Classes that this process knows beside those that are installed."""

_HASH = "__tracecvr_sha256__"
"""The attribute of a module that was loaded from a file."""


@cache
def available(kind: str) -> dict[str, type]:
    """Every class of a kind ("method", "plugin", "dataset", "backbone") by name, sorted. Two of one name
    are an error. A package of your own adds one by an entry point in `pyproject.toml`:

        [project.entry-points."tracecvr.methods"]
        mine = "my_package.mine:Mine"

    >>> list(available("plugin"))
    ['completer']
    """
    classes = _walk(_GROUPS[kind]) + [point.load() for point in entry_points(group=_GROUPS[kind])]
    by_name: dict[str, type] = {}
    for cls in classes:
        name: str = cls.name
        if by_name.setdefault(name, cls) is not cls:
            raise UserError(
                f"two {kind}s are named {name!r}: {_where(by_name[name])} and {_where(cls)}; rename or uninstall one"
            )
    return dict(sorted((by_name | _REGISTERED[kind]).items()))


def register(kind: str, cls: type) -> None:
    """Make a class known in this process. One of the same name that was registered before is replaced, as a cell of a
    notebook that runs again does; one that is installed is not."""
    name: str = cls.name  # type: ignore[attr-defined]
    if name not in _REGISTERED[kind] and name in available(kind):
        raise UserError(f"a {kind} named {name!r} is installed: {_where(available(kind)[name])}; choose another name")
    _REGISTERED[kind][name] = cls
    available.cache_clear()


def registered_names(kind: str) -> tuple[str, ...]:
    """Names that only this process knows."""
    return tuple(_REGISTERED[kind])


def unregister(kind: str, name: str) -> None:
    _REGISTERED[kind].pop(name, None)
    available.cache_clear()


def get(kind: str, name: str) -> type:
    """The class of that name, or of the Python file that is `Given`; else an error that lists what there is."""
    if name.endswith(".py"):
        if not isinstance(name, Given):
            raise UserError(
                f"{name}: a {kind} is loaded from a file only if the command line names the file; "
                f"{as_entry_point(kind)}"
            )
        return _in_file(kind, Path(name))
    known = available(kind)
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}{nearest(name, known)}; there are: {', '.join(known)}")
    return known[name]


def as_entry_point(kind: str) -> str:
    """What to do with a file whose class is to be known by its name."""
    return (
        f"make it an entry point of the group {_GROUPS[kind]!r} in a package of yours, install that, and use its name"
    )


def file_hash(owner: object) -> str | None:
    """The SHA-256 of the file that an object's class was loaded from; None of a class that is installed."""
    available: str | None = getattr(sys.modules.get(type(owner).__module__), _HASH, None)
    return available


def _walk(home: str) -> list[type]:
    root = importlib.import_module(home)
    names = [f"{home}.{info.name}" for info in pkgutil.iter_modules(getattr(root, "__path__", []))]
    return [cls for name in (home, *names) for cls in _classes_with_names(importlib.import_module(name))]


def _classes_with_names(module: ModuleType) -> list[type]:
    return [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and "name" in vars(cls) and isinstance(vars(cls)["name"], str)
    ]


@cache
def _in_file(kind: str, path: Path) -> type:
    """The one named class of a file that is not part of any package."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; give a {kind}'s name or the file that defines it")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module  # dataclasses look their module up
    code = path.read_bytes()
    setattr(module, _HASH, hashlib.sha256(code).hexdigest())
    try:
        exec(compile(code, str(path), "exec"), vars(module))
    except Exception as error:
        raise UserError(f"{path}: could not be loaded: {type(error).__name__}: {error}") from error
    classes = _classes_with_names(module)
    if len(classes) != 1:
        raise UserError(f"{path}: expected one class with a `name`, found {len(classes)}")
    return classes[0]


def _where(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
