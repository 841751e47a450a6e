"""Which failures no restart can cure (S9.1). Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.supervision.restart_strategy import NO_JITTER, RestartStrategy

Curability = Literal["curable", "counted", "incurable"]
"""Curable: another run may go well, as after an outage. Counted: it may, but not for ever: `SAME_ERRORS` in a row give
the job up. Incurable: the job is given up at once."""

NOT_RETRYABLE_CODES: Final = {
    "snapshot": "no restart can cure a snapshot that is damaged or does not fit: ",
    "missing_file": "no restart can cure a missing file: ",
    "pipeline": "no restart can cure a pipeline that does not fit: ",
    "option": "no restart can cure an option: ",
    "environment": "no restart can cure what is installed: ",
    "sink_conflict": "no restart can cure what a sink finds at its target: ",
}
"""Code of a failure -> why the job is given up at once."""
CURABLE: Final = frozenset(
    {
        "",  # nothing is known of it: networks, databases, memory of the machine, a full disk
        "store",
        "exists",
        "unclear_answer",
        "outage",
        "timeout",
        "slots",
        "peer_lost",
        "handshake",
        "fenced",  # the driver finds out itself whether a newer one reigns
        "driver_lost",
    }
)
"""Codes of outages, and of what follows from the end of another process."""
SAME_ERRORS = 3
"""So many times in a row the same counted error may come, in the same operator and subtask, with no completed
checkpoint between: then it is the same row each time. Two might be chance, such as a lookup table that is being
replaced."""

_SLOT_MEMORY = "slot_memory"
_USER_ERROR = "user_error"
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
"""An object's address in a message, which is another one in each run."""
_OF_A_RUN = re.compile(r"(?:[^\s,]+,){3}\d+,\d+,\d+,[^\s,]+,\d+|\bcheckpoint \d+|\b\d{6}[0-9a-f]{8}\b")
"""What the runtime's own messages name of one run: a transaction, a checkpoint, the run. No later run has the same."""


def curability(code: str) -> Curability:
    """What a failure with this code says about another run. A code that no list names, as of a plug-in, is counted: so
    it neither fails the job at once nor restarts it for ever."""
    if code in NOT_RETRYABLE_CODES:
        return "incurable"
    return "curable" if code in CURABLE else "counted"


class RetryableRestarts:
    """A restart strategy that is asked only about failures that a restart can cure. Call order as of
    RestartStrategy."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._given_up = ""
        self._last: tuple[str, str | None, int | None, str] | None = None
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
        self._given_up = self._not_retryable_reason(failure)
        return None if self._given_up else delay_ms

    def on_running(self, now_ms: int) -> None:
        """See RestartStrategy."""
        self._strategy.on_running(now_ms)

    def on_progress(self) -> None:
        """See RestartStrategy."""
        self._last = None
        self._strategy.on_progress()

    def _not_retryable_reason(self, failure: RunFailed) -> str:
        error = _identity(failure)
        self._same = self._same + 1 if error == self._last else 1
        self._last = error
        if curability(failure.code) == "counted" and self._same >= SAME_ERRORS:
            return f"the same error came {self._same} times in a row, and no restart can cure it: "
        return NOT_RETRYABLE_CODES.get(failure.code, "")


def _identity(failure: RunFailed) -> tuple[str, str | None, int | None, str]:
    """What the same failure of another run has in common with this one. Not the traceback: each run has the pipeline's
    code in another folder."""
    text = _ADDRESS.sub("0x", failure.message)
    if failure.code == _SLOT_MEMORY:
        text = ""  # it names how much memory it was
    elif failure.code != _USER_ERROR:
        text = _OF_A_RUN.sub("", text)
    return failure.code, failure.operator, failure.subtask, text
