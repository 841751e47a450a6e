"""The status hint, which the driver replaces in the job directory every second; it is never authoritative (design,
section 4).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidegate.channel.control.protocol import SubtaskMetrics
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.clock import iso
from tidegate.coordinator.enumeration import SearchOutage
from tidegate.errors import StoreError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import StatusHint, encode
from tidegate.jobs.status import OUTAGE
from tidegate.jobs.stores.store import Store
from tidegate.plan.job_graph import JobGraph
from tidegate.spark.driver_loop.attempt import SlotState

logger = logging.getLogger("tidegate.spark")


class HintWriter:
    """Replaces status/<generation>.json from its own thread; the heartbeat counter counts its writes."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        generation: int,
        interval_s: float,
        now_iso: Callable[[], str],
    ) -> None:
        self._store, self._path, self._generation = store, layout.status(generation), generation
        self._interval_s, self._now_iso = interval_s, now_iso
        self._data: dict[str, Any] = {}
        self._look: Callable[[], Mapping[str, Any]] = dict
        self._run_id = ""
        self._beat = 0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="status-hint", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def update(self, run_id: str | None = None, **data: Any) -> None:
        """Merge into the hint's data."""
        with self._lock:
            self._data.update(data)
            if run_id is not None:
                self._run_id = run_id

    def set_source(self, look: Callable[[], Mapping[str, Any]]) -> None:
        """Set a function whose result is merged before every write, on the hint's own thread.

        So its cost does not grow with the number of heartbeats that it summarises.
        """
        with self._lock:
            self._look = look

    def write_now(self) -> None:
        """Write now, for data that must be visible before a status that ends the job."""
        self._write()

    def close(self) -> None:
        """Write for the last time and stop."""
        self._over.set()
        self._thread.join(5.0)
        self._write()

    def _work(self) -> None:
        while True:
            self._write()
            if self._over.wait(self._interval_s):
                return

    def _write(self) -> None:
        with self._lock:
            self._beat += 1
            try:
                self._data.update(self._look())
            except Exception:  # heartbeats must continue, whatever the error
                logger.exception("the metrics of the job could not be collected; the heartbeat is sent without them")
            hint = StatusHint(self._generation, self._beat, self._run_id, self._now_iso(), dict(self._data))
        try:
            self._store.replace(self._path, encode(hint))
        except StoreError as error:
            logger.warning("the heartbeat of the driver could not be written; the next one is tried: %s", error)


def busy_operators(slots: Mapping[int, SlotState]) -> dict[tuple[int, int], tuple[str, ...]]:
    """Return, by subtask (chain, index), the uids of operators with unfinished requests, by the newest heartbeats."""
    return {one.subtask: one.at_work for one in _subtasks(slots) if one.at_work}


def _together(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all subtasks of a source report: the sum of numbers, whether a statement is true for any of them, and
    of other values the first.

    A sum of only some subtasks would mislead, for example as the lag of a source.
    """
    names = [name for name in (details[0] if details else ()) if all(name in one for one in details)]
    found = {name: [one[name] for one in details] for name in names}
    return {name: _merged(values) for name, values in found.items()}


def _merged(values: Sequence[Any]) -> Any:
    if all(isinstance(value, bool) for value in values):
        return any(values)
    return sum(values) if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values) else values[0]


def _outage(details: Sequence[Mapping[str, Any]], search: SearchOutage | None) -> Mapping[str, Any] | None:
    """Return the outage that a source waits for, of the subtask that has waited longest; None: there is none.

    A single subtask is enough: its input may be on one machine of several.
    """
    found = [one[OUTAGE] for one in details if isinstance(one.get(OUTAGE), Mapping)]
    if search is not None:
        since = iso(datetime.fromtimestamp(search.since_ms / 1_000, UTC))
        found.append({"since": since, "until": None, "cause": search.cause})
    return min(found, key=lambda one: str(one["since"]), default=None)


def job_metrics(
    graph: JobGraph,
    slots: Mapping[int, SlotState],
    ended: Mapping[str, Mapping[str, int]] | None = None,
    searches: Mapping[str, SearchOutage] | None = None,
) -> dict[str, Any]:
    """Return sources, watermark and rows of the whole job, from the slots' heartbeats.

    Args:
        ended: counts of sources that had ended before the run, by uid.
        searches: sources whose search for splits fails, by uid.
    """
    sources: dict[str, dict[str, Any]] = {}
    for node in graph.nodes:
        if node.source is not None:
            sources[node.uid] = {
                "boundedness": node.source.boundedness,
                "records": 0,
                "played_all": node.source.boundedness == "unbounded",
                "subtasks": 0,
                "details": [],
            }
    marks: dict[str, list[int]] = {}
    counters: dict[str, dict[str, int]] = {}
    for uid, counts in (ended or {}).items():
        _add(counters, uid, counts)
    for one in _subtasks(slots):
        source = one.source
        if source is not None:
            facts = sources[source.uid]
            facts["records"] += source.records
            facts["played_all"] = facts["played_all"] and source.played_all
            facts["subtasks"] += 1
            facts["details"].append(source.details)
            marks.setdefault(source.uid, []).append(one.watermark_us)
            _add(counters, source.uid, source.counters)
        for uid, counts in one.counters.items():
            _add(counters, uid, counts)
    for uid, facts in sources.items():
        complete = facts.pop("subtasks") == len(slots)
        outage = _outage(facts["details"], (searches or {}).get(uid))
        facts["details"] = _together(facts["details"]) if complete else {}
        facts["details"].pop(OUTAGE, None)
        if outage is not None:
            facts["details"][OUTAGE] = dict(outage)
        facts["played_all"] = facts["played_all"] and complete
        facts["watermark_us"] = _reported(marks.get(uid, [])) if complete else None
    return {
        "sources": sources,
        "watermark_us": job_watermark_us(slots),
        "counters": counters,
        "slots": [
            {"slot": i, "pid": v.pid, "node": v.node, "resident_bytes": v.resident_bytes} for i, v in slots.items()
        ],
    }


def _add(counters: dict[str, dict[str, int]], uid: str, counts: Mapping[str, int]) -> None:
    for name, n in counts.items():
        mine = counters.setdefault(uid, {})
        mine[name] = mine.get(name, 0) + n


def job_watermark_us(slots: Mapping[int, SlotState]) -> int | None:
    """Return the watermark that every subtask of the run has passed, by its last report; None: unknown."""
    if any(view.metrics is None for view in slots.values()):
        return None
    return _reported([one.watermark_us for one in _subtasks(slots)])


def _subtasks(slots: Mapping[int, SlotState]) -> Iterator[SubtaskMetrics]:
    """Yield the subtasks' metrics of the newest heartbeat of each slot."""
    for view in slots.values():
        if view.metrics is not None:
            yield from view.metrics.subtasks


def _reported(marks: Sequence[int]) -> int | None:
    """Return the least watermark; None before the first one and after the last one."""
    low = min(marks, default=MIN_WATERMARK)
    return None if low in (MIN_WATERMARK, MAX_WATERMARK) else low
