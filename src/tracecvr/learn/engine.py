"""Engine: the only training loop. Replay and the live service call it with the same reveals in the same order.

A tick is one interval: its events are permuted by a generator seeded with (seed, start of the interval, pass) and cut
into batches. Nothing random lives longer, so a restored engine goes on as if it had never stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tracecvr.authoring.method import Method, Plugin
from tracecvr.authoring.part import Part
from tracecvr.base.config import validate, values
from tracecvr.base.devices import array_of, computing_on, digest, on_processor, under
from tracecvr.base.errors import DivergedError, UserError
from tracecvr.base.files import write_atomically
from tracecvr.base.progress import Progress, no_progress
from tracecvr.base.seeds import generator
from tracecvr.data.table import Schema
from tracecvr.learn.averaged_net import AveragedNet
from tracecvr.learn.level import larger_steps
from tracecvr.learn.net_calls import BLOCK, NetCalls, in_blocks
from tracecvr.learn.optimisers import take_step
from tracecvr.learn.recorded_outputs import RecordedOutputs
from tracecvr.learn.stream_learning import AS_WARM_UP, StreamLearning, load_moments, moments
from tracecvr.learn.warm_up import Share, WarmUp, batch_size_of, resolve_options
from tracecvr.nets.backbones import freeze, set_precision
from tracecvr.nets.blend import loss_of_each
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import History, TableSource

Do = TypeVar("Do", bound=Callable[..., Any])


def _on_its_device(do: Do) -> Do:
    """What an engine does, with new tensors made where its nets are."""

    @wraps(do)
    def done(engine: Engine, *args: Any, **kwargs: Any) -> Any:
        with computing_on(engine.stream.device):
            return do(engine, *args, **kwargs)

    return cast(Do, done)


class Engine:
    """Trains a method with its plugins, and scores clicks with it. Replay and the live service use the same engine.

    Parameters
    ----------
    method
        The method; the engine builds its nets.
    schema
        What the log consists of.
    seed
        Seed of everything random.
    plugins
        Additions to the method.
    publish_lag
        Score with the model of so many ticks ago; 0 for the newest.
    stream
        How the stream is learnt: step size, batch size, averaged weights. As warm-up by default.

    Examples
    --------
    >>> from tracecvr.checks.subject import small_log
    >>> from tracecvr.methods.vanilla import Vanilla
    >>> from tracecvr.stream.source import TableSource
    >>> table = small_log()
    >>> source, split, day = TableSource(table), table.schema.split, 86400
    >>> engine = Engine(Vanilla(hidden=(8,), warm_epochs=1), table.schema)
    >>> engine.warm_up(source.history(split, "mature"))
    >>> events = engine.tick(source, split, split + day)
    >>> len(engine.score(source.clicks(split + day, split + 2 * day).x)) > 0
    True
    """

    def __init__(
        self,
        method: Method,
        schema: Schema,
        seed: int = 0,
        plugins: tuple[Plugin, ...] = (),
        publish_lag: int = 0,
        stream: StreamLearning = AS_WARM_UP,
    ) -> None:
        self.method, self.schema, self.seed, self.publish_lag = method, schema, seed, publish_lag
        self.stream = validate(stream).fit_to(schema.interval, sum(schema.tables.values()))
        method.bind(schema, seed)
        self.plugins = method.plugins() + plugins
        self._refuse_doubles(plugins)
        for plugin in self.plugins:
            plugin.attach(method)
            plugin.bind(schema, seed)
        self.schedule = method.schedule()
        for part in self._parts.values():  # not built there: first weights are drawn on the processor
            set_precision(part.nets.to(self.stream.device), self.stream.precision)
        self.reveals = self.steps = self.skipped = 0
        self._published: deque[dict[str, Tensor]] = deque(maxlen=max(publish_lag, 1))
        self._logs = RecordedOutputs()
        self._calls = NetCalls(self.schedule, schema.d_max)
        for part in self._parts.values():
            part.caller = partial(self._calls, part.nets)
        self._main.eval()
        self._modules = list(self._main.modules())
        self._optimisers = self._stream_optimisers()
        self._average: AveragedNet | None = None

    # Learning.

    @_on_its_device
    def warm_up(
        self,
        history: History,
        progress: Progress = no_progress,
        share: Share = lambda fit, _, train: train(fit),
    ) -> None:
        """Train the served net, then each helper, on history; freeze the helpers and start the stream's optimiser.

        `share` may take a net over from another run instead of training it.
        """
        self._start_stream(self._warm_up.run(history, progress, share))

    @_on_its_device
    def tick(self, source: TableSource, start: int, end: int) -> int:
        """Learn from the events of one interval; returns their number."""
        self._record(source, start, end)
        if self.publish_lag:
            self._published.append({name: value.clone() for name, value in self._served.state_dict().items()})
        self._refresh(source, start, end)
        events = self._logs.with_recorded(self.events(source, start, end))
        if not len(events):
            return 0
        self._train(True)
        with self._calls.showing(events, source, start, end) as shown:
            for turn in range(self.method.passes):
                rng = generator(self.seed, "tick", start, turn)
                order = torch.as_tensor(rng.permutation(len(events)))
                shuffled = events.take(order)
                for batch in self.stream.batches(len(events), batch_size_of(self.method)):
                    self._learn(shown.batch(shuffled.take(batch, rng), order[batch]), start)
        self._train(False)
        if self._average is not None:
            self._average.update(self.stream.decay(end - start))
        self.reveals += len(events)
        return len(events)

    def is_quiet(self, source: TableSource, start: int, end: int) -> bool:
        """Whether an interval has nothing to learn from: a tick of it would leave what is served as it is."""
        return not self._refreshed(start, end) and not len(self.events(source, start, end))

    @_on_its_device
    def events(self, source: TableSource, start: int, end: int) -> Reveals:
        """What an interval has to show of the method's schedule."""
        return self.method.condense(source.reveals(self.schedule, start, end, truth=self.method.privileged))

    def forget_answers(self) -> None:
        """Forget what frozen nets said of clicks."""
        self._calls.forget_clicks()

    # Answering.

    @_on_its_device
    def score(self, x: Tensor) -> npt.NDArray[np.float32]:
        """Log-odds served for clicks: by the current model, or by the one of `publish_lag` ticks ago."""
        with self.serving():
            return self._answer(self.method.log_odds, torch.as_tensor(x))

    @_on_its_device
    def posterior(self, reveals: Reveals) -> npt.NDArray[np.float32]:
        """Log-odds of conversion given features and the trajectory so far, of clicks at any age."""
        reveals, index = reveals.to(self.stream.device), torch.arange(len(reveals))
        with self.serving():
            return self._answer(lambda rows: self.method.posterior(reveals.take(rows)), index)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While it lasts, the served net is the one that answers: the newest or averaged one, or that of `publish_lag`
        ticks ago."""
        trained, served, newest = self._main, self._served, None
        if self.publish_lag and self._published:
            newest = {name: value.clone() for name, value in served.state_dict().items()}
            served.load_state_dict(self._published[0])
        self.method.nets["main"] = served
        self.forget()
        try:
            yield
        finally:
            self.method.nets["main"] = trained
            self.forget()
            if newest is not None:
                served.load_state_dict(newest)

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """The same, with every weight of the served net in its place: for reading the weights themselves."""
        with self.serving(), nullcontext() if self._average is None else self._average.settled():
            yield

    def forget(self) -> None:
        """Drop remembered outputs of nets. Call it after changing weights from outside."""
        self._calls.forget()

    # State.

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a restored engine needs, by name."""
        tensors: dict[str, Tensor] = {"counters": torch.tensor([self.reveals, self.steps, self.skipped])}
        for owner, part in self._parts.items():
            tensors |= {f"{owner}.net.{name}": value for name, value in part.nets.state_dict().items()}
            tensors |= {f"{owner}.count.{name}": value for name, value in part.counts.items()}
        tensors |= moments(self._optimisers, self._main)
        if self._average is not None:
            tensors |= {f"average.{name}": value for name, value in self._average.state().items()}
        for age, served in enumerate(self._published):
            tensors |= {f"published.{age}.{name}": value for name, value in served.items()}
        return tensors | {f"logged.{name}": value for name, value in self._logs.state().items()}

    @_on_its_device
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Become the engine that `state` was taken from."""
        state = {name: value.to(self.stream.device) for name, value in state.items()}
        self.reveals, self.steps, self.skipped = state["counters"].tolist()
        for owner, part in self._parts.items():
            part.after_warm_up()
            part.nets.load_state_dict(under(state, f"{owner}.net."))
            part.counts = under(state, f"{owner}.count.")
        self.forget()
        self._start_stream(state)
        if self._average is not None:
            self._average.load_state(under(state, "average."))
        self._published.clear()
        while served := under(state, f"published.{len(self._published)}."):
            self._published.append(served)
        self._logs.load_state(under(state, "logged."))

    def snapshot(self, path: Path) -> None:
        """Write the whole state to one safetensors file, atomically."""
        write_atomically(path, lambda temporary: save_file(on_processor(self.state()), temporary))

    def restore(self, path: Path) -> None:
        """Read a snapshot of an engine of the same configuration. What was read is a map of the file, and a disk may
        damage that later: a copy is kept."""
        self.load_state({name: value.clone() for name, value in load_file(path).items()})

    def resolve_options(self) -> dict[str, Any]:
        """The options of the method and of all its plugins, with defaults resolved."""
        stream = values(self.stream) | {
            "learning_rate": self.stream.learning_rate or self.method.learning_rate,
            "batch_size": batch_size_of(self.method) if self.stream.batch_size is None else self.stream.batch_size,
        }
        return {name: resolve_options(part) for name, part in self._parts.items()} | {"stream": stream}

    @property
    def memory(self) -> int:
        """How many seconds after it came a click may still be asked for: by its last event, or by a refresh."""
        refreshed = any(h.refresh is not None for part in self._parts.values() for h in part.helpers().values())
        return self._back if refreshed else self.schema.d_max

    @property
    def _back(self) -> int:
        return max(self.schema.d_max, self.schema.split)

    @property
    def clipped(self) -> int:
        """How many importance weights were outside their range."""
        return sum(int(part.counts.get("clipped", 0)) for part in self._parts.values())

    def fingerprint(self) -> str:
        """A hash of the whole state."""
        return digest(self.state())

    # Inside.

    @property
    def _warm_up(self) -> WarmUp:
        return WarmUp(self.method, self._parts, self.seed, self.stream, self.forget)

    @property
    def _main(self) -> nn.Module:
        return self.method.nets["main"]

    @property
    def _served(self) -> nn.Module:
        """The net whose answers are served: the trained one, or its average."""
        return self._main if self._average is None else self._average.net

    @property
    def _parts(self) -> dict[str, Part]:
        return {"method": self.method} | {plugin.name: plugin for plugin in self.plugins}

    def _train(self, on: bool) -> None:
        # `nn.Module.train` walks the tree, and `__setattr__` looks for parameters: both take longer than a small tick.
        for module in self._modules:
            module.__dict__["training"] = on

    def _refuse_doubles(self, plugins: tuple[Plugin, ...]) -> None:
        names = [plugin.name for plugin in self.plugins]
        for name in names:
            if name in self.method.contains and name in [plugin.name for plugin in plugins]:
                raise UserError(f"plugin {name!r} is part of method {self.method.name!r} already: leave it out")
            if names.count(name) > 1:
                raise UserError(f"plugin {name!r} is given twice: keep one")

    def _stream_optimisers(self) -> dict[str, torch.optim.Optimizer]:
        return self.stream.optimisers(self._main, self.method.learning_rate, self.method.weight_decay)

    def _refresh(self, source: TableSource, start: int, end: int) -> None:
        """Train helpers again whose time has come: at the first start of an interval since a multiple of their period.

        Their history is as long as the warm-up part, or d_max if that is longer, and ends where the interval starts.
        """
        for part, name in self._refreshed(start, end):
            history = source.history(start, "censored", max(0, start - self._back))
            self._warm_up.repeat(part, name, history, start)
            self._calls.forget_clicks()

    def _refreshed(self, start: int, end: int) -> list[tuple[Part, str]]:
        """The helpers whose time has come, and whose they are; none fresh from warm-up."""
        helpers = [(part, *named) for part in self._parts.values() for named in part.helpers().items()]
        due = [(part, name) for part, name, h in helpers if h.refresh is not None and start % h.refresh < end - start]
        return due if self.steps else []

    def _record(self, source: TableSource, start: int, end: int) -> None:
        """Log what the method wants to remember of the clicks that were served, by the model that served them."""
        if type(self.method).record is not Method.record:
            clicks = source.clicks(start, end)
            with self.serving():
                recorded = in_blocks(self.method.record)(clicks.x)
            self._logs.add(clicks.row, recorded, end + self.schema.d_max)
            self._logs.drop(start)

    def _learn(self, b: Reveals, start: int) -> None:
        if len(b) < 2:  # batch normalisation has no statistics of one
            self.skipped += len(b)
            return
        for part in self._parts.values():
            part.observe(b)
        loss = loss_of_each(self._main, len(b), lambda: self._loss(b), partial(self._calls.forget, "main"))
        with larger_steps(self._main, self.stream.level_steps, self.method.rates):
            take_step(self._optimisers.values(), loss, f"{self.method.name}, interval starting at {start} s")
        self.forget()
        self.steps += 1

    def _loss(self, b: Reveals) -> Tensor:
        loss = self.method.loss(b)
        for plugin in self.plugins:
            loss = loss + plugin.weight * plugin.loss(self.method, b)
        return loss

    def _start_stream(self, carried: dict[str, Tensor]) -> None:
        """Freeze helpers, and make the stream's optimisers and the averaged net; the former go on from `carried`."""
        for part in self._parts.values():
            for name in part.helpers():
                freeze(part.nets[name])
        self._main.eval()
        self._optimisers = self._stream_optimisers()
        load_moments(self._optimisers, self._main, carried)
        # A published copy of the average is of whole tables anyway.
        lazily = () if self.publish_lag else self._optimisers.values()
        self._average = AveragedNet(self._main, lazily) if self.stream.average is not None else None
        self._calls.forget_clicks()

    def _answer(self, ask: Callable[[Tensor], Tensor], rows: Tensor) -> npt.NDArray[np.float32]:
        parts: list[npt.NDArray[np.float32]] = [np.empty(0, np.float32)]
        with torch.no_grad():
            for block in rows.split(BLOCK):
                parts.append(array_of(ask(block).float()))
        self.forget()
        # If only a share of the negatives is in the log, the odds of all clicks are lower by that share.
        answers = np.concatenate(parts)
        if self.schema.negatives_kept != 1:
            answers += np.float32(np.log(self.schema.negatives_kept))
        if not np.isfinite(answers).all():
            raise DivergedError(f"{self.method.name}: the model's scores are not finite; try a lower learning_rate")
        return answers
