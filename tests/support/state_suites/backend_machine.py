"""A hypothesis state machine: keyed state back ends beside the reference, with snapshots, crashes, rescales as steps.

`run_state_machine_as_test(partial(BackendMachine, {"mine": MyBackend}))` in a test runs it. Needs hypothesis. A job of
1 to 5 subtasks runs on one of the back ends; the reference holds all keys at once. A batch goes to each subtask by key
group and whole to the reference; what is read must be equal. A crash puts both back to the last completed snapshot, the
job at another parallelism, and after a portable snapshot perhaps on another of the back ends.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from state_suites.backend_tests import KEY_CASES
from state_suites.everything import DESCRIPTORS, Everything
from state_suites.model_backend import ModelBackend
from state_suites.plain_states import MAX_PARALLELISM, FakeClock, PlainBackend, Row, SnapshotShelf, plain
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import KeyedStateBackend, StateDescriptor, TimeToLive

MAX_SUBTASKS = 5
Pairs: TypeAlias = Sequence[tuple[Row, int]]
"""(key, a number that values are made from)."""

_SECOND, _AFTER_READ = TimeToLive(1_000), TimeToLive(1_500, on_read=True)
_V = pa.schema([("v", pa.int64())])
_M = pa.schema([("m", pa.int64())])
TTL_DESCRIPTORS = (
    StateDescriptor("ttl value", "value", _V, ttl=_SECOND),
    StateDescriptor("ttl list", "list", _V, ttl=_AFTER_READ),
    StateDescriptor("ttl map", "map", pa.schema([("v", pa.string())]), map_key=_M, ttl=_AFTER_READ),
    StateDescriptor("ttl sum", "reducing", _V, reductions=("sum",), ttl=_SECOND),
)


class Driven(Everything):
    """States of every kind, some with a TTL, and what a batch can do to them."""

    def __init__(self, backend: PlainBackend) -> None:
        """Declares the states."""
        super().__init__(backend)
        value, elements, entries, total = TTL_DESCRIPTORS
        self.ttl_value, self.ttl_list = backend.value(value), backend.list(elements)
        self.ttl_map, self.ttl_sum = backend.map(entries), backend.merging(total)

    def read(self, keys: Sequence[Row]) -> dict[str, Any]:
        """Everything these keys have."""
        found = super().read(keys)
        names = [repr(plain(key)) for key in keys]
        found["ttl value"] = dict(zip(names, self.ttl_value.get(keys)))
        found["ttl list"] = dict(zip(names, self.ttl_list.get(keys)))
        found["ttl map"] = dict(zip(names, self.ttl_map.entries(keys)))
        found["ttl sum"] = dict(zip(names, self.ttl_sum.get(keys)))
        return found

    def all_keys(self) -> dict[str, set[bytes]]:
        """The keys of every state."""
        return {d.name: self.backend.all_keys(d) for d in (*DESCRIPTORS, *TTL_DESCRIPTORS)}


def _masked(pairs: Pairs) -> Callable[[Row], bool]:
    chosen = {repr(plain(key)): n % 2 == 0 for key, n in pairs}
    return lambda key: chosen[repr(plain(key))]


def _lists(pairs: Pairs) -> list[tuple[Row, list[Row]]]:
    by_key: dict[str, tuple[Row, list[Row]]] = {}
    for key, n in pairs:
        by_key[repr(plain(key))] = key, [([n] * i,) for i in range(n % 4)]
    return list(by_key.values())


def _text(n: int) -> str | None:
    return None if n % 4 == 0 else f"{'x' * (n % 20)}{n % 5}"


OPERATIONS: Mapping[str, Callable[[Driven, Pairs], None]] = {
    "put": lambda d, p: d.value.put([(k, (n, _text(n), n / 8 if n % 3 else None)) for k, n in p]),
    "put some": lambda d, p: d.value.put([(k, (n, _text(n), -0.0)) for k, n in p], _masked(p)),
    "clear": lambda d, p: d.value.clear([k for k, _ in p]),
    "clear some": lambda d, p: d.value.clear([k for k, _ in p], _masked(p)),
    "append": lambda d, p: d.list.append([(k, ([n, None],) if n % 3 else (None,)) for k, n in p]),
    "put lists": lambda d, p: d.list.put(_lists(p)),
    "clear lists": lambda d, p: d.list.clear([k for k, _ in p], _masked(p)),
    "put entries": lambda d, p: d.map.put([(k, (_text(n),), (n,)) for k, n in p]),
    "remove entries": lambda d, p: d.map.remove([(k, (_text(n),)) for k, n in p]),
    "clear maps": lambda d, p: d.map.clear([k for k, _ in p]),
    "reduce": lambda d, p: d.reducing.add([(k, (n, n / 2, _text(n), _text(n + 1))) for k, n in p]),
    "clear reduced": lambda d, p: d.reducing.clear([k for k, _ in p]),
    "aggregate": lambda d, p: d.aggregating.add([(k, (f"{n},", 1)) for k, n in p]),
    "clear aggregated": lambda d, p: d.aggregating.clear([k for k, _ in p], _masked(p)),
    "put with ttl": lambda d, p: d.ttl_value.put([(k, (n,)) for k, n in p]),
    "append with ttl": lambda d, p: d.ttl_list.append([(k, (n,)) for k, n in p]),
    "put entries with ttl": lambda d, p: d.ttl_map.put([(k, (n % 5,), (_text(n),)) for k, n in p]),
    "sum with ttl": lambda d, p: d.ttl_sum.add([(k, (n,)) for k, n in p]),
    "clear what has ttl": lambda d, p: [s.clear([k for k, _ in p]) for s in (d.ttl_list, d.ttl_map)].clear(),
    "register": lambda d, p: d.event.register([(k, n % 30) for k, n in p]),
    "register processing": lambda d, p: d.processing.register([(k, n % 10) for k, n in p]),
    "delete timers": lambda d, p: d.event.delete([(k, n % 30) for k, n in p]),
}


@dataclass
class Subtask:
    """A running subtask: its states, its blobs, and the ids that completed checkpoints have."""

    driven: Driven
    shelf: SnapshotShelf = field(default_factory=SnapshotShelf)
    known: frozenset[str] = frozenset()


@dataclass
class Pending:
    """A snapshot that was frozen and is not written yet."""

    model: AsyncSnapshot
    writes: Sequence[AsyncSnapshot]
    portable: bool


@dataclass
class Completed:
    """A snapshot that can be restored."""

    model: Sequence[StatePart]
    subtasks: Sequence[Sequence[StatePart]]
    portable: bool


class BackendMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self, backends: Mapping[str, Callable[[], KeyedStateBackend]]) -> None:
        """Args: backends: that the job may run on, by name."""
        super().__init__()
        self._backends = dict(backends)
        self._directory = Path(tempfile.mkdtemp(prefix="tidegate-states-"))
        self._opened: list[PlainBackend] = []
        self._clock = FakeClock()
        self._checkpoint_id = 0
        self._pending: Pending | None = None
        self._completed: Completed | None = None

    @initialize(data=st.data(), case=st.sampled_from(sorted(KEY_CASES)), parallelism=st.integers(1, MAX_SUBTASKS))
    def start(self, data: st.DataObject, case: str, parallelism: int) -> None:
        """A job without state."""
        self._key_schema, keys = KEY_CASES[case]
        self._keys = list(keys)
        if case == "int64":
            self._keys += [(n,) for n in range(100, 130)]
        self._name = data.draw(st.sampled_from(sorted(self._backends)))
        self._deploy(parallelism)

    @rule(
        what=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4),
        batch=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), max_size=25),
    )
    def process(self, what: Sequence[str], batch: Sequence[tuple[int, int]]) -> None:
        """Some operations with one batch each."""
        pairs = [(self._keys[at % len(self._keys)], n) for at, n in batch]
        for name in what:
            OPERATIONS[name](self._model, pairs)
            for subtask in self._subtasks:
                mine = set(map(repr, subtask.driven.backend.mine([key for key, _ in pairs])))
                OPERATIONS[name](subtask.driven, [(key, n) for key, n in pairs if repr(key) in mine])

    @rule(first=st.integers(0, 1000), count=st.integers(50, 300))
    def process_many(self, first: int, count: int) -> None:
        """A batch of many keys, of integers only."""
        if self._key_schema.field(0).type == pa.int64():
            keys: list[Row] = [(n,) for n in range(first, first + count)]
            for driven in self._all():
                mine = driven.backend.mine(keys)
                driven.value.put([(key, (key[0], str(key[0]), None)) for key in mine])
                driven.list.append([(key, ([key[0]],)) for key in mine])
                driven.value.clear([key for key in mine if key[0] % 3 == 0])
                driven.event.register([(key, key[0] % 50) for key in mine])

    @rule(until=st.integers(0, 40), limit=st.integers(1, 7))
    def fire(self, until: int, limit: int) -> None:
        """Timers come due."""
        for kind in ("event", "processing"):
            expected = list(getattr(self._model, kind).all_due(until, 1000))
            found: list[tuple[Row, int]] = []
            for subtask in self._subtasks:
                of_one = list(getattr(subtask.driven, kind).all_due(until, limit))
                assert [time for _, time in of_one] == sorted(time for _, time in of_one)
                found += of_one
            assert sorted(map(repr, found)) == sorted(map(repr, expected))
            earliest = [getattr(subtask.driven, kind).next_us() for subtask in self._subtasks]
            assert (
                min((time for time in earliest if time is not None), default=None)
                == getattr(self._model, kind).next_us()
            )

    @rule(ms=st.sampled_from([1, 300, 700, 1_000, 5_000]))
    def wait(self, ms: int) -> None:
        """Processing time passes."""
        self._clock.ms += ms

    @rule()
    def compare(self) -> None:
        """All reads are equal."""
        expected = self._model.read(self._keys)
        found: dict[str, Any] = {name: {} for name in expected}
        for subtask in self._subtasks:
            for name, rows in subtask.driven.read(subtask.driven.backend.mine(self._keys)).items():
                found[name].update(rows)
        assert found == expected
        ids = self._model.all_keys()
        of_each = [subtask.driven.all_keys() for subtask in self._subtasks]
        assert {name: set().union(*(found[name] for found in of_each)) for name in ids} == ids

    @precondition(lambda self: self._pending is None)
    @rule(portable=st.booleans())
    def freeze(self, portable: bool) -> None:
        """The synchronous part of a snapshot."""
        self._checkpoint_id += 1
        writes = [
            subtask.driven.backend.backend.snapshot(self._checkpoint_id, portable=portable)
            for subtask in self._subtasks
        ]
        self._pending = Pending(self._model.backend.backend.snapshot(self._checkpoint_id), writes, portable)

    @precondition(lambda self: self._pending is not None)
    @rule(completes=st.sampled_from([True, True, True, False]))
    def write(self, completes: bool) -> None:
        """The asynchronous part; or the checkpoint is aborted after it."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        parts = [
            subtask.shelf.take(write(), subtask.known)
            for subtask, write in zip(self._subtasks, pending.writes, strict=True)
        ]
        if not completes:
            return
        for subtask, taken in zip(self._subtasks, parts, strict=True):
            subtask.known = frozenset(blob.id for part in taken for blob in part.blobs)
        self._completed = Completed(pending.model(), parts, pending.portable)

    @precondition(lambda self: self._completed is not None)
    @rule(data=st.data(), parallelism=st.integers(1, MAX_SUBTASKS))
    def crash_and_restore(self, data: st.DataObject, parallelism: int) -> None:
        """Back to the last completed snapshot."""
        completed = self._completed
        assert completed is not None
        self._pending = None
        self._close()
        if completed.portable:
            self._name = data.draw(st.sampled_from(sorted(self._backends)))
        self._deploy(parallelism)
        self._model.backend.backend.restore(completed.model)
        for index, subtask in enumerate(self._subtasks):
            mine = key_group_range(index, parallelism, MAX_PARALLELISM)
            parts: list[StatePart] = []
            for former, taken in enumerate(completed.subtasks):
                theirs = key_group_range(former, len(completed.subtasks), MAX_PARALLELISM)
                if theirs.start < mine.stop and mine.start < theirs.stop:
                    parts += taken
            subtask.driven.backend.backend.restore(parts)
        self.compare()

    def teardown(self) -> None:
        """Close everything."""
        self._close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _all(self) -> list[Driven]:
        return [self._model, *(subtask.driven for subtask in self._subtasks)]

    def _deploy(self, parallelism: int) -> None:
        self._model = self._open(ModelBackend, 0, 1)
        self._subtasks = [
            Subtask(self._open(self._backends[self._name], index, parallelism)) for index in range(parallelism)
        ]

    def _open(self, make: Callable[[], KeyedStateBackend], index: int, parallelism: int) -> Driven:
        scratch = tempfile.mkdtemp(dir=self._directory)
        backend = PlainBackend(
            make(),
            scratch=scratch,
            clock=self._clock,
            key_schema=self._key_schema,
            index=index,
            parallelism=parallelism,
        )
        self._opened.append(backend)
        return Driven(backend)

    def _close(self) -> None:
        for backend in self._opened:
            backend.backend.close()
        self._opened = []
