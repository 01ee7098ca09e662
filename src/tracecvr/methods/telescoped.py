"""Telescoped likelihood: each time a click is shown, it teaches only what is new since it was shown before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.authoring.losses import CERTAIN
from tracecvr.families.hazard_chain import LOG_ZERO, hazard_events, log_chain, output_count
from tracecvr.families.repeated_looks import RepeatedLooks
from tracecvr.stream.reveal import LabelledReveals, Reveals

_PULL = 0.1
"""Share of the law's gradient that reaches the layers below the outputs. The law has many outputs, whose noise slows
down the rate on most logs; on some, it teaches these layers more. NLL with a tenth and with all of it, seed 0, on logs
and days that nothing is judged by: criteo_search up to day 45 .2719, .2722, every 40th click of it .2763, .2757; births
of cryptokitties up to day 60 .3435, .3436; another draw of `stationary` .3886, .3897, of `drift` .4208, .4215, of
`jump` .5721, .5715, of `year` .4284, .4276."""


@dataclass
class Telescoped(RepeatedLooks):
    """Shows a click at rising ages until its outcome is known. The loss is the likelihood of what is new since the
    click was shown before, given everything known by then.

    One net has the rate and the law of delays and actions, and learns both from the same likelihood, in warm-up as in
    the stream. Over the life of a click the terms add up to the likelihood of its final state: nothing counts twice.
    The gradient of the rate's log-odds is the change of the posterior, and adds up to y - p, as Oracle's, even where
    the law is wrong. Methods that use the whole trajectory at each showing do not have this property.

    Where warm-up is shorter than d_max, no click shows a whole life. Then warm-up takes clicks that are still open at
    the last look that any click has reached for negatives, and actions other than the conversion are not used: with
    neither, the rate could explain them by conversions that were never observed.

    Looks in one interval are merged. On a large log, looks after the first at which nothing has happened show a sample
    of the open clicks, with a higher weight: a click is then shown about three times. The posterior of an open click
    comes from the same law.
    """

    name = "telescoped"
    title = "Telescoped"
    reference = "ours"
    status = "ours"
    rates = 1

    # One net: the logit of the rate, then the law of delays and actions.

    def heads(self) -> int:
        return 1 + output_count(len(self.windows), len(self.schema.actions))

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        return (b.x,), torch.cat([b.truth[:, None], hazard_events(b, self.windows)], dim=1)

    def level(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor] | None:
        """The rate, beside the posterior of open clicks. Of young clicks, that is a matter of the law more than of the
        rate, so they are left out."""
        old = b.take((2 * b.elapsed >= self.schema.d_max).nonzero()[:, 0])
        outcome = torch.where(old.mature, CERTAIN * (2 * old.truth - 1), self.posterior(old))
        return self.logit(old.x)[:, None], outcome[:, None]

    def log_chain(self, b: Reveals) -> tuple[Tensor, ...]:
        """The law of each click's trajectory: see `hazard_chain`."""
        law = self.call("main", b.x)[:, 1:]
        law = _PULL * law + (1 - _PULL) * self.stop_gradient(law)  # Adam gives the outputs themselves full steps
        whole_lives = self._looks_reached == len(self.looks)
        return log_chain(law, b.trajectory(self.windows)[0], others=whole_lives)

    @property
    def _looks_reached(self) -> int:
        """How many looks the oldest click of warm-up has had."""
        oldest = int(self.counts.get("oldest", self.schema.d_max))
        return sum(look <= oldest for look in self.looks)

    # Training.

    def observe(self, b: Reveals) -> None:
        super().observe(b)
        if isinstance(b, LabelledReveals):
            self.counts["oldest"] = torch.maximum(self.counts.get("oldest", b.elapsed.min()), b.elapsed.max())
            ahead = b.mature & (b.span <= self.schema.d_max)  # labels that were not yet known when history ended
            if ahead.any():  # history is in the order of arrival
                self.counts["learnt_until"] = b.arrival[ahead].max()

    def condense(self, events: Reveals) -> Reveals:
        """Without clicks that warm-up has learnt with their final labels."""
        if (last := self.counts.get("learnt_until")) is not None:
            events = events.take((events.arrival > last).nonzero()[:, 0])
        return super().condense(events)

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        """The likelihood of what has been seen of a click by its last look: the stream goes on from there."""
        likelihood = self.log_likelihood(b, final=self._looks_reached)
        return -likelihood.gather(1, self.state_at_last_look(b)[:, None]).mean()

    def loss(self, b: Reveals) -> Tensor:
        before, after = self.states(b)
        likelihood = self.log_likelihood(b, final=len(self.looks))
        new = likelihood.gather(1, after[:, None]) - likelihood.gather(1, before[:, None])
        return -(self.weight(b) * new[:, 0]).mean()

    def log_likelihood(self, b: Reveals, final: int) -> Tensor:
        """log P(all that was seen | x) in each state, that is, open after each look, converted, refunded:
        (B, looks + 3). From the look `final` on, an open click is a negative. A conversion counts in the window in
        which it becomes known: until then the click was open."""
        log_no, log_later, log_converts = self.of_other_outputs(self._law_at_looks, b, final)
        logit = self.logit(b.x)
        no, yes = F.logsigmoid(-logit)[:, None], F.logsigmoid(logit)[:, None]
        is_open = torch.logaddexp(no + log_no, yes + log_later)
        return torch.cat([is_open, yes + log_converts, no], dim=1)

    def _law_at_looks(self, b: Reveals, final: int) -> tuple[Tensor, ...]:
        """The law after no look and after each, (B, looks + 1) without conversion and with one later, and that of the
        conversion in its window, (B, 1)."""
        at_looks = torch.tensor([0, *(self.windows.index(look) + 1 for look in self.looks)])
        log_no, log_open, log_converts = self.log_chain(b)
        no_longer = torch.arange(max(final, 1), len(at_looks))
        log_later = log_open.index_select(1, at_looks).index_fill(1, no_longer, LOG_ZERO)
        window = torch.bucketize(b.known, torch.tensor(self.windows)).clamp_max(len(self.windows) - 1)
        return log_no.index_select(1, at_looks), log_later, log_converts.gather(1, window[:, None])

    def posterior(self, b: Reveals) -> Tensor:
        log_no, log_open, _ = self.log_chain(b)
        seen = b.trajectory(self.windows)[1].sum(1, keepdim=True).long()
        evidence = (log_open - log_no).gather(1, seen)[:, 0]
        return torch.where(b.converted, CERTAIN, (self.logit(b.x) + evidence).clamp(-CERTAIN, CERTAIN))
