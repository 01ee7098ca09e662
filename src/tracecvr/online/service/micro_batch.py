"""MicroBatch: clicks of requests that come together are scored together.

What a call of NumPy costs is shared, and weights are read once. Scored in one call are the clicks of all requests that
came in one turn of the event loop, so nobody waits for others to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tracecvr.online.service.routing import Answers, Asked


class MicroBatch:
    """Of one scorer, in one event loop."""

    def __init__(self, score: Callable[[Sequence[Asked]], Answers]) -> None:
        self._score = score
        self._waiting: list[tuple[Sequence[Asked], asyncio.Future[Answers]]] = []

    def score(self, clicks: Sequence[Asked]) -> asyncio.Future[Answers]:
        """The answers to one request."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer)
        future: asyncio.Future[Answers] = loop.create_future()
        self._waiting.append((clicks, future))
        return future

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        waiting = [one for one in waiting if not one[1].done()]  # the sender of a cancelled one is gone
        try:
            answers, unreadable = self._score([click for clicks, _ in waiting for click in clicks])
            end = 0
            for clicks, future in waiting:
                start, end = end, end + len(clicks)
                # Which request has the values that could not be read is not known: they are rare.
                future.set_result(self._score(clicks) if unreadable else Answers(answers[start:end], unreadable))
        except Exception as error:  # each sender's to deal with
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
