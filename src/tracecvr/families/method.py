"""Method and Plugin: what the author of a method writes, and what he inherits.

A method says *when* a click is shown (`schedule`), *which helper nets* are warmed up on history (`helpers`,
`helper_loss`) and *the loss*. Its dataclass fields are its options. The engine does everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR, Seconds, option, validated, values
from tracecvr.base.errors import UserError
from tracecvr.base.seeds import derive
from tracecvr.data.table import Schema
from tracecvr.nets import ranks
from tracecvr.stream.reveal import LabelledReveals, Reveals, Schedule

WARM = "warm_up."
"""Before a net's name: where `counts` has the passes and the batch size of its warm-up."""


@dataclass(frozen=True)
class Helper:
    """A net that is trained on warm-up history, then frozen for the stream; with `refresh`, trained again every so many
    seconds of the stream, on the last clicks (as many days of them as in warm-up) as they are known by then."""

    net: Callable[[], nn.Module]
    epochs: int | None = None
    refresh: int | None = None
    usual: int = 1
    """Passes over a large log where `epochs` is None; over a small one as many as held-back clicks want."""
    before_main: bool = False
    """Trained before the served net, because the warm-up loss of the served net uses it."""


@dataclass
class Part:
    """What methods and plugins share: nets by name, counts that are saved with them, and one forward per batch."""

    name: ClassVar[str]
    title: ClassVar[str]
    """What it is called in tables and figures; its name, if a class gives none."""
    reference: ClassVar[str] = ""
    status: ClassVar[str] = "ours"
    """What the implementation rests on: paper, code, reconstructed, ours."""
    serves: ClassVar[str] = "the net's rate"
    """What is served, in words."""
    per_click_nets: ClassVar[tuple[str, ...]] = ()
    """Nets that see features alone and stay as warm-up left them: the engine asks them once per click."""

    schema: Schema = field(init=False, repr=False, compare=False)
    nets: nn.ModuleDict = field(init=False, repr=False, compare=False)
    counts: dict[str, Tensor] = field(init=False, repr=False, compare=False)
    _memo: dict[tuple[str, bool], tuple[tuple[object, ...], Tensor]] = field(init=False, repr=False, compare=False)

    def bind(self, schema: Schema, seed: int) -> None:
        """Build every net for this schema; a net's start depends on seed and name alone, so methods share theirs."""
        validated(self)
        self.schema, self.counts, self._memo = schema, {}, {}
        self.nets = nn.ModuleDict()
        for name, make in self._nets().items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive(seed, "net", name))
                self.nets[name] = ranks.shared(make())

    def _nets(self) -> dict[str, Callable[[], nn.Module]]:
        return {name: helper.net for name, helper in self.helpers().items()}

    def helpers(self) -> dict[str, Helper]:
        """Helper nets by name; none by default."""
        return {}

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        """The warm-up loss of one helper on a batch of history."""
        raise UserError(f"{self.name} has a helper {name!r} but no helper_loss for it")

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """Where a net's outputs start: its inputs for a batch of history, and 0 or 1 for each event whose rate an
        output estimates, (events, outputs), NaN where it estimates nothing. The biases of the outputs are set to the
        rates of all history. None, the default for helpers, leaves the net as it is."""
        return None

    def warm_up_depends_on(self, name: str) -> dict[str, Any] | None:
        """What the warm-up loss of a net reads beside the net and history; None, the default, is everything. Where less
        is declared, runs share warm-ups that differ in nothing else."""
        return None

    def inherits(self, cls: type[Part], *names: str) -> bool:
        """Whether these functions are that class's own: a declaration holds for the code that it was made for."""
        return all(getattr(type(self), name) is getattr(cls, name) for name in names)

    def observe(self, b: Reveals) -> None:
        """Keep counts (in `self.counts`) of what passes: history once before warm-up, then each training batch."""

    def resolved_options(self) -> dict[str, Any]:
        """The options, with defaults resolved; `warm_up` is how each net was warmed up."""
        used = {name: self.counts[f"{WARM}{name}"].tolist() for name in self.nets if f"{WARM}{name}" in self.counts}
        known = {name: {"passes": passes, "batch_size": size} for name, (passes, size) in used.items()}
        return values(self) | ({"warm_up": known} if known else {})

    def report(self) -> dict[str, Any]:
        """What a reader of the results may want to see of this part, ready for JSON; nothing by default."""
        return {}

    def after_warm_up(self) -> None:
        """Make what starts from trained nets: when warm-up ends, and before a state is loaded, which then fills it."""

    def apply(self, name: str, *inputs: Tensor) -> Tensor:
        """A net's outputs, once per batch: a second forward would count the batch twice in its statistics."""
        key = name, torch.is_grad_enabled()
        if key not in self._memo or any(a is not b for a, b in zip(self._memo[key][0], inputs, strict=True)):
            self._memo[key] = inputs, self.nets[name](*inputs)
        return self._memo[key][1]

    def frozen(self, name: str, *inputs: Tensor) -> Tensor:
        """A helper's outputs, without gradient."""
        with torch.no_grad():
            return self.apply(name, *inputs)

    def memoised(self, name: str, b: Reveals, compute: Callable[[], Tensor]) -> Tensor:
        """What is computed of a batch, once per batch however many ask."""
        key = name, torch.is_grad_enabled()
        if key not in self._memo or self._memo[key][0] != (b,):  # reveals are equal only to themselves
            self._memo[key] = (b,), compute()
        return self._memo[key][1]

    def per_click(self, name: str, b: Reveals) -> Tensor:
        """What one of the `per_click_nets` nets says of each event's click, without gradient."""
        known = b.answers.get(f"{self.name}.{name}")
        return self.frozen(name, b.x) if known is None else known

    def forget(self) -> None:
        """Drop remembered outputs, after weights or mode have changed."""
        self._memo.clear()

    def clip(self, weight: Tensor, high: float = 10.0) -> Tensor:
        """Importance weights kept inside [0, high], without gradient; how many were not is counted and reported."""
        weight = self.stop_gradient(weight)
        outside = ((weight < 0) | (weight > high)).sum()
        self.counts["clipped"] = self.counts.get("clipped", torch.zeros((), dtype=torch.int64)) + outside
        return weight.clamp(0.0, high)

    def stop_gradient(self, value: Tensor) -> Tensor:
        """Stop-gradient: a target or weight that must not be trained through."""
        return value.detach()


