"""Log lines of the processes that tidegate starts: text with key=value context, or one JSON object per line.

Each package has one logger, `logging.getLogger("tidegate.<package>")`. A log call passes the context of one line with
`extra=context(...)`. The context of the whole process (job, generation, slot) is passed to `set_up` once.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
"""Values of the job option `log_format`."""
ContextValue = str | int
PACKAGE = "tidegate"
"""The parent logger of all packages. It logs from INFO on; libraries and the user's code log from WARNING on."""

_CONTEXT = "tidegate_context"
"""Attribute of a log record that holds its context. Other extra attributes of a record are not written."""
_SIGNS_TO_QUOTE = frozenset(' ="')


def context(
    *,
    job: str | None = None,
    generation: int | None = None,
    slot: int | None = None,
    command: str | None = None,
    checkpoint: int | None = None,
    operator: str | None = None,
    subtask: int | None = None,
) -> dict[str, Any]:
    """Return the `extra` of a log call. A line shows the values that are not None, in this order."""
    return {
        _CONTEXT: _known(
            job=job,
            generation=generation,
            slot=slot,
            command=command,
            checkpoint=checkpoint,
            operator=operator,
            subtask=subtask,
        )
    }


def set_up(
    log_format: LogFormat, *, job: str | None = None, generation: int | None = None, slot: int | None = None
) -> None:
    """Send all log records of this process to standard error, in this format and with this context.

    A second call replaces the first. Call it only in processes that tidegate starts: it configures the root logger.
    """
    process = _known(job=job, generation=generation, slot=slot)
    handler = StandardError()
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else TextFormatter(process))
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one, StandardError)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    logging.getLogger(PACKAGE).setLevel(logging.INFO)


def set_up_if_nobody_has(log_format: LogFormat) -> None:
    """Call `set_up` unless the user's process has configured logging already, as pytest does."""
    if not logging.getLogger(PACKAGE).hasHandlers():
        set_up(log_format)


class StandardError(logging.StreamHandler[TextIO]):
    """A handler that writes to the current `sys.stderr`, also when that is replaced after the set-up."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. See `logging.Handler.emit`."""
        self.stream = sys.stderr
        super().emit(record)


class TextFormatter(logging.Formatter):
    """Text format: `TIME LEVEL LOGGER: MESSAGE key=value ...`, then further lines of the message and the traceback."""

    def __init__(self, process: Mapping[str, ContextValue]) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. See `logging.Formatter.format`."""
        first, *more = record.getMessage().split("\n")
        pairs = [f"{name}={_quoted(value)}" for name, value in _context_of(record, self._process).items()]
        head = f"{_time(record)} {record.levelname} {record.name}: {first}"
        return "\n".join([" ".join([head, *pairs]), *more, *([trace] if (trace := _traceback(record)) else [])])


class JsonFormatter(logging.Formatter):
    """JSON format: one object with `time`, `level`, `logger`, `message`, the context, and `traceback` if any."""

    def __init__(self, process: Mapping[str, ContextValue]) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. See `logging.Formatter.format`."""
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_context_of(record, self._process),
        }
        if trace := _traceback(record):
            document["traceback"] = trace
        return json.dumps(document, ensure_ascii=False)


def _known(**values: ContextValue | None) -> dict[str, ContextValue]:
    return {name: value for name, value in values.items() if value is not None}


def _context_of(record: logging.LogRecord, process: Mapping[str, ContextValue]) -> dict[str, ContextValue]:
    """Merge the contexts of the process and the record; the record's values win. The order is as in `context`."""
    both: dict[str, Any] = {**process, **getattr(record, _CONTEXT, {})}
    ordered: dict[str, ContextValue] = context(**both)[_CONTEXT]
    return ordered


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _quoted(value: ContextValue) -> str:
    text = str(value)
    is_word = text != "" and text.isprintable() and not _SIGNS_TO_QUOTE & set(text)
    return text if is_word else json.dumps(text)
