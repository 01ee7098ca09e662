"""Telescoped likelihood: each time a click is shown, it teaches only what is new since it was shown before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.base.config import Seconds, option
from tracecvr.families.hazard_chain import chain_loss, hazard_events, log_open, output_count
from tracecvr.families.losses import CERTAIN
from tracecvr.families.part import Helper
from tracecvr.families.repeated_looks import RepeatedLooks
from tracecvr.stream.reveal import LabelledReveals, Reveals


@dataclass
class Telescoped(RepeatedLooks):
    """Shows a click at rising ages until its outcome is known. The loss is the likelihood of what is new since the
    click was shown before, given everything known by then. Its gradient is the change of the posterior.

    Over the life of a click the gradients add up to y - p, as Oracle's, even if the law of delays and actions is wrong:
    a wrong law changes when something is learnt, not what is learnt. Methods that use the whole trajectory at each
    showing do not have this property, and count a click as often as they show it.

    Looks in one interval are merged. On a large log, looks after the first show a sample of the open clicks, with a
    higher weight: a click is then shown about three times. The posterior of an open click comes from the same law.

    >>> Telescoped(late_share=0.25).late_share
    0.25
    """

    name = "telescoped"
    title = "Telescoped"
    reference = "ours"
    status = "ours"

    refresh: Seconds | None = option(
        None, "train the law of delays and actions anew this often, on the last clicks; never by default", low=1
    )
    chain_epochs: int | None = option(
        None,
        "passes of the law over the warm-up part; by default 1 if it is large, else as held-back clicks want",
        low=1,
    )

    repeat_warm_up: bool = option(
        False, "show clicks again whose final labels warm-up has learnt, though they teach nothing new"
    )
    hazard_shift: float = option(0.0, "added to the logits of all hazards: a law that is wrong on purpose, to try that")

    # The law of delays and actions.

    def helpers(self) -> dict[str, Helper]:
        outputs = output_count(len(self.windows), len(self.schema.actions))
        return {"chain": Helper(lambda: self.net(outputs), self.chain_epochs, self.refresh, before_main=True)}

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        return chain_loss(self.call(name, b.x), b, self.windows)

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        return ((b.x,), hazard_events(b, self.windows)) if name == "chain" else super().base_rates(name, b)

    def log_psi(self, b: Reveals) -> Tensor:
        """log P(o_1..o_h, open | x, y) after no window and after each: (B, 2, H + 1)."""
        return log_open(self.call("chain", b.x), b.trajectory(self.windows)[0], self.hazard_shift)

    # Training.

    def observe(self, b: Reveals) -> None:
        super().observe(b)
        if isinstance(b, LabelledReveals) and not self.repeat_warm_up:
            ahead = b.mature & (b.span <= self.schema.d_max)  # labels that were not yet known when history ended
            if ahead.any():  # history is in the order of arrival
                self.counts["learnt_until"] = b.arrival[ahead].max()

    def condensed(self, events: Reveals) -> Reveals:
        """Without clicks that warm-up has learnt with their final labels."""
        if (last := self.counts.get("learnt_until")) is not None:
            events = events.take((events.arrival > last).nonzero()[:, 0])
        return super().condensed(events)

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        """Cross-entropy where labels are final. Of a click that is open when warm-up ends, the likelihood of what has
        been seen of it at its looks: the stream goes on from there, so that its life still adds up to y - p."""
        if b.mature.all():
            return super().warm_loss(b)
        return -self.log_likelihood(b).gather(1, self.state_at_last_look(b)[:, None]).mean()

    def loss(self, b: Reveals) -> Tensor:
        before, after = self.states(b)
        likelihood = self.log_likelihood(b)
        new = likelihood.gather(1, after[:, None]) - likelihood.gather(1, before[:, None])
        return -(self.weight(b) * new[:, 0]).mean()

    def log_likelihood(self, b: Reveals) -> Tensor:
        """log P(all that was seen | x) in each state, up to terms without p: (B, looks + 3)."""
        at_looks = [0, *(self.windows.index(look) + 1 for look in self.looks)]
        log_psi, logit = self.log_psi(b)[:, :, at_looks], self.logit(b.x)
        no, yes = F.logsigmoid(-logit)[:, None], F.logsigmoid(logit)[:, None]
        return torch.cat([torch.logaddexp(no + log_psi[:, 0], yes + log_psi[:, 1]), yes, no], dim=1)

    def posterior(self, b: Reveals) -> Tensor:
        log_psi = self.log_psi(b)
        seen = b.trajectory(self.windows)[1].sum(1, keepdim=True).long()
        evidence = (log_psi[:, 1] - log_psi[:, 0]).gather(1, seen)[:, 0]
        return torch.where(b.converted, CERTAIN, (self.logit(b.x) + evidence).clamp(-CERTAIN, CERTAIN))