@dataclass
class Method(Part):
    """Base of all methods. Subclasses give `name`, `schedule` and `loss`, and override the rest only if needed."""

    contains: ClassVar[tuple[str, ...]] = ()
    """Plugins that are part of the method, so that they cannot be added."""

    privileged: ClassVar[bool] = False
    """Whether reveals carry the final label before it is known. Such a method must fail the no-future check."""

    backbone: str = option("mlp", "net of the served model, by name")
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

    @property
    def ends(self) -> tuple[int, ...]:
        """The horizons in force."""
        return self.schema.horizons if self.horizons is None else self.horizons

    def resolved_options(self) -> dict[str, Any]:
        dim = self.embedding_dim or self.schema.embedding_dim
        resolved = super().resolved_options() | {"horizons": list(self.ends), "embedding_dim": dim}
        if main := resolved.get("warm_up", {}).get("main"):
            resolved |= {"warm_epochs": main["passes"], "warm_batch_size": main["batch_size"]}
        return resolved

    def bind(self, schema: Schema, seed: int) -> None:
        if self.horizons is not None:
            replace(schema, horizons=self.horizons)  # refuses horizons that are not in order, or end after d_max
        super().bind(schema, seed)

    def schedule(self) -> Schedule:
        """When a click is shown to the learner."""
        raise UserError(f"method {self.name!r} does not define schedule()")

    def condensed(self, events: Reveals) -> Reveals:
        """The events of an interval that are learnt from: all by default. A method may drop or merge some."""
        return events

    def loss(self, b: Reveals) -> Tensor:
        """The streaming loss of a batch of events."""
        raise UserError(f"method {self.name!r} does not define loss()")

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        """The loss of the served net on warm-up history: cross-entropy with the label."""
        return cross_entropy(self.logit(b.x), b.truth).mean()

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """The first output of the served net starts at the label's rate."""
        return ((b.x,), b.truth[:, None]) if name == "main" else super().base_rates(name, b)

    def warm_up_depends_on(self, name: str) -> dict[str, Any] | None:
        plain = name == "main" and self.inherits(Method, "warm_loss", "logit", "outputs", "apply")
        return {} if plain else super().warm_up_depends_on(name)

    def log_odds(self, x: Tensor) -> Tensor:
        """What is served for a click, differentiable."""
        return self.logit(x)

    def posterior(self, b: Reveals) -> Tensor:
        """Log-odds of conversion given what is known of the click so far; the served log-odds by default."""
        return self.log_odds(b.x)

    def uncertain(self, b: Reveals) -> Tensor:
        """Events whose label the method does not treat as known: where the completer guides it."""
        return b.open

    def fixed_point(self, p: float, delayed: float) -> float | None:
        """The rate that training on a stationary stream leads to, given p and pi_dp: p itself if it is unbiased, None
        if that depends on more than these two."""
        return p

    def plugins(self) -> tuple[Plugin, ...]:
        """Plugins that are part of the method."""
        return ()

    def record(self, x: Tensor) -> Tensor:
        """Outputs (B, J) to be logged when a click is served and given back, as `logged`, with its later events."""
        raise UserError(f"method {self.name!r} records nothing")

    def heads(self) -> int:
        """How many outputs the served net has."""
        return 1

    def build(self) -> nn.Module:
        """The served net: a backbone with one output per head."""
        return self.net(self.heads())

    def outputs(self, x: Tensor) -> Tensor:
        """All outputs of the served net, (B, J)."""
        return self.apply("main", x)

    def logit(self, x: Tensor) -> Tensor:
        """The served net's first output."""
        return self.outputs(x)[:, 0]

    def net(self, outputs: int = 1, hidden: tuple[int, ...] | None = None, dim: int | None = None) -> nn.Module:
        """A backbone of the chosen kind, of the method's own sizes unless told otherwise."""
        dim = dim or self.embedding_dim or self.schema.embedding_dim
        net: nn.Module = registry.get("backbone", self.backbone)(self.schema, outputs, hidden or self.hidden, dim)
        return net

    def _nets(self) -> dict[str, Callable[[], nn.Module]]:
        return {"main": self.build} | super()._nets()


