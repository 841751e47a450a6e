"""Random job graphs, and what must come out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from simulator.delay import DelaySpec
from simulator.rows import (
    KEYS,
    SCHEMA,
    WINDOW_US,
    CountingSource,
    Observer,
    Row,
    RowSpec,
    key_of,
    next_path,
    row_of,
    window_row,
)
from tidegate.connectors.interface import Sink
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.plan.job_graph import Edge, Exchange, JobGraph, Node

KINDS = ("pass", "filter", "tally", "tally", "union", "union")
"""Operators to choose from, besides those of the next two."""
KINDS_WITH_TIMES = ("buffer", "window", "window")
KINDS_WITHOUT_TIMES = ("hold",)
"""Or a delay, which waits for the clock."""
KINDS_IN_A_CROWD = ("tally", "tally", "tally", "union", "pass")
"""Where many rows are on their way while snapshots overlap: those that notice one too many."""

Positions = Mapping[tuple[int, int], int]
"""(source number, split number) -> rows read."""


@dataclass
class Workload:
    """A job graph, with what is known about it.

    Attributes:
        graph: the graph.
        sources: by number.
        rows: of each split of a bounded source, None for an unbounded one.
        has_windows: some operator holds event-time windows.
        has_delays: some operator holds rows until the clock has come so far.
    """

    graph: JobGraph
    sources: list[CountingSource] = field(default_factory=list)
    has_windows: bool = False
    has_delays: bool = False

    @property
    def is_bounded(self) -> bool:
        """Every source reaches its end by itself."""
        return all(source.rows is not None for source in self.sources)

    def everything(self, read: Positions) -> Positions:
        """`read`, completed with the whole of the bounded splits it does not name."""
        whole = {(s.src, k): s.rows or 0 for s in self.sources for k in range(s.splits)}
        return {**whole, **read}

    # ------------------------------------------------------------ what must come out

    def expected(self, read: Positions) -> tuple[dict[str, Counter[Row]], dict[str, Counter[Row]]]:
        """Per sink uid the rows that must have come out when exactly `read` was read, and, apart from them, those of
        windows, all of them fired."""
        rows: dict[str, Counter[Row]] = {}
        windows: dict[str, Counter[Row]] = {}
        for node in self.graph.nodes:
            if node.sink is None:
                continue
            rows[node.uid] = Counter()
            counts: dict[tuple[int, int, tuple[int, ...]], Counter[tuple[int, int]]] = {}
            for way in self._ways_to(node.node_id):
                if way.window is None:
                    rows[node.uid].update(self._rows(way, read))
                else:
                    of_window = counts.setdefault((way.window, way.path, way.after), Counter())
                    of_window.update((row[3], row[5] - row[5] % WINDOW_US) for row in self._rows(way, read))
            windows[node.uid] = Counter(
                _sent_on(window_row(window, key, start, path, count), after)
                for (window, path, after), of_window in counts.items()
                for (key, start), count in of_window.items()
            )
        return rows, windows

    def tally_at(self, node_id: int, read: Positions) -> dict[tuple[int, int, int, int], tuple[int, int]]:
        """State of tally `node_id`, over all its subtasks, after exactly `read`."""
        state: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        for way in self._ways_to(node_id):
            for split, rows in self._splits(way.src, read):
                for key in range(KEYS):
                    first = (key - split) % KEYS
                    if first < rows and not (way.drops and key == 1):
                        count = (rows - 1 - first) // KEYS + 1
                        state[way.src, split, key, way.path] = (first + (count - 1) * KEYS, count)
        return state

    def still_to_come(
        self, node_id: int, in_flight: Mapping[str, Sequence[Row]]
    ) -> dict[tuple[int, int, int, int], list[int]]:
        """What tally `node_id` has still to count of the rows in flight to operators, by their uids: the numbers of the
        rows of each (source, split, key, path)."""
        seqs: dict[tuple[int, int, int, int], list[int]] = {}
        for head in self.graph.nodes if in_flight else ():
            rows = in_flight.get(head.uid)
            for way in self._between(head.node_id, node_id) if rows else ():
                drops = any(self.graph.nodes[n].kind == "filter" for n in way)
                for src, split, seq, key, path, _ in rows or ():
                    if not (drops and key == 1):
                        for n in way:
                            path = next_path(path, n)
                        seqs.setdefault((src, split, key, path), []).append(seq)
        return seqs

    def is_delay(self, uid: str) -> bool:
        """The operator holds rows until the clock has come so far."""
        return self.has_delays and self.graph.by_uid(uid).kind == "delay"

    def still_to_show(self, uid: str, waiting: Mapping[str, Sequence[Row]]) -> Counter[Row]:
        """The rows that sink `uid` has still to get of those that wait in operators, by their uids."""
        seqs = self.still_to_come(self.graph.by_uid(uid).node_id, waiting)
        return Counter(row_of(src, split, seq, path) for (src, split, _, path), of in seqs.items() for seq in of)

    def _between(self, first: int, node_id: int) -> Iterator[tuple[int, ...]]:
        """Node ids from `first` to before `node_id`, for every way there is; watermark assigners change no path."""
        if first == node_id:
            yield ()
            return
        for edge in self.graph.nodes[node_id].inputs:
            passed = () if self.graph.nodes[edge.upstream].kind == "watermark" else (edge.upstream,)
            for way in self._between(first, edge.upstream):
                yield (*way, *passed)

    def _ways_to(self, node_id: int) -> Iterator[_Way]:
        for nodes in self._ways(node_id):
            source = self.graph.nodes[nodes[0]].source
            src = next(s.src for s in self.sources if s is source)
            path, drops = 0, False
            passed = [n for n in nodes[1:] if self.graph.nodes[n].kind != "watermark"]
            for k, n in enumerate(passed):
                if self.graph.nodes[n].kind == "window":
                    yield _Way(src, path, drops, n, tuple(passed[k + 1 :]))
                    break
                drops = drops or self.graph.nodes[n].kind == "filter"
                path = next_path(path, n)
            else:
                yield _Way(src, path, drops)

    def _ways(self, node_id: int) -> Iterator[tuple[int, ...]]:
        """Node ids from a source to before `node_id`, for every way there is."""
        for edge in self.graph.nodes[node_id].inputs:
            if self.graph.nodes[edge.upstream].source is not None:
                yield (edge.upstream,)
            for way in self._ways(edge.upstream):
                yield (*way, edge.upstream)

    def _splits(self, src: int, read: Positions) -> Iterator[tuple[int, int]]:
        for (of, split), rows in read.items():
            if of == src:
                yield split, rows

    def _rows(self, way: _Way, read: Positions) -> Iterator[Row]:
        for split, rows in self._splits(way.src, read):
            for seq in range(rows):
                if not (way.drops and key_of(split, seq) == 1):
                    yield row_of(way.src, split, seq, way.path)


@dataclass(frozen=True)
class _Way:
    """A way from source `src`: path code on arrival (at the window, when there is one), whether a filter is on it, and
    the window node and what comes after that."""

    src: int
    path: int
    drops: bool
    window: int | None = None
    after: tuple[int, ...] = ()


def _sent_on(row: Row, nodes: Sequence[int]) -> Row:
    for node_id in nodes:
        row = (*row[:4], next_path(row[4], node_id), row[5])
    return row


def random_workload(
    random: Random,
    observer: Observer,
    sink: Callable[[str], Sink],
    *,
    exactly_once: bool,
    may_be_unbounded: bool = True,
    crowded: bool = False,
    growth: Random | None = None,
) -> Workload:
    """A graph of 1-2 sources, 1-3 operators in between and as many sinks as it has loose ends.

    Args:
        growth: splits of sources without times are discovered while the job runs, by these numbers. With times, rows of
            a split that is found late would be late.
    """
    drawing = _Drawing(random, observer, exactly_once, crowded)
    with_times = not crowded and random.random() < 0.5
    drawing.growth = None if with_times else growth
    for number in range(1 + int(random.random() * 1.8)):
        drawing.add_source(number, may_be_unbounded, with_times)
    kinds = KINDS_IN_A_CROWD if crowded else (*KINDS, *(KINDS_WITH_TIMES if with_times else KINDS_WITHOUT_TIMES))
    for _ in range(1 + int(random.random() * 3)):
        usable = [n for n in drawing.loose if n not in drawing.after_window]
        if not usable:
            break
        drawing.add_operator(random.choice(kinds), usable)
    drawing.add_sinks(sink)
    return drawing.finished()


class _Drawing:
    """A graph in the making. The order of random numbers is part of what a seed means.

    Attributes:
        loose: nodes that nobody reads yet, or that may be read once more.
        after_window: nodes of windows, which end a chain of operators.
        growth: see `random_workload`.
    """

    def __init__(self, random: Random, observer: Observer, exactly_once: bool, crowded: bool) -> None:
        self._random, self._observer = random, observer
        self._exactly_once, self._crowded = exactly_once, crowded
        self._nodes: list[Node] = []
        self._work = Workload(JobGraph(()))
        self._rebalanced: dict[int, bool] = {}
        self.loose: list[int] = []
        self.after_window: set[int] = set()
        self.growth: Random | None = None

    def add_source(self, number: int, may_be_unbounded: bool, with_times: bool) -> None:
        """With its watermarks, if records have times."""
        random, crowded = self._random, self._crowded
        unbounded = may_be_unbounded and random.random() < (0.8 if crowded else 0.5)
        rows = None if unbounded else 10 + int(random.random() * 40)
        splits = 1 + int(random.random() * 3)
        pause_ms = 15 + int(random.random() * 45) if crowded else 40 + int(random.random() * 160)
        source = CountingSource(number, splits, rows, pause_ms, self._observer, random.random, self.growth)
        self._work.sources.append(source)
        node_id = self._add("source", [], source=source)
        if with_times:
            node_id = self._add("watermark", [Edge(node_id, "forward")], spec=WatermarkSpec("at", 0, "us"))
        self.loose.append(node_id)

    def add_operator(self, kind: str, usable: Sequence[int]) -> None:
        """On one or two of the usable nodes."""
        random = self._random
        if kind == "hold" and len(self._nodes) % 3:
            kind = "delay"
        first = random.choice(usable)
        inputs = [first]
        others = [n for n in usable if n != first]
        if kind in ("union", "tally") and others and random.random() < 0.7:
            inputs.append(random.choice(others))
        keyed = kind in ("tally", "window", "delay")
        edges = [Edge(n, *_exchange(random, keyed)) for n in inputs]
        in_order = not self._loses_order(edges)
        describe = DelaySpec if kind == "delay" else RowSpec
        spec = describe(kind, len(self._nodes), in_order, self._exactly_once, self._observer)
        self._work.has_delays = self._work.has_delays or kind == "delay"
        node_id = self._add(kind, edges, spec=spec)
        if kind == "window":
            self._work.has_windows = True
            self.after_window.add(node_id)
        for n in inputs:
            if n in self.loose and random.random() < 0.8:
                self.loose.remove(n)  # else: fan-out
        self.loose.append(node_id)

    def add_sinks(self, sink: Callable[[str], Sink]) -> None:
        """For all loose ends."""
        for n in self.loose:
            exchange = _exchange(self._random, False) if self._random.random() < 0.7 else ("hash", ("key",))
            if self._crowded:
                exchange = "forward", ()
            self._add("sink", [Edge(n, *exchange)], sink=sink(f"sink-{len(self._nodes)}"))

    def finished(self) -> Workload:
        """With its graph."""
        self._work.graph = JobGraph(tuple(self._nodes))
        return self._work

    def _add(self, kind: str, edges: list[Edge], **what: object) -> int:
        node_id = len(self._nodes)
        stateful = kind in ("tally", "window", "delay", "source", "sink")
        node = Node(node_id, f"{kind}-{node_id}", kind, tuple(edges), SCHEMA, "simulation", stateful, **what)  # type: ignore[arg-type]
        self._nodes.append(node)
        self._rebalanced[node_id] = self._loses_order(edges)
        return node_id

    def _loses_order(self, edges: Sequence[Edge]) -> bool:
        return any(self._rebalanced[e.upstream] or e.exchange == "rebalance" for e in edges)


def _exchange(random: Random, keyed: bool) -> tuple[Exchange, tuple[str, ...]]:
    if keyed or random.random() < 0.3:
        return "hash", ("key",)
    return ("rebalance", ()) if random.random() < 0.15 else ("forward", ())
