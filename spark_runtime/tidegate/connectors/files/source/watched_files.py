"""Files that arrive while the job runs: listings in intervals, and what of them is new (S4.3)."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

from fsspec import AbstractFileSystem

from tidegate.connectors.files.source.file_disposal import FileDisposal, archiving, deleting
from tidegate.connectors.files.source.file_errors import one_line
from tidegate.connectors.files.source.file_listing import FoundFile, fixed_part, is_hidden, is_pattern, list_one, pinned
from tidegate.connectors.files.source.file_set import FileSet
from tidegate.connectors.files.source.known_files import (
    DAY_S,
    NEVER_S,
    DayCount,
    DayCounts,
    KnownFiles,
    first_unlike_day,
    path_hash,
)
from tidegate.connectors.interface import Discovery, Split, SplitEnumerator
from tidegate.connectors.storage import absolute_url, is_local, open_filesystem
from tidegate.errors import OptionError, OutageError, PipelineError
from tidegate.units import format_duration, parse_duration

logger = logging.getLogger("tidegate.connectors")

Order = Literal["mtime", "name"]
"""The order in which new files of a listing are read: by time of writing, or by path."""
Completion = Literal["settled", "listed", "success_file"]
"""When a file is complete; see `Watch`."""
LateFiles = Literal["fail", "ignore"]
"""Action if a file is older than `Watch.forget_after` allows."""

SPLITS_PER_SEARCH = 1_000
"""Most files that one search returns."""
MOST_WAITING = 100_000
"""Most new files of a listing that wait in the driver. If there are more, the folder is listed again later."""
HASHED_AT_ONCE = 4_096
MISSING_S = 600.0
"""Seconds between two warnings of a watched path that does not exist."""
SUCCESS_FILE = "_SUCCESS"


@dataclass(frozen=True)
class Watch:
    """How `Files` watches its paths for files that arrive while the job runs.

    Attributes:
        every: pause between two listings.
        order: the order in which the new files of a listing are read: "mtime" (time of writing, then path) or "name".
            Readers read in parallel, so the order is that in which files begin.
        complete: when a file may be read. "settled": its last change is older than `every`, or it has not changed
            between two listings. "listed": at once, for writers that rename complete files into the folder, and for
            object stores. "success_file": when its folder has a file `_SUCCESS`.
        forget_after: the state of the job names files that were written within this time before the newest file. Older
            files count as read.
        on_late: a file arrives that was written before that time: "fail" the job, or "ignore" and log it.
        delete: delete a file when a checkpoint has completed in which it was read to its end; with a commit gate, when
            that checkpoint is approved.
        archive: move it into this folder at that time instead, on the same file system, with its path below the watched
            folder.

    Raises:
        OptionError: a value is unknown, a time is not positive, or both `delete` and `archive` are given.
    """

    every: str | timedelta
    order: Order = "mtime"
    complete: Completion = "settled"
    forget_after: str | timedelta = "7 days"
    on_late: LateFiles = "fail"
    delete: bool = False
    archive: str | None = None

    def __post_init__(self) -> None:
        if self.delete and self.archive is not None:
            raise OptionError(
                "files are either deleted or archived", where="Watch(archive=)", remedy="Leave out delete= or archive="
            )
        for name, known in (("order", Order), ("complete", Completion), ("on_late", LateFiles)):
            value = getattr(self, name)
            if value not in get_args(known):
                remedy = f"Use one of {', '.join(map(repr, get_args(known)))}"
                raise OptionError(f"{name}={value!r} is unknown", where=f"Watch({name}=)", remedy=remedy)
        for name, length in (("every", self.interval), ("forget_after", self.remembered)):
            if length <= timedelta(0):
                raise OptionError(
                    f"{name} must be longer than 0", where=f"Watch({name}=)", remedy='Use a duration such as "10 s"'
                )

    @property
    def interval(self) -> timedelta:
        """The pause between two listings."""
        return parse_duration(self.every, where="Watch(every=)")

    def resolved(self, urls: Sequence[str]) -> Watch:
        """Return the same with an absolute `archive`.

        Raises:
            OptionError: the archive is on another file system, or the watched paths contain it.
        """
        if self.archive is None:
            return self
        archive = absolute_url(self.archive)
        for url in urls:
            (system, watched), (own_system, folder) = _parts(url), _parts(archive)
            base = fixed_part(watched).rstrip("/")
            if system != own_system:
                cause = f"{url} and the archive are on different file systems"
            elif f"{folder}/".startswith(f"{base}/") and not is_hidden(folder, base):
                cause = f"the archive is inside {url}, so that archived files would be read again"
            else:
                continue
            raise OptionError(
                f"files cannot be archived in {archive}",
                where="Watch(archive=)",
                cause=cause,
                remedy="Use a folder beside the watched one, or one in it whose name begins with _",
            )
        return replace(self, archive=archive)

    def disposal(self, files: FileSet) -> FileDisposal | None:
        """Return what happens to files that a reader has read; None: they stay."""
        if self.archive is not None:
            return FileDisposal(archiving(files.urls, files.storage_options, self.archive))
        return FileDisposal(deleting(files.urls, files.storage_options)) if self.delete else None

    @property
    def remembered(self) -> timedelta:
        """The time for which the state names files."""
        return parse_duration(self.forget_after, where="Watch(forget_after=)")


class _NewFile(NamedTuple):
    """A file that no reader has. Sorted as it is read."""

    rank: Any
    hashed: int
    time_s: int
    file: FoundFile


class _Unsettled(NamedTuple):
    """A file that may still change: its size and version, and since when listings have shown these."""

    stamp: tuple[int, str | None]
    since_s: float


class WatchedFiles(SplitEnumerator):
    """Lists the paths of `Files`, and returns a split for each new file that is complete.

    Its state has the hashes of files that were written within `forget_after`, and for older files their number by day.
    With this number a restored enumerator notices that old files have arrived which it does not know.
    """

    def __init__(
        self, files: FileSet, watch: Watch, state: Mapping[str, Any] | None, *, now_s: Callable[[], float] = time.time
    ) -> None:
        """Args: state: see `Source.create_enumerator`."""
        self._files = files
        self._watch = watch
        self._now_s = now_s
        self._known = KnownFiles(None if state is None else state["known"])
        self._newest_s: int = -1 if state is None else state["newest_s"]
        self._horizon_s: int = -1 if state is None else state["horizon_s"]
        self._waiting: deque[_NewFile] = deque()
        self._all_wait = True
        self._oldest_new_s = NEVER_S
        self._unsettled: dict[int, _Unsettled] = {}
        self._is_first = state is not None
        self._missing: dict[str, float] = {}

    def discover(self) -> Discovery:
        """Return the next new files. Lists the paths if none wait.

        Raises:
            OutageError: a file system does not answer.
            PipelineError: a path cannot be listed; a file is late.
        """
        if not self._waiting:
            self._list()
        taken = [self._waiting.popleft() for _ in range(min(SPLITS_PER_SEARCH, len(self._waiting)))]
        for new in taken:
            self._files.check_format(new.file.path)
            self._known.add(new.hashed, new.time_s)
            if new.time_s < NEVER_S:
                # Not after now: a file from the future must not make all others late.
                self._newest_s = max(self._newest_s, min(new.time_s, math.ceil(self._now_s())))
        self._forget()
        splits = [
            Split(
                f"{new.file.given}:{new.file.path}",
                {**asdict(new.file), "groups": None},
                weight=max(1, new.file.size_bytes),
            )
            for new in taken
        ]
        state = {"newest_s": self._newest_s, "horizon_s": self._horizon_s, "known": self._known.to_json()}
        return Discovery(splits, state, more=bool(self._waiting) or not self._all_wait)

    def _forget(self) -> None:
        """Move the horizon: files that were written before it count as found. Every new file is newer than it."""
        remembered_s = math.ceil(self._watch.remembered.total_seconds())
        self._horizon_s = max(self._horizon_s, min(self._newest_s, self._oldest_new_s) - remembered_s)
        self._known.forget(self._horizon_s)

    # ------------------------------------------------------------ listing

    def _list(self) -> None:
        self._oldest_new_s = NEVER_S
        unsettled, self._unsettled = self._unsettled, {}
        listed = _Listing()
        count = itertools.count()
        new = heapq.nsmallest(MOST_WAITING, self._counted(self._new(listed, unsettled), count))
        self._all_wait = next(count) <= MOST_WAITING
        self._warn_of(listed.missing)
        if self._is_first and len(listed.missing) < len(self._files.urls):
            self._check_old(listed.assumed)
            self._is_first = False
            for hashed in listed.old:
                self._known.add_old(hashed)
        self._waiting.extend(new)

    def _warn_of(self, missing: Sequence[str]) -> None:
        """Log which paths do not exist: when a listing first notices it, and again every `MISSING_S`."""
        now_s = self._now_s()
        for url in missing:
            if now_s - self._missing.get(url, -math.inf) >= MISSING_S:
                logger.warning(missing_text(url, self._watch.interval))
                self._missing[url] = now_s
        for url in [url for url in self._missing if url not in missing]:
            del self._missing[url]
            logger.info("the watched path %s exists now", url)

    @staticmethod
    def _counted(files: Iterator[_NewFile], count: Iterator[int]) -> Iterator[_NewFile]:
        for file in files:
            next(count)
            yield file

    def _new(self, listing: _Listing, unsettled: Mapping[int, _Unsettled]) -> Iterator[_NewFile]:
        """Yield the new files that are complete. Notes what is not, and old files."""
        now_s = self._now_s()
        seen: set[int] = set()
        found = listing.files(self._files.urls, self._files.storage_options)
        for part in iter(lambda: list(itertools.islice(found, HASHED_AT_ONCE)), []):
            hashes = [path_hash(entry.system, entry.path) for entry in part]
            for entry, hashed, unknown in zip(part, hashes, self._known.unknown(hashes), strict=True):
                if not unknown or hashed in seen or (details := entry.details()) is None or not details.get("size"):
                    continue
                seen.add(hashed)  # two of the user's paths may lead to it
                file = pinned(entry.given, entry.path, details)
                time_s = _seconds(file.mtime)
                if time_s < self._horizon_s:
                    self._note_old(listing, hashed, time_s, file)
                    continue
                self._oldest_new_s = min(self._oldest_new_s, time_s)
                if self._watch.complete == "settled" and not self._is_settled(hashed, time_s, file, unsettled, now_s):
                    continue
                if self._watch.complete == "success_file":
                    if not listing.has_success_file(entry):
                        continue
                    try:  # again, because it may have been written between the listing and `_SUCCESS`
                        file = pinned(entry.given, entry.path, entry.filesystem.info(entry.path))
                    except FileNotFoundError:
                        continue
                if not _is_utf8(file.path):
                    raise PipelineError(
                        "the name of a watched file is not UTF-8", where=ascii(file.path), remedy="Rename the file"
                    )
                rank = (time_s, file.path) if self._watch.order == "mtime" else file.path
                yield _NewFile((rank, file.given), hashed, time_s, file)

    def _is_settled(
        self, hashed: int, time_s: int, file: FoundFile, before: Mapping[int, _Unsettled], now_s: float
    ) -> bool:
        """Return whether a file has not changed for an interval, by its time or by earlier listings.

        The clocks of the driver and of the file system may differ. A reader refuses a file that changes later.
        """
        interval_s = self._watch.interval.total_seconds()
        if time_s <= now_s - interval_s:
            return True
        stamp = (file.size_bytes, file.etag or file.mtime)
        seen = before.get(hashed)
        since_s = seen.since_s if seen is not None and seen.stamp == stamp else now_s
        if now_s - since_s >= interval_s:
            return True
        self._unsettled[hashed] = _Unsettled(stamp, since_s)
        return False

    def _note_old(self, listing: _Listing, hashed: int, time_s: int, file: FoundFile) -> None:
        """Process an unknown file from before the horizon. In the first listing after a restore it counts as found."""
        if not self._is_first:
            if self._watch.on_late == "fail":
                raise self._late(f"the file was written at {_iso(time_s)}", file.path)
            logger.warning("a late file is ignored: %s, written at %s", file.path, _iso(time_s))
            self._known.forgotten.setdefault(time_s // DAY_S, DayCount()).add(1, hashed)
            self._known.add_old(hashed)
        listing.assumed.setdefault(time_s // DAY_S, DayCount()).add(1, hashed)
        listing.old.append(hashed)

    def _check_old(self, there: DayCounts) -> None:
        """Compare the old files that are there with those that were read. The former are the known ones from now on."""
        forgotten = self._known.forgotten
        day = first_unlike_day(forgotten, there)
        known = 0 if day is None else forgotten.get(day, DayCount()).files
        fewer = [
            (there[d].files, forgotten[d].files)
            for d in there
            if d in forgotten and there[d].files < forgotten[d].files
        ]
        if fewer:
            logger.warning(
                "%d of %d old files are there, which count as read: a late file among them cannot be noticed",
                sum(left for left, _ in fewer),
                sum(read for _, read in fewer),
            )
        if day is not None:
            what = f"of {_iso(day * DAY_S)[:10]}, {there[day].files} files are there, and {known} were read"
            if self._watch.on_late == "fail":
                raise self._late(what, self._files.describe())
            logger.warning("late files are ignored: %s", what)
        # Days without files are kept: their folder may only be unreachable now.
        forgotten |= there

    def _late(self, cause: str, where: str) -> PipelineError:
        return PipelineError(
            "a file has arrived that was written too long ago to know whether it was read",
            where=where,
            cause=f"{cause}; files from before {_iso(self._horizon_s)} count as read "
            f"(forget_after={self._watch.forget_after!r})",
            remedy="To read it, set its time of writing to now (touch). To leave it out, move it away, or set "
            'Watch(on_late="ignore")',
        )


# ---------------------------------------------------------------- entries of a listing


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file as a listing shows it. `details`: as fsspec describes it; None: it has gone meanwhile."""

    given: int
    system: str
    filesystem: AbstractFileSystem
    path: str
    details: Callable[[], Mapping[str, Any] | None]


