"""Warm-ups that several runs share: computed by the first, taken over to the bit by the others.

What a trained net depends on is in its key: the history, the net's start and form, the order of batches, the optimiser,
the code of the loss, and whatever the loss reads, which a part declares (`warm_up_depends_on`) or else is everything.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tracecvr.base.files import write_atomically
from tracecvr.families.method import Part
from tracecvr.learn.engine import Fitted

_STATE = ("schema", "nets", "counts", "_memo")


class WarmUpCache:
    """A directory of trained nets, for runs on one history. `seconds` is what others spent on the nets taken over."""

    def __init__(self, folder: Path, history: dict[str, Any]) -> None:
        self.folder, self.history, self.seconds = folder, history, 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, part: Part, name: str, facts: dict[str, Any], fit: Callable[[], Fitted]) -> Fitted:
        """Train a net of a part by `fit`, or make it what another run's `fit` made of it; returns `fit`'s answer."""
        path = self.folder / f"{self._key(part, name, facts)}.safetensors"
        with locked(path.with_suffix(".lock")):  # who comes second waits: it would do the same work
            fitted = self._taken(part, name, path)
            if fitted is None:
                before, clock = dict(part.counts), time.monotonic()
                fitted = fit()
                self._keep(part, name, path, before, fitted, time.monotonic() - clock)
            return fitted

    def _key(self, part: Part, name: str, facts: dict[str, Any]) -> str:
        net, loss = part.nets[name], "warm_loss" if name == "main" else "helper_loss"
        code = getattr(type(part), loss)
        facts_of_net = {
            "history": self.history,
            "facts": facts,
            "net": repr(net),
            "start": _digest(net.state_dict()),
            "loss": f"{code.__module__}.{code.__qualname__}",
            "reads": _everything(part) if (reads := part.warm_up_depends_on(name)) is None else reads,
            "torch": [torch.__version__, torch.get_num_threads()],
        }
        return hashlib.sha256(json.dumps(facts_of_net, sort_keys=True, default=str).encode()).hexdigest()[:32]

    def _taken(self, part: Part, name: str, path: Path) -> Fitted | None:
        """Make a net what is kept of it, and return what its training came to; None if nothing is kept."""
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as kept:
                tensors = {key: kept.get_tensor(key) for key in kept.keys()}  # noqa: SIM118  (it is no dictionary)
                seconds, passes = float(kept.metadata()["seconds"]), int(kept.metadata()["passes"])
        except (SafetensorError, OSError, KeyError):
            return None  # damaged: made again
        part.nets[name].load_state_dict(_under(tensors, "net."))
        part.nets[name].eval()
        part.counts |= _under(tensors, "count.")
        self.seconds += seconds
        return Fitted(passes, _under(tensors, "moment."))

    def _keep(
        self, part: Part, name: str, path: Path, before: dict[str, Tensor], fitted: Fitted, seconds: float
    ) -> None:
        changed = {k: v for k, v in part.counts.items() if k not in before or not torch.equal(v, before[k])}
        if changed and part.warm_up_depends_on(name) is not None:
            return  # what is counted would depend on who was first
        state = {f"net.{k}": v.contiguous() for k, v in part.nets[name].state_dict().items()}
        state |= {f"count.{k}": v.contiguous() for k, v in changed.items()}
        state |= {f"moment.{k}": v.contiguous() for k, v in fitted.moments.items()}
        facts = {"seconds": f"{seconds:.6f}", "passes": str(fitted.passes)}
        write_atomically(path, lambda draft: save_file(state, draft, facts))


def _everything(part: Part) -> dict[str, Any]:
    """All that tells a part from others: its class, its options and what else it has stored, and its counts."""
    cls = type(part)
    stored = {f.name: getattr(part, f.name, None) for f in fields(part) if f.name not in _STATE}
    return {"class": f"{cls.__module__}.{cls.__qualname__}", "counts": _digest(part.counts)} | stored


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, for one process at a time."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
