"""The six cases, played on either system: the committed output of each, as counts of rows.

A *life* is a job that receives rows, is ended in one way, and, if it left a snapshot, is restored from it and receives
more rows. Lives are the same for both systems. Each system supplies a `System`; this module does not depend on which.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from workload import END_KEY, PROCESSING_WINDOW_S, Account, Emitted, account, file_rows, give

Kind = Literal["event", "processing"]
End = Literal["stop", "drain", "natural", "cancel"]
PATIENCE_S = 600.0
POLL_S = 0.2
SETTLED_S = 1.5
"""Seconds after the last row by which every watermark has reached all operators; checked by the result rows."""
FRESH_S = 4.0
"""A processing-time window that started longer ago than this gets no rows; the next window does. Seconds."""
ATTEMPTS = 3
ENDS: tuple[End, ...] = ("stop", "drain", "natural", "cancel")
FILE_ROWS = {number: len(file_rows(number)) for number in (1, 2, 3)}
KINDS: tuple[Kind, ...] = ("event", "processing")


class Run(Protocol):
    """A running job."""

    def ended(self) -> bool:
        """Return whether it has ended by itself."""

    def rows_at_window(self) -> int:
        """Return how many rows of this run have reached the window operator."""

    def checkpoint(self) -> tuple[int, str]:
        """Return number and place of the newest completed checkpoint."""

    def stop(self, *, drain: bool) -> str:
        """Stop with a savepoint; return its place."""

    def cancel(self) -> str:
        """Cancel; return the place of the newest checkpoint."""


class System(Protocol):
    """A way to run the job."""

    def now_s(self) -> float:
        """Return the time of the job's clock, Unix seconds."""

    def pause(self, seconds: float) -> None:
        """Let time pass."""

    def start(self, kind: Kind, work: Path, *, bounded: bool, restore: str | None, allow_drained: bool) -> Run:
        """Start the job, which reads `work`/in."""

    def refusal(self, work: Path, restore: str) -> str:
        """Return why the snapshot of a drain cannot be restored without an option; empty if it can."""

    def output(self, work: Path) -> list[Emitted]:
        """Return all committed result rows."""

    def warnings(self, work: Path) -> list[str]:
        """Return log lines of the job, at level WARN or above, about windows, timers or dropped rows."""

    def leave(self, work: Path) -> None:
        """End what is still running."""


@dataclass(frozen=True)
class Life:
    """Result of a job's life.

    Attributes:
        at_end: after its end, with files 1 and 2.
        restored: after the restored job had read file 3, all its windows had closed, and it was stopped; None if there
            is no snapshot.
        kept_windows: windows that were open at the end and that the restored job emitted.
        refused: why the snapshot was not restored at the first attempt; empty if it was.
        ended_early: the restored job ended by itself, so that file 3 was not read.
        told: log lines of the job about windows or timers, if rows are missing after a natural end.
    """

    kind: Kind
    end: End
    at_end: Account
    restored: Account | None = None
    kept_windows: int = 0
    refused: str = ""
    ended_early: bool = False
    told: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return the facts, JSON-able."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value


class WallClock:
    """The clock of systems in processes of their own."""

    def now_s(self) -> float:
        """Return the machine's time."""
        return time.time()

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


