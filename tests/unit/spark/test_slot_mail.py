"""Where a slot's messages go around the beginning and the end of its loop."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidegate.channel.control.protocol import Cancel, LetFinish
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.spark.slot_entry import SlotMail
from tidegate.subtask.slot import LoopSignal, Slot


def slot() -> Slot:
    """A slot whose loop is over at once: it hosts nothing."""
    return Slot(
        run_id="r",
        generation=1,
        send=lambda message: None,
        open_location=lambda location: (MemoryStore(), location),
        threshold_bytes=0,
        writers=ThreadPoolExecutor(1),
        now_ms=lambda: 0,
        wake=LoopSignal(),
    )


def test_what_comes_before_the_loop_is_handed_to_it() -> None:
    """S7.3: the word of the driver may be quicker than the slot."""
    mail, loop = SlotMail(), slot()
    mail.deliver(Cancel())
    mail.open(loop)
    loop.run_round()
    assert loop.was_cancelled


def test_a_release_between_the_end_of_the_loop_and_its_report_is_not_lost() -> None:
    """S7.3: a slot that lost it held the job for a minute after its last commit: the driver says it once."""
    mail, loop = SlotMail(), slot()
    mail.open(loop)
    loop.run()
    mail.deliver(Cancel())
    mail.close()
    assert mail.take(0) == Cancel()


def test_a_release_that_answers_the_report_at_once_is_not_lost() -> None:
    """S7.3: as above, with a driver that is quicker than the slot's next line."""
    mail, loop = SlotMail(), slot()
    mail.open(loop)
    loop.run()
    mail.close()
    mail.deliver(Cancel())
    assert mail.take(0) == Cancel()


def test_what_the_loop_has_taken_does_not_come_back() -> None:
    """S7.3: and calls that were queued for the loop are no messages."""
    mail, loop = SlotMail(), slot()
    mail.open(loop)
    mail.deliver(LetFinish())
    loop.run_round()
    loop.post(lambda: None)
    mail.close()
    with pytest.raises(queue.Empty):
        mail.take(0)
