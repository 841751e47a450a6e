"""The decision log: the only linearizable part of a job (S2.1, S9.2).

Entries are numbered from 1 without gaps. Each is created exclusively, so an append is a compare-and-swap on the next
number. A generation begins with a fence entry: an older driver then finds its next number in use, and stops. Entries
are never deleted, even when a snapshot of the log contains them: a late zombie must find its number in use.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from tidegate.errors import (
    AlreadyExistsError,
    FencedError,
    NotFoundError,
    RecordError,
    StoreError,
    UnclearAnswerError,
)
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision, DecisionKind, encode, from_document, read_record, to_document
from tidegate.jobs.stores.store import Store

logger = logging.getLogger("tidegate.jobs")

SNAPSHOT_ENTRIES = 256
"""Entries in one snapshot of the log. A new reader fetches a log of n entries with n/256 requests, and at most 255
single entries."""
MAX_APPEND_CONFLICTS = 64
"""How many fences of other drivers a driver accepts before its own, until it gives up."""
FIRST_PAUSE_S = 0.1
"""Pause before the second attempt at an append whose result is unknown, in seconds. It doubles with each attempt."""
LONGEST_PAUSE_S = 5.0
"""Longest pause between two attempts, in seconds: so long does a driver wait at most after the store answers again."""
CLIENT_TIMEOUT_S = 10.0
"""How long a client repeats an append without a clear answer, in seconds. Somebody waits for it and can repeat the
command. Drivers use the option `store_timeout`."""


@dataclass(frozen=True, slots=True)
class DecisionSnapshot:
    """Consecutive entries of the log in one object, for faster reading.

    Attributes:
        first: number of the first entry.
        entries: documents of the entries, in order.
    """

    RECORD: ClassVar[str] = "decision_snapshot"
    VERSION: ClassVar[int] = 1

    first: int
    entries: tuple[Mapping[str, Any], ...]


class DecisionLog:
    """Reads the log of one job, fetching each entry once, and begins generations. Thread-safe. Methods block on the
    store."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        now_iso: Callable[[], str],
        nonce: Callable[[], str],
        pause: Callable[[float], None] = time.sleep,
        lock: AbstractContextManager[Any] | None = None,
        timeout_s: float = CLIENT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the log; reads nothing.

        Args:
            now_iso: returns the time, for entries.
            nonce: returns a new text at each call, unique across processes.
            pause: waits before a repeated append; receives seconds.
            lock: a reentrant lock instead of a thread lock.
            timeout_s: how long an append is repeated while the store does not report whether it wrote the entry. The
                last attempt begins at the end of this time.
            clock: steady time in seconds.
        """
        self._store = store
        self._layout = layout
        self._now_iso = now_iso
        self._nonce = nonce
        self._pause = pause
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = lock if lock is not None else threading.RLock()
        self._entries: tuple[Decision, ...] = ()
        self._opened = False
        self._without_snapshot: list[int] = []

    def read(self) -> tuple[Decision, ...]:
        """Return all entries, oldest first. Costs one request when there is no new entry.

        Raises:
            RecordError: an entry is damaged, is missing, or contradicts an earlier entry.
        """
        with self._lock:
            listed = 0
            # Only the first read lists the folder, to find snapshots and
            # gaps. Later reads just try the next number: one request.
            if not self._opened:
                names = self._store.list(self._layout.decisions)
                listed = max(self._layout.decision_numbers(names), default=0)
                self._read_snapshots(set(self._layout.decision_snapshot_numbers(names)), listed)
            fresh: list[Decision] = []
            while (entry := self._fetch(len(self._entries) + len(fresh) + 1)) is not None:
                fresh.append(entry)
            self._extend(fresh)
            if listed > len(self._entries):
                raise self._contradiction(
                    len(self._entries) + 1, f"this entry is missing, but the later entry {listed} exists"
                )
            # Only after a read without errors, so that a read that failed lists the folder again.
            self._opened = True
            return self._entries

    def begin_generation(self, *, spec: int, launch: int, only_commits: bool = False) -> GenerationLog:
        """Begin a generation: append a fence with the next generation number.

        Args:
            spec: submission that the driver runs.
            launch: attempt number of the driver's launch.
            only_commits: the driver runs nothing and only commits, so the job's status does not change (S7.8).

        Raises:
            FencedError: a driver of a newer submission, or of a newer launch of this submission, has begun already.
            UnclearAnswerError: the store does not report whether it wrote the fence. A fence may exist whose driver
                has ended.
            StoreError: the log cannot be read, or too many drivers start at the same time.
        """
        for _ in range(MAX_APPEND_CONFLICTS):
            entries = self.read()
            last = last_fence(entries)
            if last is not None and (last.data["spec"], last.data["launch"]) > (spec, launch):
                raise fenced_error(self._layout.job_id, f"launch {launch} of submission {spec}", last)
            generation = (last.generation if last is not None else 0) + 1
            # Another driver has appended meanwhile. The next round reads its entry, which may be a newer fence.
            with suppress(AlreadyExistsError):
                data = {"spec": spec, "launch": launch, **({"only_commits": True} if only_commits else {})}
                self._append(len(entries) + 1, "fence", generation, "", data)
                while self._without_snapshot:
                    self._write_snapshot(self._without_snapshot.pop())
                return GenerationLog(self, self._layout.job_id, generation)
        raise StoreError(
            f"other drivers of job {self._layout.job_id} keep starting, so this driver cannot begin",
            where=self._layout.decisions,
            remedy="Look for a second DAG run, CLI session or agent that starts drivers of the job, and end it",
        )

    def _read_snapshots(self, ends: set[int], listed: int) -> None:
        """Load the entries up to `listed` that snapshots contain. Load single entries where a snapshot is missing or
        damaged, and remember that snapshot as missing."""
        if len(self._entries) % SNAPSHOT_ENTRIES:
            return  # an earlier read stopped at a broken entry here
        while (end := len(self._entries) + SNAPSHOT_ENTRIES) <= listed:
            entries = self._snapshot(end) if end in ends else None
            if entries is None:
                self._without_snapshot.append(end)
                originals = [self._fetch(number) for number in range(len(self._entries) + 1, end + 1)]
                entries = [entry for entry in originals if entry is not None]
            self._extend(entries)
            if len(self._entries) < end:
                return

    def _snapshot(self, end: int) -> list[Decision] | None:
        path = self._layout.decision_snapshot(end)
        with suppress(NotFoundError, RecordError):
            snapshot = read_record(self._store, path, DecisionSnapshot)
            if snapshot.first + SNAPSHOT_ENTRIES - 1 == end and len(snapshot.entries) == SNAPSHOT_ENTRIES:
                return [from_document(entry, Decision, path) for entry in snapshot.entries]
        return None

    def _fetch(self, number: int) -> Decision | None:
        path = self._layout.decision(number)
        try:
            return read_record(self._store, path, Decision)
        except NotFoundError:
            return None

    def _extend(self, fresh: Sequence[Decision]) -> None:
        number = len(self._entries)
        generation = self._entries[-1].generation if self._entries else 0
        for entry in fresh:
            number += 1
            problem = reason_it_cannot_follow(entry, number, generation)
            if problem is not None:
                raise self._contradiction(number, problem)
            generation = entry.generation
        self._entries += tuple(fresh)

    def _append(
        self, number: int, kind: DecisionKind, generation: int, run_id: str, data: Mapping[str, Any]
    ) -> Decision:
        """Write entry `number` by compare-and-swap (S9.2).

        An own entry from an earlier attempt with an unknown result counts as success. Raises AlreadyExistsError when
        another driver's entry exists, UnclearAnswerError when the result of every attempt is unknown.
        """
        # Created once for all attempts: by its nonce, `_create` recognises an entry that an earlier attempt wrote.
        entry = Decision(number, kind, generation, run_id, self._now_iso(), self._nonce(), dict(data))
        problem = reason_it_cannot_follow(
            entry, len(self._entries) + 1, self._entries[-1].generation if self._entries else 0
        )
        assert problem is None, problem
        self._create_with_answer(entry)
        # A new tuple, not a list that grows: `GenerationLog.decisions` returns it to other threads without the lock.
        self._entries += (entry,)
        if number % SNAPSHOT_ENTRIES == 0:
            self._write_snapshot(number)
        return entry

    def _create_with_answer(self, entry: Decision) -> None:
        """Create the entry; repeat that until its result is known, or the timeout has passed. Raises as `_append`."""
        path, payload = self._layout.decision(entry.number), encode(entry)
        began_s, pause_s, attempts = self._clock(), FIRST_PAUSE_S, 1
        while True:
            try:
                self._create(path, payload, entry)
            except (AlreadyExistsError, RecordError):
                # Both are StoreErrors, but their result is clear, so that another attempt would not change it.
                raise
            except StoreError as error:
                waited_s = self._clock() - began_s
                if waited_s >= self._timeout_s:
                    raise self._unclear(entry, path, waited_s, str(error)) from error
                if attempts == 1:
                    logger.warning(
                        "the store does not report whether it wrote entry %d (%s) of the decision log; it is tried "
                        "again for up to %g s, and nothing is decided meanwhile: %s",
                        entry.number,
                        entry.kind,
                        self._timeout_s,
                        error,
                    )
            else:
                if attempts > 1:
                    logger.warning(
                        "entry %d (%s) of the decision log is written, after %d attempts in %.1f s",
                        entry.number,
                        entry.kind,
                        attempts,
                        self._clock() - began_s,
                    )
                return
            # At least the first pause, so that rounding cannot make the rest of the time many tiny pauses.
            self._pause(min(pause_s, max(FIRST_PAUSE_S, self._timeout_s - waited_s)))
            pause_s, attempts = min(2 * pause_s, LONGEST_PAUSE_S), attempts + 1

    def _unclear(self, entry: Decision, path: str, waited_s: float, cause: str) -> UnclearAnswerError:
        return UnclearAnswerError(
            f"the store did not report in {waited_s:.0f} s whether it wrote entry {entry.number} ({entry.kind!r}) of "
            "the decision log",
            where=path,
            cause=cause,
            remedy="No data is lost, but this driver ends. Restore the job from its latest recovery point: the new "
            "driver reads from the log whether the entry exists. To wait longer for the store, raise store_timeout",
        )

    def _create(self, path: str, payload: bytes, entry: Decision) -> None:
        """Create the entry. AlreadyExistsError: another entry exists. Other StoreError: the result is unknown."""
        try:
            self._store.create(path, payload)
        except AlreadyExistsError:
            found = self._fetch(entry.number)
            if found is None or found.nonce != entry.nonce:
                raise

    def _write_snapshot(self, end: int) -> None:
        """Write a snapshot of the log, for faster readers. A failure is ignored: the next driver writes it again."""
        entries = self._entries[end - SNAPSHOT_ENTRIES : end]
        snapshot = DecisionSnapshot(entries[0].number, tuple(to_document(entry) for entry in entries))
        with suppress(StoreError):
            self._store.create(self._layout.decision_snapshot(end), encode(snapshot))

    def _contradiction(self, number: int, problem: str) -> RecordError:
        return RecordError(
            f"entry {number} of the decision log contradicts the entries before it",
            where=self._layout.decision(number),
            cause=problem,
            remedy="A program other than tidegate may have changed this file. Restore it from a backup, or use another "
            "job id",
        )


class GenerationLog:
    """The log of one generation's driver. Thread-safe. Methods block on the store.

    Attributes:
        generation: number of the generation, the fencing token.
    """

    def __init__(self, log: DecisionLog, job_id: str, generation: int) -> None:
        self._log = log
        self._job_id = job_id
        self._unclear: UnclearAnswerError | None = None
        self.generation = generation

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All entries up to the newest that this driver has read or written."""
        return self._log._entries

    def append(self, kind: str, data: Mapping[str, Any], run_id: str = "") -> Decision:
        """Append an entry. It is durable on return. The decision is made when, and only when, this method returns.

        Args:
            kind: a `DecisionKind` other than fence.
            data: JSON values. Use lists instead of tuples, and text keys, so that this driver has the same values as
                readers. The mapping is kept: do not change it afterwards.
            run_id: run concerned.

        Raises:
            FencedError: a newer generation exists. Nothing was appended, and the driver must do nothing more.
            RecordError: `data` is not JSON, or an entry exists that cannot exist.
            UnclearAnswerError: the result is still unknown after the timeout. The entry may exist. The driver must end,
                and every later append or check raises the same error.
        """
        log = self._log
        assert kind != "fence", "only begin_generation appends a fence"
        with log._lock:
            self._refuse_if_fenced(log._entries)
            number = len(log._entries) + 1
            try:
                return log._append(number, cast(DecisionKind, kind), self.generation, run_id, data)
            except UnclearAnswerError as error:
                self._unclear = error
                raise
            except AlreadyExistsError:
                # Normally a newer driver's fence has this number, and
                # `check` raises FencedError. Otherwise the log is damaged.
                self.check()
                raise log._contradiction(
                    number, f"the entry exists already, but generation {self.generation} did not write it"
                ) from None

    def check(self) -> None:
        """Raise FencedError when a newer generation exists, UnclearAnswerError after an append with unknown result.

        Call it before an action that appends no entry. An append needs no check before it.
        """
        self._refuse_if_fenced(self._log.read())

    def check_quietly(self) -> StoreError | None:
        """Run `check` for a periodic test: return a store's error instead of raising it.

        RecordError is raised, because nothing can be appended after an entry that cannot be read.
        """
        try:
            self.check()
        except (RecordError, UnclearAnswerError):
            raise
        except StoreError as error:
            return error
        return None

    def _refuse_if_fenced(self, entries: Sequence[Decision]) -> None:
        """Raise when this driver may not append: it has read a newer fence, or the result of an append is unknown.

        After a newer fence the next number would be free, so the compare-and-swap alone would not stop the driver.
        """
        if self._unclear is not None:
            raise self._unclear
        if entries[-1].generation > self.generation:
            last = last_fence(entries)
            assert last is not None, "a generation begins with a fence"
            raise fenced_error(self._job_id, f"generation {self.generation}", last)


