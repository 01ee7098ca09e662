"""Warm-up: nets of a method and its plugins are trained on history, once before the stream; helpers again if due.

A large log is read once, in batches as configured. A small one would then give a net a handful of steps: it is read in
smaller batches and several times. How many times is decided on its last clicks, which are held back for that, and then
learnt like the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tracecvr.authoring.method import Method
from tracecvr.authoring.part import Part
from tracecvr.base.progress import Progress, no_progress
from tracecvr.base.seeds import generator
from tracecvr.learn.level import StartingRates, fit_level
from tracecvr.learn.net_calls import BLOCK
from tracecvr.learn.optimisers import REGRESSION, make_optimisers, take_step
from tracecvr.learn.stream_learning import StreamLearning, moments
from tracecvr.nets.backbones import freeze, thaw
from tracecvr.nets.blend import loss_of_each
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import History

LARGE = 300
"""Steps in one pass, at the configured batch size, from which on a log is large."""

HELD_BACK = 0.15
"""Share of a small log, the last clicks of it, on which the number of passes is decided."""

SPREAD = 0.1
"""Factor of the weights of outputs before a small log is learnt. The random function of ids that an untrained net is
would take more clicks than there are to unlearn (20,000 synthetic clicks, Pretrain: NLL .484 without it, .469 with it).
"""

_SMALLEST, _STEPS, _MOST_PASSES = 16, 100, 20

_RECORD = "warm_up."
"""Before a net's name: where `counts` has the passes and the batch size of its warm-up."""


@dataclass(frozen=True)
class Fitted:
    """The result of training a net: the number of passes, and what the stream's optimisers start from."""

    passes: int
    moments: dict[str, Tensor]


@dataclass(frozen=True)
class Fit:
    """A net to be trained on history. Without `epochs`, `usual` is for large histories."""

    title: str
    part: Part
    name: str
    loss: Callable[[LabelledReveals], Tensor]
    epochs: int | None
    usual: int = 1

    @property
    def net(self) -> nn.Module:
        return self.part.nets[self.name]


Share = Callable[[Fit, dict[str, Any], Callable[[Fit], Fitted]], Fitted]
"""Called with a net to be trained, what its training depends on beside that, and the training."""


