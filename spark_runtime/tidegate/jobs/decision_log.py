"""The decision log: the one linearizable thing of a job (S2.1, S9.2).

Entries are numbered from 1 without gaps and created exclusively, so an append is a compare-and-swap on the next number.
A driver's reign begins with a fence; from then on an older driver finds the number it wants taken and stops. Entries
are never deleted, not even when a snapshot of the log holds them: a late zombie must find its number taken.
"""

from __future__ import annotations

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
from tidegate.jobs.records import Decision, DecisionKind, decode, encode, from_document, to_document
from tidegate.jobs.stores.store import Store

SNAPSHOT_ENTRIES = 256
"""Entries in one snapshot of the log. A new reader fetches a log of n entries with n/256 requests and at most 255
more."""
MAX_APPEND_CONFLICTS = 64
"""Fences of other drivers that one driver lets go first before it gives up."""
MAX_AMBIGUOUS_WRITES = 5
"""Attempts at one append when the store gives no clear answer."""
FIRST_PAUSE_S = 0.1
"""Between the first two of them, seconds; doubles from one to the next."""


def retry_delay(attempt: int) -> None:
    """Sleep before `attempt`, from 1, at an append whose answer was unclear."""
    time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))


@dataclass(frozen=True, slots=True)
class DecisionSnapshot:
    """A run of entries in one object, to be read faster.

    Attributes:
        first: number of the first entry.
        entries: their documents, in order.
    """

    RECORD: ClassVar[str] = "decision_snapshot"
    VERSION: ClassVar[int] = 1

    first: int
    entries: tuple[Mapping[str, Any], ...]


