"""What a subtask asks of the slot around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidegate.channel.control.protocol import DeclineCode
from tidegate.snapshot.blobs import BlobFile
from tidegate.snapshot.parts import AsyncSnapshot


class SubtaskHost(Protocol):
    """The slot, or what stands for it in a test. No call blocks."""

    def now_ms(self) -> int:
        """Processing time."""

    def wake(self) -> None:
        """Rouse the loop; from any thread."""

    def restored_files(self, files: Mapping[tuple[str, int], Sequence[BlobFile]]) -> None:
        """(uid, index) -> files of blobs of the restored snapshot that checkpoints may use again; before the first of
        them."""

    def write_snapshot(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
        over: Callable[[int], None],
    ) -> None:
        """Run the asynchronous phase and acknowledge, or decline when it fails; then call `over(checkpoint_id)` on the
        loop. When the checkpoint has been aborted, call `over` and nothing else."""

    def decline(self, subtask: tuple[int, int], checkpoint_id: int, reason: str, code: DeclineCode = "failed") -> None:
        """Tell the coordinator. `code`: "failed" counts as a failure of the checkpoint (S2.2), the others do not: the
        subtask had finished (S1.5), or a newer barrier or a cancel marker ended its alignment (S3.4)."""

    def ended(self, subtask: tuple[int, int], natural: bool) -> None:
        """EndOfData has been passed on."""

    def finished(self, subtask: tuple[int, int]) -> None:
        """Closed, EndOfPartition sent."""

    def commit(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        work: Sequence[Callable[[], None]],
        done: Callable[[], None],
    ) -> None:
        """Do the commits off the loop, report them; then call `done` on the loop."""
