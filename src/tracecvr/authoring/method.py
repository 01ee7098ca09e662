"""Method and Plugin: what the author of a method writes, and what a method can use.

A method says *when* a click is shown (`schedule`), *which helper nets* are trained on history (`helpers`,
`helper_loss`) and *the loss*. Its dataclass fields are its options. The engine does everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.part import Part
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR, Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.nets.blend import is_regression_alone
from tracecvr.stream.reveal import LabelledReveals, Reveals, Schedule


@dataclass
class Method(Part):
    """Base of all methods.

    You write `name`, `schedule` and `loss`; with helper nets also `helpers` and `helper_loss`. Everything else has a
    default:

    - `warm_loss`, `base_rates`: how the served net is trained on history.
    - `heads`, `build`: what net is served. `log_odds`: what is served of its outputs.
    - `posterior`, `uncertain`: what plugins ask about an open click.
    - `observe`, `record`, `condense`: counts, outputs logged at serving, events left out.
    - `fixed_point`: the rate that it converges to, which is checked.

    In a loss, use `self.logit(b.x)` for the served net and `self.call(NAME, b.x)` for any net. Put everything that
    must not be trained through behind `self.stop_gradient(...)`. Options of the log are in `self.schema`.

    Examples
    --------
    A method that waits a day and then takes the label for final:

    >>> from dataclasses import dataclass
    >>> from tracecvr.authoring.losses import cross_entropy
    >>> from tracecvr.stream.reveal import After
    >>> @dataclass
    ... class NextDay(Method):
    ...     name = "next_day"
    ...     def schedule(self):
    ...         return (After(86400),)
    ...     def loss(self, b):
    ...         return cross_entropy(self.logit(b.x), b.label).mean()
    >>> NextDay(learning_rate=0.01).schedule()
    (After(seconds=86400, seen=None),)
    """

    contains: ClassVar[tuple[str, ...]] = ()
    """Plugins that are part of the method, so that they cannot be added."""
    privileged: ClassVar[bool] = False
    """Whether reveals carry the final label before it is known. Such a method must fail the no-future check."""
    role: ClassVar[str] = "method"
    """What it is in a comparison: a `method`, or the `lower`, `zero` or `upper` reference."""

    backbone: str = option(
        "blend", "net of the served model, by name: blend, wide_deep, mlp, dcn_v2 or one of an entry point"
    )
    hidden: tuple[int, ...] = option((256, 256, 128), "hidden layer sizes", low=1)
    embedding_dim: int | None = option(None, "embedding size; the dataset's by default", low=1)
    learning_rate: float = option(1e-3, "Adam's step size", above=0)
    weight_decay: float = option(1e-6, "L2 on all parameters, inside Adam", low=0)
    batch_size: int = option(4096, "events per optimiser step", low=2)
    warm_epochs: int | None = option(
        None, "passes over the warm-up part; by default 1 if it is large, else as many as held-back clicks want", low=0
    )
    warm_batch_size: int | None = option(
        None, "events per step of warm-up; by default batch_size, or less if the warm-up part is small", low=2
    )
    passes: int = option(1, "passes over the events of an interval", low=1)

    horizons: tuple[Seconds, ...] | None = option(None, "ends of the observation windows; the dataset's by default")

    # What an author writes.

    def schedule(self) -> Schedule:
        """When a click is shown to the learner: a tuple of triggers."""
        raise UserError(f"method {self.name!r} does not define schedule()")

    def loss(self, b: Reveals) -> Tensor:
        """The loss of a batch of events. `b.trigger` is the position in the schedule of each event's trigger."""
        raise UserError(f"method {self.name!r} does not define loss()")

    # What an author may write.

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        """The loss of the served net on warm-up history; cross-entropy with the label by default."""
        return cross_entropy(self.logit(b.x), b.truth).mean()

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """The first output of the served net starts at the conversion rate of history."""
        return ((b.x,), b.truth[:, None]) if name == "main" else super().base_rates(name, b)

    def heads(self) -> int:
        """How many outputs the served net has."""
        return 1

    def build(self) -> nn.Module:
        """The served net: a backbone with one output per head."""
        return self._backbone(registry.get("backbone", self.backbone), self.heads())

    def log_odds(self, x: Tensor) -> Tensor:
        """What is served for a click, differentiable; the first output of the served net by default."""
        return self.logit(x)

    def posterior(self, b: Reveals) -> Tensor:
        """Log-odds of conversion given what is known of the click so far; the served log-odds by default."""
        return self.log_odds(b.x)

    def uncertain(self, b: Reveals) -> Tensor:
        """Events whose label the method does not treat as known: where the completer guides it."""
        return b.open

    def condense(self, events: Reveals) -> Reveals:
        """The events of an interval that are learnt from: all by default. A method may drop or merge some."""
        return events

    def record(self, x: Tensor) -> Tensor:
        """Outputs (B, J) to be logged when a click is served. Later events of the click have them as `b.logged`."""
        raise UserError(f"method {self.name!r} records nothing")

    def plugins(self) -> tuple[Plugin, ...]:
        """Plugins that are part of the method."""
        return ()

    def fixed_point(self, p: float, delayed: float) -> float | None:
        """The rate that training on a stationary stream converges to. `p` is the conversion rate and `delayed` the
        share of clicks that convert after the window. None if the rate depends on more than these two."""
        return p

    def check_options(self) -> None:
        if self.horizons is not None:
            replace(self.schema, horizons=self.horizons)  # refuses horizons that are not in order, or end after d_max

    def resolve_options(self) -> dict[str, Any]:
        dim = self.embedding_dim or self.schema.embedding_dim
        return super().resolve_options() | {"horizons": list(self.ends), "embedding_dim": dim}

    # What an author uses.

    def logit(self, x: Tensor) -> Tensor:
        """The served net's first output."""
        return self.call("main", x)[:, 0]

    def of_other_outputs(
        self, function: Callable[..., tuple[Tensor, ...]], b: Reveals, *given: int
    ) -> tuple[Tensor, ...]:
        """What a function makes of events and of the served net's outputs after the first: `function(b, *given)`.

        A blend asks for the loss of a batch twice. Only the first time teaches these outputs; the second time, what was
        computed from them the first time is given as constants.
        """
        if not is_regression_alone(self.nets["main"]):
            values = function(b, *given)
            b.computed[function, given] = tuple(value.detach() for value in values)
            return values
        with torch.no_grad():
            return b.once(function, *given)

    def net(self, outputs: int = 1, hidden: tuple[int, ...] | None = None, dim: int | None = None) -> nn.Module:
        """A backbone for `helpers`, or for parts of a net in `build`; of the method's sizes unless others are given."""
        kind = registry.get("backbone", self.backbone)
        return self._backbone(getattr(kind, "helper", kind), outputs, hidden, dim)

    def _backbone(
        self, kind: type, outputs: int, hidden: tuple[int, ...] | None = None, dim: int | None = None
    ) -> nn.Module:
        dim = dim or self.embedding_dim or self.schema.embedding_dim
        net: nn.Module = kind(self.schema, outputs, hidden or self.hidden, dim)
        return net

    @property
    def ends(self) -> tuple[int, ...]:
        """The horizons, in seconds: the option's, or the dataset's."""
        return self.schema.horizons if self.horizons is None else self.horizons

    def _nets(self) -> dict[str, Callable[[], nn.Module]]:
        return {"main": self.build} | super()._nets()