@dataclass(frozen=True)
class WarmUp:
    """Trains nets on history. `forget` drops remembered outputs of nets, after their weights have changed."""

    method: Method
    parts: dict[str, Part]
    seed: int
    stream: StreamLearning
    forget: Callable[[], None]

    def run(self, history: History, progress: Progress, share: Share) -> dict[str, Tensor]:
        """Train the served net, then each helper, which is frozen; returns the moments that the stream starts with."""
        self.look_through(history)
        outcomes: list[tuple[Fit, Fitted]] = []
        for fit in self._fits(history):
            self._optimisers(fit.net)  # the kind of gradient that its tables give is part of a net's form
            train = partial(self._train, history=history, progress=progress)
            outcomes.append((fit, share(fit, self._facts(fit, history), train)))
            self._fit_level(fit, history)
            if not self._is_served(fit):
                freeze(fit.net)
        for fit, fitted in outcomes:  # not before: what others share depends on counts
            fit.part.counts[f"{_RECORD}{fit.name}"] = torch.tensor([fitted.passes, self._batch_size(history)])
        for part in self.parts.values():
            part.after_warm_up()
        return next(fitted.moments for fit, fitted in outcomes if self._is_served(fit))

    def repeat(self, part: Part, name: str, history: History, start: int) -> None:
        """Train a frozen helper again, in one pass over the history of an interval that starts at `start`."""
        fit = Fit(f"{name} at {start}", part, name, partial(part.helper_loss, name), epochs=1)
        thaw(fit.net)
        self._train(fit, history)
        self._fit_level(fit, history)
        freeze(fit.net)

    def _fits(self, history: History) -> Iterator[Fit]:
        """What is trained, in order. If warm-up is large, or its passes are given, helpers have their usual epochs."""
        fixed = is_large(len(history), self.method.batch_size) or self.method.warm_epochs is not None
        yield Fit(
            "model", self.method, "main", self.method.warm_loss, self.method.warm_epochs or (1 if fixed else None)
        )
        for part in self.parts.values():
            for name, helper in part.helpers().items():
                epochs = helper.usual if helper.epochs is None and fixed else helper.epochs
                yield Fit(name, part, name, partial(part.helper_loss, name), epochs, helper.usual)

    def _facts(self, fit: Fit, history: History) -> dict[str, Any]:
        """What the training of a net depends on, beside the net, its loss and history."""
        return {
            "optimiser": self.stream.optimiser,
            "device": self.stream.device,
            "precision": self.stream.precision,
            "learning_rate": self.method.learning_rate,
            "weight_decay": self.method.weight_decay,
            "title": fit.title,
            "epochs": fit.epochs,
            "usual": fit.usual,
            "batch_size": self._batch_size(history),
            "seed": self.seed,
        }

    def look_through(self, history: History) -> None:
        """Let all parts observe history once, and start the outputs of nets at the rates that it has."""
        rates = StartingRates()
        for b in history.batches(BLOCK, None):
            for owner, part in self.parts.items():
                part.observe(b)
                rates.add(owner, part, b)
        rates.start(1.0 if is_large(len(history), self.method.batch_size) else SPREAD)

    def _fit_level(self, fit: Fit, history: History) -> None:
        """Of a small history. A large one has steps enough, and its mature clicks are old (criteo_search, mean
        prediction of warm-up clicks over their final rate: .98 without a fit, 1.05 with one)."""
        if not is_large(len(history), self.method.batch_size):
            self.forget()
            fit_level(fit.part, fit.name, history)
            self.forget()

    def _train(self, fit: Fit, history: History, progress: Progress = no_progress) -> Fitted:
        """Train a net on history. The number of passes is chosen on held-back clicks unless it is set."""
        epochs = self._best_passes(fit, history) if fit.epochs is None else fit.epochs
        optimisers, total, size = self._optimisers(fit.net), epochs * len(history), self._batch_size(history)
        for epoch in range(epochs):
            done = epoch * len(history)
            for learnt in self._pass(fit, epoch, optimisers.values(), history, size):
                progress(f"warm-up: {fit.title}", done + learnt, total)
        fit.net.eval()
        # A regression goes on in the stream with the step sizes that it has reached: they are what it knows.
        carried = {name: one for name, one in optimisers.items() if name == REGRESSION and self._is_served(fit)}
        return Fitted(epochs, moments(carried, fit.net))

    def _pass(
        self, fit: Fit, epoch: int, optimisers: Collection[torch.optim.Optimizer], history: History, size: int
    ) -> Iterator[int]:
        """Learn from every click of history once, and say after each step how many are done."""
        fit.net.train()
        learnt = 0
        for b in history.batches(size, generator(self.seed, "warm up", fit.title, epoch)):
            if len(b) > 1:
                loss = loss_of_each(fit.net, len(b), partial(fit.loss, b), self.forget)
                take_step(optimisers, loss, f"{self.method.name}, warm-up of {fit.title}")
                self.forget()
            learnt += len(b)
            yield learnt

    def _best_passes(self, fit: Fit, history: History) -> int:
        """How many passes over the earlier clicks of history are best for its last ones; the net stays as it was."""
        earlier, held_back = history.split_off(HELD_BACK)
        if not len(earlier) or not len(held_back):
            return fit.usual
        start, counts = {key: value.clone() for key, value in fit.net.state_dict().items()}, dict(fit.part.counts)
        optimisers, size = self._optimisers(fit.net).values(), self._batch_size(history)

        def one_pass(epoch: int) -> None:
            for _ in self._pass(fit, epoch, optimisers, earlier, size):
                pass

        best = best_passes(one_pass, lambda: self._held_back_loss(fit, held_back), fit.usual)
        fit.net.load_state_dict(start)
        fit.part.counts = counts
        return best

    def _held_back_loss(self, fit: Fit, history: History) -> float:
        """The mean loss of clicks that are not learnt from: with the same random draws each time."""
        fit.net.eval()
        total = 0.0
        with torch.no_grad():
            for b in history.batches(BLOCK, generator(self.seed, "held back", fit.title)):
                total += fit.loss(b).item() * len(b)
                self.forget()
        return total / len(history)

    def _optimisers(self, net: nn.Module) -> dict[str, torch.optim.Optimizer]:
        method = self.method
        return make_optimisers(self.stream.optimiser, net, method.learning_rate, method.weight_decay)

    def _batch_size(self, history: History) -> int:
        """Of a pass over history."""
        return self.method.warm_batch_size or batch_that_fits(len(history), self.method.batch_size)

    def _is_served(self, fit: Fit) -> bool:
        return fit.net is self.method.nets["main"]


def is_large(clicks: int, batch_size: int) -> bool:
    """Whether one pass in batches of the configured size is enough."""
    return clicks >= LARGE * batch_size


def batch_that_fits(clicks: int, batch_size: int) -> int:
    """The largest power of two that gives a pass 100 steps, but at least 16 and at most the configured size.

    >>> [batch_that_fits(clicks, 4096) for clicks in (1_000, 30_000, 200_000, 2_000_000)]
    [16, 256, 1024, 4096]
    """
    if is_large(clicks, batch_size):
        return batch_size
    return min(batch_size, max(_SMALLEST, 1 << max(clicks // _STEPS, 1).bit_length() - 1))


def best_passes(one_pass: Callable[[int], None], held_back_loss: Callable[[], float], usual: int) -> int:
    """The number of passes after which another one makes the loss of the held-back clicks no lower.

    `usual` if they cannot decide: some helpers ask nothing of the newest clicks, and their loss never changes.
    """
    untrained, lowest = held_back_loss(), math.inf
    for done in range(_MOST_PASSES):
        one_pass(done)
        loss = held_back_loss()
        if loss == untrained:
            return usual
        if not loss < lowest:
            return max(done, 1)
        lowest = loss
    return _MOST_PASSES


def batch_size_of(method: Method) -> int:
    """The batch size of the served net's warm-up; as configured, before that."""
    passes_and_size = method.counts.get(f"{_RECORD}main")
    return method.batch_size if passes_and_size is None else int(passes_and_size[1])


def resolve_options(part: Part) -> dict[str, Any]:
    """The options of a part with defaults resolved; `warm_up` is how each of its nets was warmed up."""
    used = {name: part.counts[f"{_RECORD}{name}"].tolist() for name in part.nets if f"{_RECORD}{name}" in part.counts}
    known = {name: {"passes": passes, "batch_size": size} for name, (passes, size) in used.items()}
    resolved = part.resolve_options() | ({"warm_up": known} if known else {})
    if "main" in known:
        resolved |= {"warm_epochs": known["main"]["passes"], "warm_batch_size": known["main"]["batch_size"]}
    return resolved
