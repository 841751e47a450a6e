"""Commit messages as documents: what survives, and what is refused when it is stored."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from tidegate.connectors.pyspark.message_documents import message_document, message_of
from tidegate.errors import DataError, SnapshotError


@dataclass(frozen=True)
class Part:
    name: str
    size: int


@dataclass
class Message(WriterCommitMessage):
    value: Any
    more: Any = None


@dataclass(frozen=True, slots=True)
class Slotted(WriterCommitMessage):
    value: Any


class Plain(WriterCommitMessage):
    """Has attributes, and is no dataclass."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and vars(self) == vars(other)


@dataclass
class Counted(WriterCommitMessage):
    """Its constructor does more than store."""

    rows: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.rows


class Own(WriterCommitMessage):
    def __reduce__(self) -> Any:
        return Own, ()


class Slots(WriterCommitMessage):
    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name = "a"


class OneSlot:
    __slots__ = "name"


class Mixed(OneSlot, WriterCommitMessage):
    """Has a `__dict__` besides the slot."""

    def __init__(self) -> None:
        self.name, self.more = "a", 1


@dataclass
class FieldsAndSlot(OneSlot, WriterCommitMessage):
    rows: int = 1


class DictMessage(WriterCommitMessage, dict[str, int]):
    pass


class ListMessage(list[int], WriterCommitMessage):
    pass


class ErrorMessage(ValueError, WriterCommitMessage):
    pass


@dataclass
class TextPart(str):
    size: int = 1


class Color(enum.IntEnum):
    RED = 1


def stored(message: Any) -> Any:
    return message_of(json.loads(json.dumps(message_document(message, "here"))), "here")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**70,
        -(10**5000),
        2**8192,
        -0.0,
        1e300,
        math.inf,
        "\u00e4\x00",
        b"\x00\xff",
        [],
        [1, [2.5, None]],
        (1, (b"x", "y")),
        {"a": 1, "object": {"bytes": [1]}},
        {(1, "x"): [b"y"], 2: {}},
        Part("a", 3),
        [Part("a", 3), {"b": (Part("c", 4),)}],
    ],
    ids=lambda value: repr(value) if not isinstance(value, int) else f"{value.bit_length()} bits",
)
def test_a_value_survives_with_its_type(value: Any) -> None:
    for message in (Message(value), Slotted(value), Plain(value)):
        found = stored(message)
        assert type(found) is type(message) and found == message
        if type(value) is not int:  # Python refuses to show so many digits
            assert repr(found.value) == repr(value), "1 and True, 0.0 and -0.0 are equal"
        assert type(found.value) is type(value)


def test_nan_survives() -> None:
    assert math.isnan(stored(Message(math.nan)).value)


def test_the_constructor_does_not_run_again_and_a_message_may_be_empty() -> None:
    message = Counted(2)
    message.rows = 5
    assert stored(message) == message and stored(message).double == 4
    assert type(stored(WriterCommitMessage())) is WriterCommitMessage


def _local() -> Any:
    @dataclass
    class Local(WriterCommitMessage):
        n: int

    return Local(1)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (None, "it returned None"),
        ({"rows": 1}, "it returned a dict"),
        (Part("a", 1), "it returned a Part"),
        (Message(date(2026, 1, 1)), "Message.value is a datetime.date"),
        (Message([1, {"k": np.int64(1)}]), r"Message.value\[1\]\['k'\] is a numpy.int64"),
        (Message({date(2026, 1, 1): 1}), "a key of Message.value is a datetime.date"),
        (Message(Color.RED), "Message.value is a .*Color"),
        (Message((object(),)), r"Message.value\[0\] is a builtins.object"),
        (Message({1, 2}), "Message.value is a builtins.set"),
        (Message(Message), "Message.value is a builtins.type"),
        (_local(), "cannot be imported by this name"),
        (Own(), "pickles itself, by __reduce"),
        (Slots(), "Slots of Slots has the slot 'name', and is no dataclass"),
        (Mixed(), "Mixed of Mixed has the slot 'name'"),
        (FieldsAndSlot(), "FieldsAndSlot of FieldsAndSlot has the slot 'name'"),
        (DictMessage(a=1), "DictMessage of DictMessage is a dict"),
        (ListMessage([1]), "ListMessage of ListMessage is a list"),
        (ErrorMessage("x"), "ErrorMessage of ErrorMessage (pickles itself|is a )"),
        (Message(TextPart(1)), "TextPart of Message.value (pickles itself|is a str)"),
    ],
)
def test_a_message_that_cannot_be_stored_is_refused(message: Any, why: str) -> None:
    with pytest.raises(DataError, match=f"here.*{why}"):
        message_document(message, "here")


def test_a_value_within_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(DataError, match="nested more than 32 deep"):
        message_document(Message(value), "here")


@pytest.mark.parametrize(
    "document",
    [
        {"object": "no.such.module:Message", "fields": {}},
        {"object": f"{__name__}:Gone", "fields": {}},
        {"object": "os:system", "fields": {}},
        {"object": "subprocess:Popen", "fields": {"args": ["true"]}},
        {"object": "os:environ", "fields": {}},
        {"set": [1]},
        {},
    ],
)
def test_a_document_of_another_class_or_kind_is_refused(document: Any) -> None:
    """Nobody who can write to the storage may choose an object of any class."""
    with pytest.raises(SnapshotError, match="a commit message of a Python data source cannot be read.*here"):
        message_of(document, "here")