class _Listing:
    """One listing of all paths.

    Attributes:
        assumed: old files that count as found, by day.
        old: their hashes.
        missing: the user's paths that do not exist now.
    """

    def __init__(self) -> None:
        self._success: dict[tuple[str, str], bool] = {}
        self.assumed: DayCounts = {}
        self.old: list[int] = []
        self.missing: list[str] = []

    def files(self, urls: tuple[str, ...], storage_options: Mapping[str, Any]) -> Iterator[_Entry]:
        """Yield all visible files. A path that does not exist yet has none.

        Raises:
            OutageError: a file system does not answer.
            PipelineError: a path cannot be listed.
        """
        for given, url in enumerate(urls):
            filesystem, path = open_filesystem(url, storage_options)
            try:
                yield from self._below(given, filesystem, path)
            except FileNotFoundError:
                self.missing.append(url)
            except (PermissionError, NotADirectoryError) as error:
                raise PipelineError(
                    "the watched files cannot be listed",
                    where=url,
                    cause=one_line(error),
                    remedy="Check that the user of the driver may read the path",
                ) from error
            except OSError as error:
                raise OutageError("the watched files cannot be listed now", where=url, cause=one_line(error)) from error

    def has_success_file(self, entry: _Entry) -> bool:
        """Return whether the folder of a file has a file `_SUCCESS`."""
        folder = entry.path.rpartition("/")[0]
        key = (entry.system, folder)
        if key not in self._success:
            self._success[key] = bool(entry.filesystem.exists(f"{folder}/{SUCCESS_FILE}"))
        return self._success[key]

    def _below(self, given: int, filesystem: AbstractFileSystem, path: str) -> Iterator[_Entry]:
        protocol = filesystem.protocol
        system = protocol if isinstance(protocol, str) else protocol[0]
        if is_local(filesystem) and not is_pattern(path) and os.path.isdir(path):
            # Without the details of all files in memory, and without a system call for a file that is known.
            for entry in _scan(path):
                yield _Entry(given, system, filesystem, entry.path, lambda entry=entry: _stat(entry))  # type: ignore[misc]
            return
        if not is_pattern(path) and not filesystem.exists(path):
            raise FileNotFoundError(path)
        listed = list_one(filesystem, path)
        if not listed and is_pattern(path) and not filesystem.exists(fixed_part(path)):
            raise FileNotFoundError(path)
        for name, details in listed.items():
            yield _Entry(given, system, filesystem, name, lambda details=details: details)  # type: ignore[misc]


