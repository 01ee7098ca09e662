"""What methods and plugins share: options, nets by name, helper nets, and counts that are saved with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tracecvr.authoring.losses import CERTAIN
from tracecvr.base.config import validate, values
from tracecvr.base.errors import UserError
from tracecvr.base.seeds import derive
from tracecvr.data.table import Schema
from tracecvr.stream.reveal import LabelledReveals, Reveals

Net = str | Callable[..., Tensor]
"""A net by its name, or any function of tensors."""

Caller = Callable[[Net, tuple[Tensor, ...]], Tensor]
"""Calls a net, or a function, with inputs."""


@dataclass(frozen=True)
class Helper:
    """A net that is trained on warm-up history and frozen while the stream is learnt: no gradient reaches it.

    Parameters
    ----------
    net
        Builds the net, for instance `lambda: self.net(outputs=2)`.
    epochs
        Passes over history. With None, `usual` passes over a large log; over a small one, as many as are best for
        clicks that are held back.
    refresh
        Seconds. This often the net is trained again on the latest clicks, as they are known by then: on as many days
        of them as warm-up had. Never by default.
    usual
        Passes over a large log.
    """

    net: Callable[[], nn.Module]
    epochs: int | None = None
    refresh: int | None = None
    usual: int = 1


@dataclass
class Part:
    """Base of methods and plugins.

    A subclass is a dataclass. Each field that is declared with `option` is a setting: `--set`, its checks and the docs
    come from it. `counts` is a dictionary of tensors for whatever is counted; it is saved in checkpoints.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """What it is called in tables and figures; its name, if a class gives none."""
    reference: ClassVar[str] = ""
    """Who published it, where and when."""
    status: ClassVar[str] = "ours"
    """What the implementation rests on: paper, code, reconstructed, ours."""
    serves: ClassVar[str] = "the net's rate"
    """What is served, in words."""

    rates: ClassVar[int | None] = None
    """How many of the first outputs of the served net are rates, whose level is fitted and followed; all by default."""

    schema: Schema = field(init=False, repr=False, compare=False)
    nets: nn.ModuleDict = field(init=False, repr=False, compare=False)
    counts: dict[str, Tensor] = field(init=False, repr=False, compare=False)
    caller: Caller = field(init=False, repr=False, compare=False)

    # What an author may write.

    def helpers(self) -> dict[str, Helper]:
        """Helper nets by name; none by default."""
        return {}

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        """The warm-up loss of one helper on a batch of history."""
        raise UserError(f"{self.name} has a helper {name!r} but no helper_loss for it")

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """What a net's outputs start at: the inputs of the net for a batch of history, and the events whose rates the
        outputs estimate, (events, outputs): 1 if it happened, 0 if not, NaN where the output estimates nothing.

        The biases of the outputs are set to the rates of mature clicks, or of all if few are mature. None, the default
        for helpers, leaves the net as it is.
        """
        return None

    def level(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor] | None:
        """What the outputs of a net predict of clicks of history, and their outcomes, both as log-odds: (n, J).
        When warm-up ends, the biases are shifted so that the two have the same mean. NaN: not known, or no rate.

        By default, the events of `base_rates` of mature clicks, or None where there are no such rates.
        """
        mature = b.take(b.mature.nonzero()[:, 0])
        if not len(mature) or (rates := self.base_rates(name, mature)) is None:
            return None
        events = rates[1].flatten(1)
        logits = self.call(name, *rates[0]).reshape(len(mature), -1).repeat(len(events) // len(mature), 1)
        first = slice(0, events.shape[1] if self.rates is None else self.rates)
        return logits[:, first], CERTAIN * (2 * events[:, first] - 1)

    def observe(self, b: Reveals) -> None:
        """Count something in `self.counts`. Called with all of history before warm-up, then with each batch that is
        learnt from."""

    def after_warm_up(self) -> None:
        """Make nets that start from trained ones. Called when warm-up ends, and before a checkpoint is loaded."""

    def check_options(self) -> None:
        """Raise a `UserError` if options do not fit each other or the log (`self.schema`)."""

    def resolve_options(self) -> dict[str, Any]:
        """The options with defaults resolved, as `result.json` has them."""
        return values(self)

    # What an author uses.

    def call(self, net: Net, *inputs: Tensor) -> Tensor:
        """The outputs of one of the nets for these inputs, for instance `self.call("delay", b.x)`.

        The served net is "main". A helper gives no gradient while it is frozen. Call a net as often as you like: for
        the same inputs it is computed once per batch. A costly function of tensors can be called in the same way:
        `self.call(function, a, b)`.
        """
        return self.caller(net, inputs)

    def stop_gradient(self, value: Tensor) -> Tensor:
        """The value as a constant: for targets and weights that must not be trained through."""
        return value.detach()

    def clip(self, weight: Tensor, high: float = 10.0) -> Tensor:
        """Importance weights clipped to [0, high], without gradient. The report says how many were outside."""
        weight = self.stop_gradient(weight)
        outside = ((weight < 0) | (weight > high)).sum()
        self.counts["clipped"] = self.counts.get("clipped", torch.zeros((), dtype=torch.int64)) + outside
        return weight.clamp(0.0, high)

    # What the engine uses.

    def bind(self, schema: Schema, seed: int) -> None:
        """Build all nets for a log. The first weights of a net depend on seed and name alone, so methods share them."""
        validate(self)
        self.schema, self.counts, self.nets = schema, {}, nn.ModuleDict()
        self.caller = partial(call_directly, self.nets)
        self.check_options()
        for name, make in self._nets().items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive(seed, "net", name))
                self.nets[name] = make()

    def _nets(self) -> dict[str, Callable[[], nn.Module]]:
        return {name: helper.net for name, helper in self.helpers().items()}


def call_directly(nets: nn.ModuleDict, net: Net, inputs: tuple[Tensor, ...]) -> Tensor:
    """The outputs of one of the nets, or of a function."""
    outputs: Tensor = (nets[net] if isinstance(net, str) else net)(*inputs)
    return outputs
