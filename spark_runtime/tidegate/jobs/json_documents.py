"""JSON documents that another process wrote: records, control messages, snapshots' metadata. Every reader of such a
document uses this module, which limits its size and the depth of its values.

A damaged or hostile document must end in an error of its reader, which names its place. Without a limit, a large file
takes several times its size of memory, and deeply nested lists end the reader with Python's RecursionError.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from tidegate.errors import RecordError

MAX_RECORD_BYTES = 64 * 2**20
"""Longest record, in bytes. The longest ones that drivers write are snapshots of the decision log: 256 entries, each
with the metrics of up to 64 subtasks, which are some 5 MiB. Parsing takes about four times the length in memory."""
MAX_METADATA_BYTES = 2**30
"""Longest `_metadata` of a snapshot, in bytes. It holds the small states of all subtasks and the positions of all
splits: a source with a million files has some 300 MB of them."""
MAX_DEPTH = 200
"""Most lists and objects inside each other. Records have fewer than 20 levels; the values of users, such as arguments,
have few more. Functions that recurse over a value use up to three Python frames a level, of 1,000."""


class JsonDocumentError(ValueError):
    """The text is not JSON, or exceeds a limit. The message says why."""


class Readable(Protocol):
    """The part of a Store that a reader needs."""

    def read_range(self, path: str, offset: int, size_bytes: int) -> bytes:
        """See `Store.read_range`."""


def parse_json(text: str | bytes, *, max_bytes: int = MAX_RECORD_BYTES) -> Any:
    """Return the value of a JSON document.

    Args:
        max_bytes: longest document; for a str its characters are counted.

    Raises:
        JsonDocumentError: a ValueError: the text is not JSON in UTF-8, is too long, or is nested too deeply.
    """
    if len(text) > max_bytes:
        raise JsonDocumentError(f"the document has more than {max_bytes:,} bytes")
    too_deep = f"the document has more than {MAX_DEPTH} lists and objects inside each other"
    try:
        # Decoded here, because `json` also reads UTF-16, which no writer uses.
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
    except RecursionError:
        raise JsonDocumentError(too_deep) from None
    except ValueError as error:  # also a UnicodeDecodeError
        raise JsonDocumentError(f"the content is not JSON ({error})") from error
    if not _is_shallow(text) and _exceeds_depth(value):
        raise JsonDocumentError(too_deep)
    return value


def read_bounded(store: Readable, path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Return the content of an object, which is a document. Reads no more than the limit into memory.

    Raises:
        RecordError: the object is longer than `max_bytes`.
        NotFoundError, StoreError: as `Store.read`.
    """
    data = store.read_range(path, 0, max_bytes + 1)
    if len(data) > max_bytes:
        raise too_long_error(path, max_bytes)
    return data


def read_metadata_document(store: Readable, path: str) -> Any:
    """Return the document of the `_metadata` of a snapshot. Raises JsonDocumentError, and the errors of
    `read_bounded`."""
    return parse_json(read_bounded(store, path, max_bytes=MAX_METADATA_BYTES), max_bytes=MAX_METADATA_BYTES)


def too_long_error(path: str, max_bytes: int) -> RecordError:
    """Return the error for a document that is longer than a limit."""
    return RecordError(
        "a document of the job directory is too long to be read",
        where=path,
        cause=f"it has more than {max_bytes:,} bytes, and tidegate writes no longer one",
        remedy="A program other than tidegate may have changed this file. Restore it from a backup, or delete it if "
        "the job does not need it",
    )


def _is_shallow(text: str | bytes) -> bool:
    """Return whether the text has too few brackets to be nested too deeply. True for most records, and fast."""
    if isinstance(text, str):
        return text.count("[") + text.count("{") <= MAX_DEPTH
    return text.count(b"[") + text.count(b"{") <= MAX_DEPTH


def _exceeds_depth(value: Any) -> bool:
    """Return whether lists and objects are nested too deeply. Visits one level after the other, without recursion."""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = [
            part
            for whole in level
            for part in (whole.values() if isinstance(whole, dict) else whole)
            if isinstance(part, list | dict)
        ]
    return bool(level)
