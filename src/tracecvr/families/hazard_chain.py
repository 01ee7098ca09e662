"""A coherent law of what happens after a click: hazards of each action, window by window, given the outcome.

The chain is P(o_1..o_h | x, y) = prod_j P(o_j | o_1..o_{j-1}, x, y), where o_j says which actions have happened by age
e_j. A click that does not convert never has the conversion, and one that does has it by the last age: both are built
in, not learnt. Given that a window passes without conversion, the other actions happen in it independently of each
other, each with a hazard that depends on which actions have happened before the window.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.stream.reveal import LabelledReveals

LOG_ZERO = -1e4
"""The logarithm of no probability, finite so that differences of such remain numbers."""


def output_count(ages: int, actions: int) -> int:
    """How many outputs a net needs to give the hazards: (H, K, K) of a click that converts, (H, K - 1, K) of others.

    The last dimension is a logit, and what each other action adds to it once it has happened. With the conversion as
    the only action, there is one hazard per window.

    >>> output_count(6, 1), output_count(6, 3)
    (6, 90)
    """
    return ages * actions * actions + ages * (actions - 1) * actions


def log_chain(outputs: Tensor, state: Tensor, others: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Three logarithms of the law, from the outputs of a net and `state` (B, H, K), which actions have happened by
    each age. Without `others`, only the conversion counts.

    - P(o_1..o_h | x, y = 0) and P(o_1..o_h, open | x, y = 1), after no window and after each: (B, H + 1) each;
    - P(conversion in window h, o_1..o_{h-1}, open before | x, y = 1): (B, H).
    """
    without, with_it = _hazard_logits(outputs, state)
    still_open, leaves = _log_conversion(with_it)
    no = torch.zeros_like(leaves)
    if others and state.shape[2] > 1:
        no, still_open = _log_others(without, state), still_open + _log_others(with_it[:, :, 1:], state)
    no, still_open = (F.pad(windows.cumsum(1), (1, 0)) for windows in (no, still_open))
    return no, still_open, still_open[:, :-1] + leaves


def hazard_events(b: LabelledReveals, ages: tuple[int, ...]) -> Tensor:
    """For each hazard, in the order of a net's outputs, whether what it is of happened: 1 or 0, NaN where it could not.

    What other actions add to a hazard has no rate: NaN.
    """
    state, visible = b.trajectory(ages)
    late = b.delay[:, :1] > torch.tensor(ages)
    waits, leaves = visible * late, visible * ~late * F.pad(late[:, :-1], (1, 0), value=True)
    before = F.pad(state, (0, 0, 1, 0))[:, :-1, 1:]
    others = torch.where(before > 0, torch.nan, state[:, :, 1:])  # (B, H, K - 1)
    converts = (b.truth > 0)[:, None]
    conversion = torch.where(converts & (waits + leaves > 0), leaves, torch.nan)
    yes = torch.where((converts & (waits > 0))[..., None], others, torch.nan)
    no = torch.where((~converts & b.mature[:, None] & (visible > 0))[..., None], others, torch.nan)
    each = [torch.cat([conversion[..., None], yes], dim=2), no]
    return torch.cat([F.pad(e[..., None], (0, state.shape[2] - 1), value=torch.nan).flatten(1) for e in each], dim=1)


def _hazard_logits(outputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the hazards without conversion (B, H, K - 1) and with it (B, H, K), given what came before a window."""
    horizons, actions = state.shape[1:]
    cells = horizons * actions * actions
    with_it = outputs[:, :cells].unflatten(1, (horizons, actions, actions))
    if actions == 1:
        return outputs.new_zeros(state.shape[0], horizons, 0), with_it[..., 0]
    before = F.pad(state, (0, 0, 1, 0))[:, :-1, None, 1:]  # (B, H, 1, K - 1)
    without = outputs[:, cells:].unflatten(1, (horizons, actions - 1, actions))
    return _shift(without, before), _shift(with_it, before)


def _shift(hazards: Tensor, before: Tensor) -> Tensor:
    return hazards[..., 0] + (hazards[..., 1:] * before).sum(3)


def _log_conversion(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log P(no conversion in a window | none before, converts) and log P(conversion in it | ...): (B, H) each. In the
    last window it has to come."""
    hazard = logits[:, :-1, 0]
    return F.pad(F.logsigmoid(-hazard), (0, 1), value=LOG_ZERO), F.pad(F.logsigmoid(hazard), (0, 1))


def _log_others(logits: Tensor, state: Tensor) -> Tensor:
    """log P of what the other actions did in each window without conversion, given what came before it: (B, H)."""
    now = state[:, :, 1:]
    before = F.pad(now, (0, 0, 1, 0))[:, :-1]
    return (F.logsigmoid(logits * (2 * now - 1)) * (1 - before)).sum(2)
