"""Warm-ups that several runs share: trained by the first, taken over to the bit by the others.

What a trained net depends on is in its key: the history, the net's form and first weights, the order of batches, the
optimiser, the code of the loss, and the values of whatever the loss read while the net was trained. The first run
records what that is (`recorded_reads`), in a file beside the net; the others look up what they would read.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tracecvr.base import registry
from tracecvr.base.files import locked, read_json, write_atomically, write_json
from tracecvr.learn.named_tensors import digest, under
from tracecvr.learn.recorded_reads import UnknownValueError, definitions, facts_of, recorded
from tracecvr.learn.warm_up import Fit, Fitted


class WarmUpCache:
    """A directory of trained nets, for runs on one history. `seconds` is what others spent on the nets taken over."""

    def __init__(self, folder: Path, history: dict[str, Any]) -> None:
        self.folder, self.history, self.seconds = folder, history, 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, fit: Fit, facts: dict[str, Any], train: Callable[[Fit], Fitted]) -> Fitted:
        """Train a net, or make it what another run's training made of it; returns what the training came to."""
        code = self._code(fit, facts)
        with locked(self.folder, name=f"{code}.lock", patience=math.inf):  # a second run would do the same work
            if not (paths := self._paths(fit, code)):  # the first training with this loss: what it reads is unknown
                return self._trained(fit, code, train)
        with locked(self.folder, name=f"{paths[0].stem}.lock", patience=math.inf):
            known = (self._taken(fit, path) for path in self._paths(fit, code))
            return next(filter(None, known), None) or self._trained(fit, code, train)

    def _code(self, fit: Fit, facts: dict[str, Any]) -> str:
        """The key of all that is known before training."""
        return _key(
            {
                "history": self.history,
                "facts": facts,
                "net": repr(fit.net),
                "start": digest(fit.net.state_dict()),
                "file": registry.file_hash(fit.part),
                "loss": definitions(fit.part, "warm_loss" if fit.name == "main" else "helper_loss"),
                "torch": [torch.__version__, torch.get_num_threads()],
            }
        )

    def _paths(self, fit: Fit, code: str) -> list[Path]:
        """Where nets of such code would be that read the same values: one for each recorded set of names."""
        reads = [read_json(path) for path in sorted(self.folder.glob(f"{code}.*.json"))]
        paths = [self._path(fit, code, names, fit.part.counts) for names in reads]
        return [path for path in paths if path is not None]

    def _path(self, fit: Fit, code: str, names: list[str], counts: dict[str, Tensor]) -> Path | None:
        """Where a net is whose training read what has these names; None if that cannot be shared."""
        try:
            read = facts_of(fit.part, names, fit.name, counts)
        except (AttributeError, UnknownValueError):
            return None
        return self.folder / f"{_key({'code': code, 'read': read})}.safetensors"

    def _trained(self, fit: Fit, code: str, train: Callable[[Fit], Fitted]) -> Fitted:
        before, clock = dict(fit.part.counts), time.monotonic()
        loss, names = recorded(fit.part, fit.loss)
        fitted = train(replace(fit, loss=loss))
        self._keep(fit, code, names, before, fitted, time.monotonic() - clock)
        return fitted

    def _taken(self, fit: Fit, path: Path) -> Fitted | None:
        """Make a net what is kept of it, and return what its training came to; None if nothing is kept."""
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as kept:
                tensors = {key: kept.get_tensor(key) for key in kept.keys()}  # noqa: SIM118  (it is no dictionary)
                seconds, passes = float(kept.metadata()["seconds"]), int(kept.metadata()["passes"])
        except (SafetensorError, OSError, KeyError):
            return None  # damaged: made again
        fit.net.load_state_dict(under(tensors, "net."))
        fit.net.eval()
        fit.part.counts |= under(tensors, "count.")
        self.seconds += seconds
        return Fitted(passes, under(tensors, "moment."))

    def _keep(
        self, fit: Fit, code: str, names: set[str], before: dict[str, Tensor], fitted: Fitted, seconds: float
    ) -> None:
        path = self._path(fit, code, sorted(names), before)
        counts = fit.part.counts
        changed = {k: v for k, v in counts.items() if k not in before or not torch.equal(v, before[k])}
        if path is None or (changed and "counts" not in names):
            return  # what others get would depend on who was first
        state = {f"net.{k}": v.contiguous() for k, v in fit.net.state_dict().items()}
        state |= {f"count.{k}": v.contiguous() for k, v in changed.items()}
        state |= {f"moment.{k}": v.contiguous() for k, v in fitted.moments.items()}
        facts = {"seconds": f"{seconds:.6f}", "passes": str(fitted.passes)}
        write_atomically(path, lambda draft: save_file(state, draft, facts))
        write_json(self.folder / f"{code}.{_key(sorted(names))}.json", sorted(names))


def _key(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
