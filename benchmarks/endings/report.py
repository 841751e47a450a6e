"""Creates the tables of `docs/endings.md` from the results of `scenarios`. Pure: text from facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BEGIN = "<!-- figures: written by `make flink-endings` -->"
END = "<!-- end of figures -->"
COLUMNS = (
    "case",
    "system",
    "rows in",
    "rows emitted",
    "rows (windows) kept",
    "windows emitted twice",
    "rows emitted twice",
    "rows lost",
    "notes",
)
CASES = (
    ("stop", "stop", False),
    ("restore after stop", "stop", True),
    ("drain", "drain", False),
    ("restore after drain", "drain", True),
    ("natural end", "natural", False),
    ("cancel", "cancel", False),
)
"""(name, end of the life, whether the case is evaluated after the restore)."""
Lives = Mapping[str, Sequence[Mapping[str, Any]]]
"""Lives by system, as `Life.facts` returns them."""


def tables(lives: Lives) -> list[str]:
    """Return both tables, each with its heading."""
    lines: list[str] = []
    for kind in ("event", "processing"):
        lines += [f"### Windows over {kind} time", "", *table(kind, lives), ""]
    return lines[:-1]


def table(kind: str, lives: Lives) -> list[str]:
    """Return the six cases of one kind of windows, a line for each system. Raises KeyError if a life is missing."""
    lines = [_line(COLUMNS), _line("---" for _ in COLUMNS)]
    for case, end, restored in CASES:
        for system, all_lives in lives.items():
            life = {(life["kind"], life["end"]): life for life in all_lives}[kind, end]
            cells = _after_restore(life) if restored else _at_end(life)
            lines.append(_line([case, system, *map(str, cells)]))
            case = ""
    return lines


def _at_end(life: Mapping[str, Any]) -> tuple[int | str, ...]:
    now = life["at_end"]
    missing = set(now["given"]) - set(now["emitted"])
    kept = missing & set(life["restored"]["emitted"] if life["restored"] else ())
    lost = missing - kept
    besides = ""
    if life["end"] == "drain" and kept:
        besides = "open windows did not fire; only the savepoint contains them"
    elif lost:
        besides = (
            "the log reports the lost rows" if life["told"] else "no error; the log does not mention the lost rows"
        )
    return (
        len(now["given"]),
        len(now["emitted"]),
        f"{len(kept)} ({life['kept_windows']})",
        now["windows_twice"],
        len(now["rows_twice"]),
        len(lost),
        besides,
    )


def _after_restore(life: Mapping[str, Any]) -> tuple[int | str, ...]:
    now = life["restored"]
    lost = len(set(now["given"]) - set(now["emitted"]))
    besides = []
    if life["end"] == "drain":
        besides.append(
            "refused at first, restored with `allow_drained`" if life["refused"] else "restored without a check"
        )
    if life["ended_early"]:
        besides.append("the restored job ended at once, without reading the new rows")
    return (
        len(now["given"]),
        len(now["emitted"]),
        "-",
        now["windows_twice"],
        len(now["rows_twice"]),
        lost,
        "; ".join(besides),
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def put(document: str, lines: Sequence[str]) -> str:
    """Return the document with these lines between its two marks. Raises ValueError unless each mark occurs once."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in after:
        raise ValueError(f"the document needs the lines {BEGIN!r} and {END!r}, each once")
    return "\n".join([before + BEGIN, "", *lines, "", END + after])