@dataclass
class Windowed(Method):
    """A method with one observation window, `self.wait` seconds long."""

    default_window: ClassVar[int] = HOUR
    window: Seconds | None = option(None, "observation window; by default the dataset's, else the method's", low=0)

    @property
    def wait(self) -> int:
        """The window, in seconds: the option's, the dataset's, or the method's default."""
        if self.window is not None:
            return self.window
        return self.default_window if self.schema.window is None else self.schema.window

    def resolve_options(self) -> dict[str, Any]:
        return super().resolve_options() | {"window": self.wait}


@dataclass
class MultiWindow(Method):
    """A method with several observation windows, `self.spans`. The last one ends with d_max."""

    default_windows: ClassVar[tuple[int, ...]] = (DAY, 7 * DAY, 14 * DAY, 21 * DAY, 30 * DAY)
    windows: tuple[Seconds, ...] | None = option(
        None, "observation windows; by default the dataset's, else 1, 7, 14, 21 and 30 days, scaled to d_max", low=1
    )

    @property
    def spans(self) -> tuple[int, ...]:
        """The windows, in seconds: the option's, or the default ones scaled to d_max."""
        if self.windows is not None:
            return self.windows
        default = self.schema.windows or self.default_windows
        return tuple(round(window * self.schema.d_max / default[-1]) for window in default)

    def resolve_options(self) -> dict[str, Any]:
        return super().resolve_options() | {"windows": list(self.spans)}

    def check_options(self) -> None:
        super().check_options()
        given, end = self.windows, self.schema.d_max
        if given is not None and (list(given) != sorted(set(given)) or given[-1:] != (end,)):
            raise UserError(f"windows {given}: give distinct durations in rising order, the last d_max = {end} s")


@dataclass
class Plugin(Part):
    """Base of plugins: additions to any method.

    You write `name` and `loss`; with helper nets also `helpers` and `helper_loss`. A plugin sees the method through
    `posterior`, `log_odds` and `uncertain` only.

    Examples
    --------
    A plugin that keeps log-odds small:

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Small(Plugin):
    ...     name = "small"
    ...     def loss(self, method, b):
    ...         return method.log_odds(b.x).square().mean()
    >>> Small(weight=0.1).weight
    0.1
    """

    weight: float = option(1.0, "factor of the plugin's loss", low=0)

    def loss(self, method: Method, b: Reveals) -> Tensor:
        """Added, times `weight`, to the method's loss."""
        raise UserError(f"plugin {self.name!r} does not define loss()")

    def attach(self, method: Method) -> None:
        """Take from the method what the plugin's nets depend on. Called before the nets are built."""