@dataclass
class Windowed(Method):
    """A method with one observation window."""

    default_window: ClassVar[int] = HOUR
    window: Seconds | None = option(None, "observation window; by default the dataset's, else the method's", low=0)

    def resolved_options(self) -> dict[str, Any]:
        return super().resolved_options() | {"window": self.wait}

    @property
    def wait(self) -> int:
        """The window in force."""
        if self.window is not None:
            return self.window
        return self.default_window if self.schema.window is None else self.schema.window


@dataclass
class MultiWindow(Method):
    """A method with several observation windows, the last of which ends with d_max."""

    default_windows: ClassVar[tuple[int, ...]] = (DAY, 7 * DAY, 14 * DAY, 21 * DAY, 30 * DAY)
    windows: tuple[Seconds, ...] | None = option(
        None, "observation windows; by default the dataset's, else 1, 7, 14, 21 and 30 days, scaled to d_max", low=1
    )

    def resolved_options(self) -> dict[str, Any]:
        return super().resolved_options() | {"windows": list(self.spans)}

    @property
    def spans(self) -> tuple[int, ...]:
        """The windows in force."""
        if self.windows is not None:
            return self.windows
        default = self.schema.windows or self.default_windows
        return tuple(round(window * self.schema.d_max / default[-1]) for window in default)

    def bind(self, schema: Schema, seed: int) -> None:
        given, end = self.windows, schema.d_max
        if given is not None and (list(given) != sorted(set(given)) or given[-1:] != (end,)):
            raise UserError(f"windows {given}: give distinct durations in rising order, the last d_max = {end} s")
        super().bind(schema, seed)


@dataclass
class Plugin(Part):
    """An addition to any method, which it sees through `posterior`, `log_odds` and `uncertain` only."""

    weight: float = option(1.0, "factor of the plugin's loss", low=0)

    def attach(self, method: Method) -> None:
        """Take from the method what the plugin's nets depend on; called before `bind`."""

    def repeats(self, schedule: Schedule) -> tuple[tuple[int, int], ...]:
        """Events of the method's schedule to be shown again: (position in the schedule, seconds later). To the method
        they look like their first firing. None by default."""
        return ()

    def loss(self, method: Method, b: Reveals) -> Tensor:
        """Added, times `weight`, to the method's loss."""
        raise UserError(f"plugin {self.name!r} does not define loss()")


def cross_entropy(logit: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy per event, stable for any logit; `target` may be soft."""
    return F.binary_cross_entropy_with_logits(logit, target, reduction="none")


def entropy_bits(logit: Tensor) -> Tensor:
    """The entropy, in bits, of a Bernoulli variable given by its logit."""
    return cross_entropy(logit, torch.sigmoid(logit)) / math.log(2)


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of `values` where `mask` holds; 0 if nowhere."""
    chosen = mask.to(values.dtype)
    return (values * chosen).sum() / chosen.sum().clamp_min(1.0)


def mixture(log_weight: Tensor, logit: Tensor) -> Tensor:
    """Log-odds of a weighted mean of rates (B, J), from logs of weights that sum to 1 and from logits; stable."""
    converts = torch.logsumexp(log_weight + F.logsigmoid(logit), dim=1)
    return converts - torch.logsumexp(log_weight + F.logsigmoid(-logit), dim=1)
