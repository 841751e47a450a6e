"""Classify failures by whether a restart can help (S9.1). Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.supervision.restart_strategy import NO_JITTER, RestartStrategy

Curability = Literal["curable", "counted", "incurable"]
"""Curable: another run may succeed, as after an outage. Counted: it may, but after `SAME_ERRORS` equal errors in a row
the job fails. Incurable: the job fails immediately."""

NOT_RETRYABLE_CODES: Final = {
    "snapshot": "a restart cannot fix a snapshot that is damaged or does not fit: ",
    "missing_file": "a restart cannot fix a missing file: ",
    "pipeline": "a restart cannot fix a pipeline that does not fit: ",
    "option": "a restart cannot fix a wrong option: ",
    "environment": "a restart cannot fix the installed packages: ",
    "sink_conflict": "a restart cannot fix a conflict at the target of a sink: ",
}
"""Code of a failure -> why the job fails immediately. The text precedes the message of the failure."""
CURABLE: Final = frozenset(
    {
        "",  # unknown causes: network, database, memory of the machine, full disk
        "store",
        "exists",
        "unclear_answer",
        "outage",
        "timeout",
        "slots",
        "peer_lost",
        "handshake",
        "fenced",  # the driver itself checks whether a newer generation owns the job
        "driver_lost",
        "spark_lost",
    }
)
"""Codes of outages, and of failures that follow from the end of another process."""
SAME_ERRORS = 3
"""Number of equal counted errors in a row after which the job fails.

Equal means: in the same operator and subtask, with no completed checkpoint between. The same row is then the likely
cause. Two may be chance, such as a lookup table that is being replaced.
"""

_SLOT_MEMORY = "slot_memory"
_USER_ERROR = "user_error"
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
"""The address of an object in a message, which differs between runs."""
_OF_A_RUN = re.compile(r"(?:[^\s,]+,){3}\d+,\d+,\d+,[^\s,]+,\d+|\bcheckpoint \d+|\b\d{6}[0-9a-f]{8}\b")
"""Parts of the runtime's own messages that differ between runs: a transaction, a checkpoint, the run id."""


def curability(code: str) -> Curability:
    """Return whether another run may succeed after a failure with this code.

    Unknown codes, such as codes of plug-ins, are counted: they neither fail the job immediately nor restart it without
    limit.
    """
    if code in NOT_RETRYABLE_CODES:
        return "incurable"
    return "curable" if code in CURABLE else "counted"


class RetryPolicy:
    """A restart strategy that gives up on failures that a restart cannot fix. Call order as in RestartStrategy."""

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
            return f"the same error occurred {self._same} times in a row, so another restart cannot fix it: "
        return NOT_RETRYABLE_CODES.get(failure.code, "")


def _identity(failure: RunFailed) -> tuple[str, str | None, int | None, str]:
    """Return the parts of a failure that are equal when it occurs in another run.

    The traceback is left out, because each run has the pipeline's code in another folder.
    """
    text = _ADDRESS.sub("0x", failure.message)
    if failure.code == _SLOT_MEMORY:
        text = ""  # the text contains the amount of memory, which varies
    elif failure.code != _USER_ERROR:
        # The text of a user's error is compared as it is. Numbers
        # in it may name different rows, and then the errors differ.
        text = _OF_A_RUN.sub("", text)
    return failure.code, failure.operator, failure.subtask, text
