"""Vanilla with late positives: the window's label, then every later conversion as one more positive."""

from __future__ import annotations

from dataclasses import dataclass

from tracecvr.methods.vanilla import Vanilla
from tracecvr.stream.reveal import After, On, Schedule


@dataclass
class VanillaDup(Vanilla):
    """Vanilla, and every conversion after the window once more, as a positive. The negative at the end of the window
    is not corrected, so the rate is still too low.
    """

    name = "vanilla_dup"
    title = "Vanilla + late positives"
    reference = "Vanilla of Yang et al., ES-DFM, AAAI 2021"
    status = "code"

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait))

    def fixed_point(self, p: float, delayed: float) -> float:
        return p / (1 + delayed)