class DecisionLog:
    """Reads the log of one job, fetching each entry once, and opens reigns. Safe from several threads; blocks on the
    store."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        now_iso: Callable[[], str],
        nonce: Callable[[], str],
        pause: Callable[[int], None] = retry_delay,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Args: now_iso: the time, for entries. nonce: a new text at every call, never the same in two processes.
        pause: waits before an append is tried again; told which attempt follows, from 1. lock: reentrant, in place of
        that of threads."""
        self._store = store
        self._layout = layout
        self._now_iso = now_iso
        self._nonce = nonce
        self._pause = pause
        self._lock = lock if lock is not None else threading.RLock()
        self._entries: tuple[Decision, ...] = ()
        self._opened = False
        self._without_snapshot: list[int] = []

    def read(self) -> tuple[Decision, ...]:
        """All entries, oldest first. When nothing is new this costs one request.

        Raises:
            RecordError: an entry is damaged, missing, or contradicts the ones before it.
        """
        with self._lock:
            listed = 0
            if not self._opened:
                names = self._store.list(self._layout.decisions)
                listed = max(self._layout.decision_numbers(names), default=0)
                self._read_snapshots(set(self._layout.decision_snapshot_numbers(names)), listed)
            fresh: list[Decision] = []
            while (entry := self._fetch(len(self._entries) + len(fresh) + 1)) is not None:
                fresh.append(entry)
            self._extend(fresh)
            if listed > len(self._entries):
                raise self._contradiction(len(self._entries) + 1, f"it is missing, while {listed} is there")
            self._opened = True
            return self._entries

    def begin_generation(self, *, spec: int, launch: int, only_commits: bool = False) -> GenerationLog:
        """Begin a reign: append a fence with the next generation.

        Args:
            spec: submission the driver runs.
            launch: its launch's attempt.
            only_commits: it runs nothing, so that the job's status stays what it is (S7.8).

        Raises:
            FencedError: a driver of a newer submission, or of a newer launch of this one, has begun already.
            UnclearAnswerError: the store gives no clear answer; a fence may be there, of a driver that does not live.
            StoreError: the log cannot be read, or too many drivers start at once.
        """
        for _ in range(MAX_APPEND_CONFLICTS):
            entries = self.read()
            last = last_fence(entries)
            if last is not None and (last.data["spec"], last.data["launch"]) > (spec, launch):
                raise fenced_error(self._layout.job_id, f"launch {launch} of submission {spec}", last)
            generation = (last.generation if last is not None else 0) + 1
            with suppress(AlreadyExistsError):
                data = {"spec": spec, "launch": launch, **({"only_commits": True} if only_commits else {})}
                self._append(len(entries) + 1, "fence", generation, "", data)
                while self._without_snapshot:
                    self._write_snapshot(self._without_snapshot.pop())
                return GenerationLog(self, self._layout.job_id, generation)
        raise StoreError(
            "other drivers keep fencing this one off",
            where=self._layout.decisions,
            remedy="Find out who starts drivers for this job over and over",
        )

    def _read_snapshots(self, ends: set[int], listed: int) -> None:
        """Take in the entries that snapshots hold, or should hold, up to entry `listed`; for a lost or damaged one, the
        originals."""
        if len(self._entries) % SNAPSHOT_ENTRIES:
            return  # an earlier read came to its end here, and found the log broken
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
            snapshot = decode(self._store.read(path), DecisionSnapshot, path)
            if snapshot.first + SNAPSHOT_ENTRIES - 1 == end and len(snapshot.entries) == SNAPSHOT_ENTRIES:
                return [from_document(entry, Decision, path) for entry in snapshot.entries]
        return None

    def _fetch(self, number: int) -> Decision | None:
        path = self._layout.decision(number)
        try:
            return decode(self._store.read(path), Decision, path)
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
        """Compare-and-swap on `number`. AlreadyExistsError when somebody else's entry is there; an own one, left by an
        attempt without a clear answer, is success (S9.2). UnclearAnswerError when no attempt got a clear answer."""
        entry = Decision(number, kind, generation, run_id, self._now_iso(), self._nonce(), dict(data))
        problem = reason_it_cannot_follow(
            entry, len(self._entries) + 1, self._entries[-1].generation if self._entries else 0
        )
        assert problem is None, problem
        path, payload = self._layout.decision(number), encode(entry)
        unclear = ""
        for attempt in range(MAX_AMBIGUOUS_WRITES):
            if attempt:
                self._pause(attempt)
            try:
                self._create(path, payload, entry)
                break
            except (AlreadyExistsError, RecordError):
                raise
            except StoreError as error:
                unclear = str(error)
        else:
            raise UnclearAnswerError(
                f"the store did not tell whether entry {number}, {kind!r}, was written",
                where=path,
                cause=unclear,
                remedy="Nothing is lost, but this driver must end. Start the job again from the latest: the new driver "
                "reads in the log whether the entry is there, and goes on from that",
            )
        self._entries += (entry,)
        if number % SNAPSHOT_ENTRIES == 0:
            self._write_snapshot(number)
        return entry

    def _create(self, path: str, payload: bytes, entry: Decision) -> None:
        """Returns when `entry` is there. AlreadyExistsError: another one is. Any other StoreError: it is unclear."""
        try:
            self._store.create(path, payload)
        except AlreadyExistsError:
            found = self._fetch(entry.number)
            if found is None or found.nonce != entry.nonce:
                raise

    def _write_snapshot(self, end: int) -> None:
        """For faster readers, by drivers alone; losing it loses nothing, and the next driver makes up for it."""
        entries = self._entries[end - SNAPSHOT_ENTRIES : end]
        snapshot = DecisionSnapshot(entries[0].number, tuple(to_document(entry) for entry in entries))
        with suppress(StoreError):
            self._store.create(self._layout.decision_snapshot(end), encode(snapshot))

    def _contradiction(self, number: int, problem: str) -> RecordError:
        return RecordError(
            f"entry {number} of the decision log cannot be trusted",
            where=self._layout.decision(number),
            cause=problem,
            remedy="Something other than tidegate changed the job directory; restore the file or use another job id",
        )


