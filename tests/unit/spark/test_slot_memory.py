"""A slot that uses more than its `slot_memory` says so before it ends itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.channel.control.protocol import Failed
from tidegate.jobs.options import JobOptions
from tidegate.spark import slot_entry
from tidegate.spark.slot_entry import SlotRuntime
from tidegate.subtask.failure_codes import SLOT_MEMORY


class EndedError(Exception):
    """In place of the end of the process."""


def test_a_slot_that_exceeds_its_memory_says_which_it_is_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.1: so that the driver sees when it is the same slot each time."""
    sent: list[Any] = []

    def ended(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(slot_entry, "resident_bytes", lambda: 3 * 2**30)
    monkeypatch.setattr(slot_entry.os, "_exit", ended)
    slot: Any = object.__new__(SlotRuntime)
    slot._index = 3
    slot._options = JobOptions(slot_memory="1 GiB")
    slot._over = SimpleNamespace(wait=lambda _s: False)
    slot._control = SimpleNamespace(send=sent.append, flush=lambda _s: None)
    slot._scratch = SimpleNamespace(remove=lambda: None)
    with pytest.raises(EndedError, match="137"):
        slot._watch()
    [message] = sent
    assert (type(message), message.subtask, message.code) == (Failed, 3, SLOT_MEMORY)
    assert "slot 3 exceeded slot_memory: it has 3072 MiB resident memory, the limit is 1024 MiB" in message.message
