"""Control messages: each comes back as it was sent, and a changed one needs a new version."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import pytest

from tidegate.channel.control.protocol import (
    Abort,
    Acknowledged,
    AlignSources,
    AssignSplits,
    Cancel,
    Commit,
    Complete,
    Declined,
    Deploy,
    Deployed,
    Durable,
    Failed,
    GroupWatermark,
    Heartbeat,
    Hello,
    LetFinish,
    Over,
    PauseSources,
    Peer,
    Quarantine,
    SlotMetrics,
    SourceMetrics,
    SourceWatermark,
    SourceWatermarks,
    SplitsHeld,
    Start,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskMetrics,
    SubtaskRunning,
    Trigger,
)
from tidegate.channel.control.protocol_codec import Message, message_document, message_of, received
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.channel.failures import ProtocolError
from tidegate.channel.tcp.handshake import WIRE_VERSION
from tidegate.jobs.history.verdicts import WithheldRange

GOLDEN = Path(__file__).parent / "golden" / f"control-messages-v{WIRE_VERSION}.json"
SOURCE = SourceMetrics("flights", 9, False, {"paused": "too much is not committed"}, {"bad_records": 1})
EXAMPLES: tuple[Message, ...] = (
    Deploy((Peer(0, "a", 1), Peer(1, "b", 2)), {"flights": [{"id": "x"}]}, {"operators": {}}, True),
    Start(),
    Trigger(7, "stop-savepoint", "drain", "chk-7", 1_700_000_000_000, ((0, 0), (0, 1))),
    Abort(7),
    Complete(7, 2, 31),
    Durable(7, True),
    Commit(7, 2, 33),
    Quarantine("quarantine", WithheldRange(5, (6, 7), "anna", "wrong rates")),
    PauseSources(True),
    AlignSources({"g": GroupWatermark(MIN_WATERMARK, (0, 1), MAX_WATERMARK), "h": GroupWatermark(1, None, 2)}),
    AssignSplits((0, 1), ({"split_id": "f", "position": None},), True),
    LetFinish(),
    Cancel(),
    Hello("a", 1, 4711, "worker-1", "3.11.7"),
    Deployed(),
    SubtaskRunning((0, 1)),
    SubtaskEndedData((0, 1), True),
    SubtaskFinished((0, 1), {"bad_records": 1}),
    Acknowledged((0, 1), 7, "r000001", {"op": {"size_bytes": 3}}, {"sync_ms": 0.5}, True, {"bad_records": 1}),
    Declined((0, 1), 7, "r000001", "a newer barrier came", "alignment_aborted"),
    SubtaskCommitted((0, 1), 7),
    SourceWatermarks((SourceWatermark((0, 1), "g", MAX_WATERMARK, True),)),
    SplitsHeld((0, 1), 2, 5, 7, 6),
    Heartbeat(2**33, 12, SlotMetrics(5, (SubtaskMetrics((0, 1), 3, 4, 5, ("op",), SOURCE, {"op": {"late": 2}}),))),
    Failed("no such column", "op", 1, "Traceback", "user_code", True),
    Over(),
)


def test_there_is_an_example_of_every_message() -> None:
    assert sorted(type(one).__name__ for one in EXAMPLES) == sorted(cls.__name__ for cls in typing.get_args(Message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_sent(message: Message) -> None:
    assert received(message) == message


def test_a_changed_message_has_a_new_version() -> None:
    """Change WIRE_VERSION with any message, and add a golden file: driver and slots compare the version."""
    assert json.loads(GOLDEN.read_text()) == json.loads(json.dumps([message_document(one) for one in EXAMPLES]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"type": "Farewell"}, "unknown type"),
        ({"type": None}, "unknown type"),
        (
            {"checkpoint_id": None},
            "Trigger between driver and slot has wrong fields.*'checkpoint_id' has the value None",
        ),
        ({"checkpoint_id": True}, "'checkpoint_id' has the value True"),
        ({"kind": "snapshot"}, "'kind' has the value 'snapshot'"),
        ({"subtasks": [[0, 0, 0]]}, r"'subtasks' has the value \[0, 0, 0\]"),
        ({"subtasks": [["0", 0]]}, "'subtasks' has the value '0'"),
    ],
)
def test_a_damaged_message_is_refused_with_the_field(changes: dict[str, Any], said: str) -> None:
    document = {**json.loads(json.dumps(message_document(EXAMPLES[2]))), **changes}
    with pytest.raises(ProtocolError, match=said):
        message_of(document)


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(ProtocolError, match="field 'checkpoint_id' is missing"):
        message_of({"type": "Abort"})