class GenerationLog:
    """One driver's reign. Safe from several threads; blocks on the store.

    Attributes:
        generation: the fencing token.
    """

    def __init__(self, log: DecisionLog, job_id: str, generation: int) -> None:
        self._log = log
        self._job_id = job_id
        self._unclear: UnclearAnswerError | None = None
        self.generation = generation

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All entries up to this reign's latest."""
        return self._log._entries

    def append(self, kind: str, data: Mapping[str, Any], run_id: str = "") -> Decision:
        """Append an entry; it is durable on return. What it says has happened when and only when this returns it.

        Args:
            kind: a `DecisionKind` other than fence.
            data: JSON values; lists, no tuples, and texts as keys, so that this driver holds what a reader reads. They
                are kept: not to be changed afterwards.
            run_id: attempt concerned.

        Raises:
            FencedError: a newer generation reigns; nothing was appended, and nothing may be done any more.
            RecordError: `data` is no JSON, or an entry is there that cannot be.
            UnclearAnswerError: no clear answer after several attempts. The entry may be there or not: the driver must
                end its reign, and every later append or check raises the same.
        """
        log = self._log
        assert kind != "fence", "a fence begins a reign"
        with log._lock:
            self._refuse_if_fenced(log._entries)
            number = len(log._entries) + 1
            try:
                return log._append(number, cast(DecisionKind, kind), self.generation, run_id, data)
            except UnclearAnswerError as error:
                self._unclear = error
                raise
            except AlreadyExistsError:
                self.check()
                raise log._contradiction(number, f"generation {self.generation} did not write it") from None

    def check(self) -> None:
        """Raise FencedError when a newer generation has begun, UnclearAnswerError after an append that ended the
        reign. For places that are about to act without an entry; an append needs no check before it."""
        self._refuse_if_fenced(self._log.read())

    def check_quietly(self) -> StoreError | None:
        """`check` for a look now and then: what the store does not tell this time is returned, not raised. RecordError
        is raised: behind an entry that cannot be read nothing can be appended either."""
        try:
            self.check()
        except (RecordError, UnclearAnswerError):
            raise
        except StoreError as error:
            return error
        return None

    def _refuse_if_fenced(self, entries: Sequence[Decision]) -> None:
        """A driver that has read a newer fence must not append behind it: there its number would be free. One that
        does not know what it wrote must not either."""
        if self._unclear is not None:
            raise self._unclear
        if entries[-1].generation > self.generation:
            last = last_fence(entries)
            assert last is not None, "a generation begins with a fence"
            raise fenced_error(self._job_id, f"generation {self.generation}", last)


def last_fence(entries: Sequence[Decision]) -> Decision | None:
    """The entry that began the current reign."""
    return next((entry for entry in reversed(entries) if entry.kind == "fence"), None)


def reason_it_cannot_follow(entry: Decision, number: int, generation: int) -> str | None:
    """Why `entry` cannot follow an entry `number - 1` of `generation`; None when it can. Asked before every write and
    after every read."""
    if entry.number != number:
        return f"it calls itself entry {entry.number}"
    if entry.kind == "fence":
        if entry.generation != generation + 1:
            return f"it begins generation {entry.generation} after generation {generation}"
        fence = (entry.data.get("spec"), entry.data.get("launch"))
        if not all(isinstance(value, int) for value in fence):
            return "a fence names no submission and launch"
    elif entry.generation != generation:
        return f"generation {entry.generation} wrote it under generation {generation}"
    return None


def fenced_error(job_id: str, who: str, fence: Decision) -> FencedError:
    """The error for `who` that finds `fence`."""
    return FencedError(
        f"{who} is over",
        where=f"job {job_id}",
        cause=f"since {fence.at} generation {fence.generation} reigns, of submission {fence.data['spec']}, "
        f"launch {fence.data['launch']}",
        remedy="Nothing: the newer driver carries on",
    )
