"""A clock that stands still."""

from __future__ import annotations

from typing import Generic, TypeVar

Moment = TypeVar("Moment", int, float)


class ManualClock(Generic[Moment]):
    """Returns `now` when it is called; only the test moves it. The unit is the caller's: milliseconds for operators,
    seconds for the page."""

    def __init__(self, now: Moment) -> None:
        self.now: Moment = now

    def __call__(self) -> Moment:
        return self.now
