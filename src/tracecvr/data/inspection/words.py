"""Words by which people name clicks, conversions and other things, in columns, in files and in rows."""

from __future__ import annotations

from collections.abc import Iterable

CLICK = ("click", "clk", "pv", "view", "impression", "visit")
_PAID = ("conver", "purchas", "buy", "bought", "order", "sale", "sold", "pay", "paid", "subscri")
CONVERSION = (*_PAID, "install", "signup", "lead")
"""The likeliest first: an app's subscription is paid for, its installation is a step on the way."""
REFUND = ("refund", "return", "cancel", "chargeback", "revers", "undone", "undo")
ACTION = ("cart", "basket", "fav", "wish", "add", "like", "share", "regist", "download", "open", "detail")
TYPE = ("event", "type", "action", "behavio", "kind", "activity", "status")
AMOUNT = ("amount", "price", "revenue", "value", "total", "money"), ("quantity", "qty", "units", "pieces")
"""Money, then pieces."""
LABEL = (*CONVERSION, "label", "target", "outcome", "success")


def has_word(name: str, words: Iterable[str]) -> bool:
    return any(word in name.lower() for word in words)


def is_amount_name(name: str) -> bool:
    return any(has_word(name, words) for words in AMOUNT)
