"""Warm-ups that several runs share: trained by the first, taken over to the bit by the others.

What a trained net depends on is in its key: the history, the net's form and first weights, the order of batches, the
optimiser, and whose loss it is. Parts share a net if they are of one class and have the same options, nets and counts.
Methods that leave the loss of warm-up as it is share the served net, whatever else they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tracecvr.authoring.method import Method
from tracecvr.authoring.part import Part
from tracecvr.base import registry
from tracecvr.base.devices import digest, on_processor, under
from tracecvr.base.files import locked, write_atomically
from tracecvr.learn.warm_up import Fit, Fitted


class WarmUpCache:
    """A directory of trained nets, for runs on one history. `seconds` is what others spent on the nets taken over."""

    def __init__(self, folder: Path, history: dict[str, Any]) -> None:
        self.folder, self.history, self.seconds = folder, history, 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, fit: Fit, facts: dict[str, Any], train: Callable[[Fit], Fitted]) -> Fitted:
        """Train a net, or make it what another run's training made of it; returns what the training came to."""
        try:
            key = self._key(fit, facts)
        except TypeError:  # the part has something that cannot be compared between runs
            return train(fit)
        path = self.folder / f"{key}.safetensors"
        with locked(self.folder, name=f"{key}.lock", patience=math.inf):  # a second run would do the same work
            return self._take_over(fit, path) or self._train(fit, path, train)

    def _key(self, fit: Fit, facts: dict[str, Any]) -> str:
        known = {
            "history": self.history,
            "facts": facts,
            "net": repr(fit.net),
            "start": digest(fit.net.state_dict()),
            "loss": None if _has_usual_loss(fit) else _describe(fit.part, fit.name),
            "torch": [torch.__version__, torch.get_num_threads()],
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=_hash_tensor).encode()).hexdigest()[:32]

    def _train(self, fit: Fit, path: Path, train: Callable[[Fit], Fitted]) -> Fitted:
        """Train a net and keep it, with what its training has counted."""
        before, clock = dict(fit.part.counts), time.monotonic()
        fitted = train(fit)
        counts = {k: v for k, v in fit.part.counts.items() if k not in before or not torch.equal(v, before[k])}
        state = {f"net.{k}": v for k, v in fit.net.state_dict().items()}
        state |= {f"count.{k}": v for k, v in counts.items()}
        state |= {f"moment.{k}": v for k, v in fitted.moments.items()}
        facts = {"seconds": f"{time.monotonic() - clock:.6f}", "passes": str(fitted.passes)}
        write_atomically(path, lambda draft: save_file(on_processor(state), draft, facts))
        return fitted

    def _take_over(self, fit: Fit, path: Path) -> Fitted | None:
        """Make a net what is kept of it, and return what its training came to; None if nothing is kept."""
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as kept:
                tensors = {key: torch.as_tensor(kept.get_tensor(key)) for key in kept.keys()}  # noqa: SIM118  (no dictionary)
                seconds, passes = float(kept.metadata()["seconds"]), int(kept.metadata()["passes"])
        except (SafetensorError, OSError, KeyError):
            return None  # damaged: made again
        fit.net.load_state_dict(under(tensors, "net."))
        fit.net.eval()
        fit.part.counts |= under(tensors, "count.")
        self.seconds += seconds
        return Fitted(passes, under(tensors, "moment."))


def _has_usual_loss(fit: Fit) -> bool:
    """Whether a net is trained by the loss of `Method`, which reads nothing but the net."""
    cls = type(fit.part)
    usual = all(getattr(cls, name, None) is getattr(Method, name) for name in ("warm_loss", "logit", "call"))
    return fit.name == "main" and usual


def _describe(part: Part, trained: str) -> dict[str, Any]:
    """All that a loss may read of its method or plugin while it trains one net: class, attributes, other nets, counts.
    The schema is the history's."""
    cls = type(part)
    return {
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "file": registry.file_hash(part),
        "attributes": {k: v for k, v in vars(part).items() if k not in ("nets", "counts", "caller", "schema")},
        "nets": {name: digest(net.state_dict()) for name, net in part.nets.items() if name != trained},
        "counts": digest(part.counts),
    }


def _hash_tensor(value: Any) -> str:
    if not isinstance(value, Tensor):
        raise TypeError
    return digest({"": value})
