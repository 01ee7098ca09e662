"""How warm-up fits its log: the batch size, and how many passes a small log needs.

A large log is read once, in batches as configured. A small one would then give a net a handful of steps: it is read in
smaller batches and several times. How many times is decided on its last clicks, which are held back for that, and then
learnt like the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LARGE = 300
"""Steps in one pass, at the configured batch size, from which on a log is large."""

HELD_BACK = 0.15
"""Share of a small log, the last clicks of it, on which the number of passes is decided."""

SPREAD = 0.1
"""Factor of the weights of outputs before a small log is learnt. The random function of ids that an untrained net is
would take more clicks than there are to unlearn (20,000 synthetic clicks, Pretrain: NLL .484 without it, .469 with it).
"""

_SMALLEST, _STEPS, _MOST_PASSES = 16, 100, 20


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


def best(one_pass: Callable[[int], None], held_back_loss: Callable[[], float], usual: int) -> int:
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