def missing_paths(urls: Sequence[str], storage_options: Mapping[str, Any]) -> list[str]:
    """Return the paths that do not exist; of a glob, the folder above its first pattern is decisive.

    Raises:
        OSError: a file system does not answer.
    """
    found = []
    for url in urls:
        filesystem, path = open_filesystem(url, storage_options)
        if not filesystem.exists(fixed_part(path)):
            found.append(url)
    return found


def missing_text(url: str, interval: timedelta) -> str:
    """Return the warning of a watched path that does not exist."""
    return (
        f"the watched path {url} does not exist: the job reads nothing from it until it appears. It is listed every "
        f"{format_duration(interval)}"
    )


def _scan(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the visible files below a local folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name, ""):
                continue
            try:
                below = entry.is_dir() and not (entry.is_symlink() and _is_above(entry.path, folder))
                if not below and entry.is_file():
                    yield entry
            except OSError:  # a broken link
                continue
            if below:
                with contextlib.suppress(FileNotFoundError):  # removed since the listing of its parent
                    yield from _scan(entry.path)


def _is_above(link: str, folder: str) -> bool:
    """Return whether a link leads to a folder that contains it: then its files would have endlessly many paths."""
    target, inside = os.path.realpath(link), os.path.realpath(folder)
    return target == inside or inside.startswith(f"{target.rstrip('/')}/")


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stat(entry: os.DirEntry[str]) -> Mapping[str, Any] | None:
    try:
        found = entry.stat()
    except FileNotFoundError:
        return None
    return {"size": found.st_size, "mtime": found.st_mtime}


def _parts(url: str) -> tuple[str, str]:
    """Return the protocol of a URL, and the path."""
    protocol, found, path = url.partition("://")
    return (protocol, path) if found else ("file", url)


def _seconds(mtime: str | None) -> int:
    """Return a time as `FoundFile` has it in seconds since the epoch, rounded up; `NEVER_S`: it is unknown."""
    if mtime is None:
        return NEVER_S
    try:
        return math.ceil(float(mtime))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(mtime)
    except ValueError:
        return NEVER_S
    return math.ceil((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp())


def _iso(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
