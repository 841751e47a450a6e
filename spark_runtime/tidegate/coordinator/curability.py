"""Which failures no restart can cure (S9.1). Pure."""

from __future__ import annotations

import re
from typing import Final

from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.restart import NO_JITTER, RestartStrategy

INCURABLE: Final = {
    "snapshot": "no restart can cure a snapshot that is damaged or does not fit: ",
    "missing_file": "no restart can cure a missing file: ",
    "pipeline": "no restart can cure a pipeline that does not fit: ",
    "option": "no restart can cure an option: ",
    "environment": "no restart can cure what is installed: ",
}
"""Code of a failure -> why the job is given up at once."""
SAME_ERRORS = 3
"""So many times in a row the same error of user code about its data may come, in the same operator and subtask, with no
completed checkpoint between: then it is the same row each time. Two might be chance, such as a lookup table that is
being replaced."""


_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
"""An object's address in a message, which is another one in each run."""


class CurableRestarts:
    """A restart strategy that is asked only about failures that a restart can cure. Call order as of
    RestartStrategy."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._given_up = ""
        self._last: tuple[str | None, int | None, str] | None = None
        self._same = 0

    @property
    def streak(self) -> int:
        """See RestartStrategy."""
        return 1 if self._given_up else self._strategy.streak

    @property
    def exhausted(self) -> str:
        """See RestartStrategy."""
        return self._given_up or self._strategy.exhausted

    def on_failure(self, failure: RunFailed, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """See RestartStrategy."""
        delay_ms = self._strategy.on_failure(now_ms, draw)
        self._given_up = self._why_incurable(failure)
        return None if self._given_up else delay_ms

    def on_running(self, now_ms: int) -> None:
        """See RestartStrategy."""
        self._strategy.on_running(now_ms)

    def on_progress(self) -> None:
        """See RestartStrategy."""
        self._last = None
        self._strategy.on_progress()

    def _why_incurable(self, failure: RunFailed) -> str:
        # Not the traceback: each run has the pipeline's code in another folder.
        error = (failure.operator, failure.subtask, _ADDRESS.sub("0x", failure.message))
        self._same = self._same + 1 if error == self._last else 1
        self._last = error
        if failure.code == "user_error" and self._same >= SAME_ERRORS:
            return f"the same error came {self._same} times in a row, and no restart can cure it: "
        return INCURABLE.get(failure.code, "")
