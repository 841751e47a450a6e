"""The interface of a slot for its subtasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidegate.channel.control.protocol import DeclineCode
from tidegate.snapshot.blobs import BlobFile
from tidegate.snapshot.parts import AsyncSnapshot


class SubtaskHost(Protocol):
    """The slot, or a substitute in tests. No call blocks."""

    def now_ms(self) -> int:
        """Return the processing time in milliseconds."""

    def core_wait_ms(self) -> int:
        """Return how long the loop has waited for a core of the machine so far, milliseconds; 0 if unknown."""

    def wake(self) -> None:
        """Wake the loop. Safe from any thread."""

    def restored_files(self, files: Mapping[tuple[str, int], Sequence[BlobFile]]) -> None:
        """Register files of blobs of the restored snapshot that checkpoints may use again: (uid, index) -> files.

        Must be called before the first checkpoint.
        """

    def write_snapshot(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
        over: Callable[[int], None],
    ) -> None:
        """Run the asynchronous phase and acknowledge, or decline if it fails. Then call `over(checkpoint_id)` on the
        loop.

        If the checkpoint has been aborted, only call `over`.
        """

    def decline(self, subtask: tuple[int, int], checkpoint_id: int, reason: str, code: DeclineCode = "failed") -> None:
        """Decline a checkpoint.

        `code`: "failed" counts as a failure of the checkpoint (S2.2). The other codes do not: the subtask had finished
        (S1.5), or a newer barrier or a cancel marker ended its alignment (S3.4).
        """

    def ended(self, subtask: tuple[int, int], natural: bool) -> None:
        """Report that EndOfData has been sent downstream."""

    def finished(self, subtask: tuple[int, int]) -> None:
        """Report that the subtask is closed and has sent EndOfPartition."""

    def splits_held(self, subtask: tuple[int, int], unfinished: int, received: int, passed: int, aborted: int) -> None:
        """Report the unfinished splits of a reader, how many splits this run has assigned to it, the newest snapshot
        that it has taken, and the newest aborted one after which it reads on (S4.3).
        """

    def commit(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        work: Sequence[Callable[[], None]],
        done: Callable[[], None],
    ) -> None:
        """Carry out the commits outside the loop and report them; then call `done` on the loop."""
