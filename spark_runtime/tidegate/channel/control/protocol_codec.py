"""Convert control messages to JSON documents and back, with a check of field types."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from tidegate.channel.control.protocol import DriverMessage, SlotMessage
from tidegate.channel.failures import ProtocolError
from tidegate.jobs.codec import build, plain

Message: TypeAlias = DriverMessage | SlotMessage

M = TypeVar("M", bound=Message)

_TYPE = "type"
_CLASSES: Mapping[str, type] = {cls.__name__: cls for cls in typing.get_args(Message)}


def message_document(message: Message) -> dict[str, Any]:
    """Return the message's fields, with the name of its class under `type`."""
    return {_TYPE: type(message).__name__, **plain(message)}


def message_of(document: Any) -> Message:
    """Return the message of a document that may come from JSON. Inverse of `message_document`.

    Raises:
        ProtocolError: the document is not a message, or a field is missing or has a wrong type.
    """
    kind = _CLASSES.get(str(document.get(_TYPE))) if isinstance(document, dict) else None
    if kind is None:
        raise ProtocolError("internal error: a message between driver and slot has an unknown type")
    try:
        message: Message = build(kind, document)
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            f"internal error: a message {kind.__name__} between driver and slot has wrong fields", cause=str(error)
        ) from error
    return message


def received(message: M) -> M:
    """Return the message as its receiver sees it, for connections that do not leave the process."""
    arrived = message_of(json.loads(json.dumps(message_document(message))))
    assert isinstance(arrived, type(message))
    return arrived
