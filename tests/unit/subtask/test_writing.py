"""Blocking work on a slot's writer threads: the operators of one chain side by side (S3.6, S7.3)."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.control.protocol import Acknowledged, Declined, SlotMessage, SubtaskCommitted
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.snapshot.parts import StatePart
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.snapshots.snapshot_writer import SnapshotPlace
from tidegate.subtask.snapshots.writer_threads import run_concurrently
from tidegate.testing.in_process_job import InlineExecutor

MEET_S = 20.0
"""How long a thread waits for the others, seconds; only a failing test waits."""
STATE = pa.table({"v": [1]})


class SlotOf:
    """A slot without subtasks, and what it told the driver."""

    def __init__(self, writers: Executor) -> None:
        self.sent: list[dict[str, Any]] = []
        self.told = threading.Event()
        self.slot = Slot(
            run_id="run",
            generation=1,
            send=self.send,
            open_location=lambda path: (MemoryStore("writing"), path),
            threshold_bytes=1 << 20,
            writers=writers,
            now_ms=lambda: 0,
            wake=LoopSignal(),
        )
        self.slot._places[1] = SnapshotPlace(1, "chk-1", False)

    def send(self, message: SlotMessage) -> None:
        self.sent.append(message)
        self.told.set()

    def await_message(self) -> Any:
        assert self.told.wait(MEET_S), "nothing was told"
        return self.sent[0]


def test_the_states_of_a_chain_are_written_side_by_side_and_acknowledged_as_one() -> None:
    """S7.3: three pre-commits that wait for each other; written one after the other, none would ever end."""
    meeting = threading.Barrier(3)

    def stage(n: int) -> list[StatePart]:
        meeting.wait(MEET_S)
        return [StatePart(f"state-{n}", "list", STATE)]

    with ThreadPoolExecutor(3) as writers:
        rig = SlotOf(writers)
        parts = [(f"op-{n}", lambda n=n: stage(n)) for n in range(3)]
        rig.slot.write_snapshot((0, 0), 1, parts, {}, True, lambda _: None)  # type: ignore[arg-type]
        ack = rig.await_message()
    assert len(rig.sent) == 1
    assert (type(ack), list(ack.operators), ack.finished) == (Acknowledged, ["op-0", "op-1", "op-2"], True)
    assert ack.metrics["bytes"] == sum(handle["size_bytes"] for handle in ack.operators.values()) > 0


def test_the_commits_of_a_chain_run_side_by_side_and_are_reported_when_the_last_is_done() -> None:
    """S7.3, S7.4."""
    meeting = threading.Barrier(3)
    done: list[str] = []
    with ThreadPoolExecutor(3) as writers:
        rig = SlotOf(writers)
        works = [lambda: meeting.wait(MEET_S)] * 3
        rig.slot.commit((0, 0), 1, works, lambda: done.append("done"))  # type: ignore[arg-type]
        assert rig.await_message() == SubtaskCommitted((0, 0), 1)
    rig.slot.run_round()
    assert len(rig.sent) == 1 and done == ["done"], "`done` is for the loop"


def test_a_state_that_cannot_be_written_declines_the_snapshot_once_and_acknowledges_nothing() -> None:
    """S2.1, S3.6: whichever of the chain's operators it is of."""

    def fail() -> list[StatePart]:
        raise OSError("disk full")

    for failing in range(3):
        rig = SlotOf(InlineExecutor())
        parts = [(f"op-{n}", fail if n >= failing else list) for n in range(3)]
        rig.slot.write_snapshot((0, 0), 1, parts, {}, False, lambda _: None)  # type: ignore[arg-type]
        (decline,) = rig.sent
        assert isinstance(decline, Declined) and "disk full" in decline.reason


def test_a_commit_that_fails_ends_the_run_and_reports_nothing_as_committed() -> None:
    """S7.4: the others may be done; what is repeated after the restore has no effect."""

    def fail() -> None:
        raise OSError("network down")

    rig = SlotOf(InlineExecutor())
    rig.slot.commit((0, 0), 1, [lambda: None, fail, fail], lambda: pytest.fail("not committed"))
    with pytest.raises(OSError, match="network down"):
        rig.slot.run_round()
    assert rig.sent == []


def test_what_is_done_comes_in_the_order_of_the_works_whatever_ended_first() -> None:
    writers = InlineExecutor()
    made: list[list[int]] = []
    run_concurrently(writers, [lambda n=n: n for n in range(4)], made.append, pytest.fail)  # type: ignore[misc]
    run_concurrently(writers, [], made.append, pytest.fail)
    assert made == [[0, 1, 2, 3], []]
