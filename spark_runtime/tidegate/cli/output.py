"""Output of the verbs: results go to stdout, as text or as one JSON document; progress and errors go to stderr."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from tidegate.errors import TidegateError


class Output:
    """Writes text for users, or one JSON document for programs when `as_json` is set.

    The progress line is shown only without `as_json`, and only when standard error is a terminal. Every other output
    removes it first.

    Args:
        stdout, stderr: streams to write to.
        as_json: write one JSON document to stdout, and nothing else.
        columns: width of the terminal; None: ask the system.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO, *, as_json: bool = False, columns: int | None = None) -> None:
        self._stdout, self._stderr = stdout, stderr
        self.as_json = as_json
        self._columns = columns
        self._drawn = False

    @property
    def shows_progress(self) -> bool:
        """Return whether `progress` shows anything."""
        return not self.as_json and self._stderr.isatty()

    def progress(self, text: str) -> None:
        """Replace the progress line."""
        if not self.shows_progress:
            return
        width = self._columns or shutil.get_terminal_size().columns
        # One column stays free: a character in the last column would start a new line in some terminals.
        self._stderr.write("\r\x1b[K" + text[: max(1, width - 1)])
        self._stderr.flush()
        self._drawn = True

    def wipe(self) -> None:
        """Remove the progress line."""
        if self._drawn:
            self._stderr.write("\r\x1b[K")
            self._stderr.flush()
            self._drawn = False

    def print(self, text: str) -> None:
        """Write a line of text; nothing with `as_json`."""
        if not self.as_json:
            self.wipe()
            print(text, file=self._stdout, flush=True)

    def raw(self, text: str) -> None:
        """Write text unchanged, with or without `as_json`. For logs."""
        self.wipe()
        self._stdout.write(text)
        self._stdout.flush()

    def document(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write the result as JSON; nothing without `as_json`. Call it once."""
        if self.as_json:
            print(json.dumps(document, indent=2, sort_keys=False, default=str), file=self._stdout, flush=True)

    def note(self, text: str) -> None:
        """Write a line to stderr, beside the result."""
        self.wipe()
        print(text, file=self._stderr, flush=True)

    def error(self, error: TidegateError) -> None:
        """Write one error message to stderr; with `as_json` also as a document to stdout."""
        self.note(f"tidegate: {error}")
        self.document(
            {
                "error": {
                    "code": error.code,
                    "exit_code": error.exit_code,
                    "message": str(error),
                    "what": error.what,
                    "where": error.where,
                    "cause": error.cause,
                    "remedy": error.remedy,
                }
            }
        )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()) -> list[str]:
    """Format a table with aligned columns and two spaces between them; columns in `right` are aligned to the right."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        cells = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