def last_fence(entries: Sequence[Decision]) -> Decision | None:
    """Return the entry that began the current generation; None when there is none."""
    return next((entry for entry in reversed(entries) if entry.kind == "fence"), None)


def reason_it_cannot_follow(entry: Decision, number: int, generation: int) -> str | None:
    """Return why `entry` cannot follow entry `number - 1` of `generation`; None when it can. Checked before each write
    and after each read."""
    if entry.number != number:
        return f"the entry has the number {entry.number}"
    if entry.kind == "fence":
        if entry.generation != generation + 1:
            return f"the entry begins generation {entry.generation} after generation {generation}"
        fence = (entry.data.get("spec"), entry.data.get("launch"))
        if not all(isinstance(value, int) for value in fence):
            return "the entry begins a generation, but names no submission and launch"
    elif entry.generation != generation:
        return f"generation {entry.generation} wrote the entry, but the current generation is {generation}"
    return None


def fenced_error(job_id: str, who: str, fence: Decision) -> FencedError:
    """Return the error for a driver or launch `who` that finds the newer `fence`."""
    return FencedError(
        f"{who} was replaced by a newer driver",
        where=f"job {job_id}",
        cause=f"generation {fence.generation}, of submission {fence.data['spec']}, launch {fence.data['launch']}, "
        f"began at {fence.at}",
        remedy="Do nothing: the newer driver runs the job",
    )