def until(system: System, condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds. Raises TimeoutError after PATIENCE_S."""
    by_s = system.now_s() + PATIENCE_S
    while not condition():
        if system.now_s() > by_s:
            raise TimeoutError(f"waited {PATIENCE_S} s for {what}")
        system.pause(POLL_S)


class MissedWindowError(Exception):
    """A processing-time window closed by the clock before the job had been ended: the machine was too slow."""


def live(system: System, kind: Kind, end: End, work: Path) -> Life:
    """Play one life below the empty folder `work`."""
    inputs = work / "in"
    inputs.mkdir(parents=True)
    if end == "natural":
        give(inputs, 1, 2)  # as one file: a bounded read of several files has no order, so rows would be late
        run = system.start(kind, work, bounded=True, restore=None, allow_drained=False)
        until(system, run.ended, "the job's end")
        at_end = account((1, 2), system.output(work))
        return Life(kind, end, at_end, told=tuple(system.warnings(work)) if at_end.missing else ())
    run = system.start(kind, work, bounded=False, restore=None, allow_drained=False)
    until(system, lambda: run.ended() or run.checkpoint()[0] > 0, "the first checkpoint")
    _bring(system, run, kind, inputs, 1, FILE_ROWS[1])
    _closed(system, kind)
    window_end_s = _bring(system, run, kind, inputs, 2, FILE_ROWS[1] + FILE_ROWS[2])
    _checkpointed(system, run)
    place = run.cancel() if end == "cancel" else run.stop(drain=end == "drain")
    if kind == "processing" and system.now_s() > window_end_s:
        raise MissedWindowError(f"the {end} was over {system.now_s() - window_end_s:.1f} s after the window")
    at_end = account((1, 2), system.output(work))
    refused = system.refusal(work, place) if end == "drain" else ""
    if kind == "processing":
        system.pause(max(0.0, window_end_s - system.now_s()))
    return _live_on(system, Life(kind, end, at_end, refused=refused), work, place)


def _live_on(system: System, life: Life, work: Path, place: str) -> Life:
    """Restore the job and give it file 3."""
    run = system.start(life.kind, work, bounded=False, restore=place, allow_drained=life.end == "drain")
    until(system, lambda: run.ended() or run.checkpoint()[0] > 0, "the restored job's first checkpoint")
    ended_early = run.ended()
    if ended_early:
        give(work / "in", 3)
    else:
        _bring(system, run, life.kind, work / "in", 3, FILE_ROWS[3])
        _closed(system, life.kind)
        _checkpointed(system, run)
        run.stop(drain=False)
    results = system.output(work)
    still_open = [result for result in results if result.key != END_KEY and result.rows & life.at_end.missing]
    return replace(life, restored=account((1, 2, 3), results), kept_windows=len(still_open), ended_early=ended_early)


def _bring(system: System, run: Run, kind: Kind, inputs: Path, number: int, rows: int) -> float:
    """Add a file at the start of a window, and wait until `rows` rows of the run are in windows.

    Returns:
        end of the processing-time window that they are in, Unix seconds.
    """
    if kind == "processing" and _left_s(system) < PROCESSING_WINDOW_S - FRESH_S:
        system.pause(_left_s(system) + 0.1)
    window_end_s = system.now_s() + _left_s(system)
    give(inputs, number)
    until(system, lambda: run.rows_at_window() >= rows, f"{rows} rows, with file {number}, to be in windows")
    if kind == "processing" and system.now_s() > window_end_s:
        raise MissedWindowError(f"the rows of file {number} took longer than a window")
    system.pause(SETTLED_S)
    return window_end_s


def _closed(system: System, kind: Kind) -> None:
    """Wait until the clock has closed the processing-time windows."""
    if kind == "processing":
        system.pause(_left_s(system) + SETTLED_S)


def _checkpointed(system: System, run: Run) -> None:
    """Wait for a checkpoint that started after this call."""
    seen = run.checkpoint()[0]
    until(system, lambda: run.checkpoint()[0] >= seen + 2, "two checkpoints more")


def _left_s(system: System) -> float:
    """Return the seconds to the end of the current processing-time window."""
    return PROCESSING_WINDOW_S - system.now_s() % PROCESSING_WINDOW_S


def play(system: System, version: str, folder: Path, ends: Sequence[End] = ENDS, kinds: Sequence[Kind] = KINDS) -> None:
    """Play all lives that are missing in `folder`/lives.json, each in a folder of its own, and add them to the file."""
    book = folder / "lives.json"
    told = json.loads(book.read_text(encoding="utf-8"))["lives"] if book.exists() else []
    known = {(life["kind"], life["end"]) for life in told}
    for kind in kinds:
        for end in ends:
            if (kind, end) not in known:
                told.append(_live_in_time(system, kind, end, folder).facts())
                book.write_text(json.dumps({"version": version, "lives": told}), encoding="utf-8")


def _live_in_time(system: System, kind: Kind, end: End, folder: Path) -> Life:
    """Play a life; repeat it if its window was missed."""
    for _ in range(ATTEMPTS):
        work = Path(tempfile.mkdtemp(prefix=f"{kind}-{end}-", dir=folder))
        try:
            life = live(system, kind, end, work)
        except MissedWindowError as missed:
            print(f"{kind}, {end}: once more: {missed}", file=sys.stderr)
            continue
        finally:
            system.leave(work)
        print(f"{kind}, {end}: {life.facts()}", file=sys.stderr)
        return life
    raise MissedWindowError(f"{kind}, {end}: {ATTEMPTS} attempts; let the machine do nothing else")
