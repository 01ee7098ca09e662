"""FSIW: a window's labels, weighted by how likely a conversion has been seen by then."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.families.counterfactual_deadline import CounterfactualDeadline
from tracecvr.families.losses import cross_entropy
from tracecvr.families.part import Helper
from tracecvr.stream.reveal import After, LabelledReveals, Reveals, Schedule


@dataclass
class FSIW(CounterfactualDeadline):
    """Shows a click once, when its window ends. A positive weighs 1 / P(seen by now | converts), a negative
    P(never converts | not seen by now), so that the rate it converges to is the true one.

    Both probabilities depend on features and elapsed time. They are learnt from warm-up clicks older than a deadline in
    the past: from whether conversions came before it, and from whether clicks that were open at it stayed so. The
    window (the paper trains offline) is our assumption, and that the helpers stay as they are after warm-up.

    >>> FSIW(window=3600).schedule()
    (After(seconds=3600, seen=None),)
    """

    name = "fsiw"
    title = "FSIW"
    reference = (
        "Yasui et al., A Feedback Shift Correction in Predicting Conversion Rates under Delayed Feedback, WWW 2020"
    )
    status = "code"

    def schedule(self) -> Schedule:
        return (After(self.wait),)

    def helpers(self) -> dict[str, Helper]:
        helper = Helper(self.elapsed_net, self.helper_epochs, usual=self.usual_epochs)
        return {"observed": helper, "negative": helper}

    def question(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor, Tensor]:
        elapsed, before, after = self.known_and_later(b)
        return (elapsed, before | after, before) if name == "observed" else (elapsed, ~before, ~after)

    def loss(self, b: Reveals) -> Tensor:
        seen, never = self.estimate("observed", b), self.estimate("negative", b)
        weight = self.clip(torch.where(b.converted, 1 / seen, never), high=100.0)
        return (weight * cross_entropy(self.logit(b.x), b.label)).mean()
