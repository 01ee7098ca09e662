"""Words of commands for quick runs: small nets, one pass, one thread."""

from __future__ import annotations


def flags(flag: str, *pairs: str) -> tuple[str, ...]:
    """`--set a=1 --set b=2` from the pairs."""
    return tuple(word for pair in pairs for word in (flag, pair))


SMALL_NETS = flags("--set", "hidden=8", "warm_epochs=1", "warm_batch_size=256")
