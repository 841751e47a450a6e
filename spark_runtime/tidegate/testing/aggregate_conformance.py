"""Conformance suite for aggregates: subclass it, define how to create the aggregate, and pytest runs the tests.

Needs pytest and hypothesis. An aggregate that passes returns the results of plain Python in every window, with and
without keys, in streaming and in batch, however its rows are batched, restored and rescaled (S5.1, S5.5).
"""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.api.aggregates import Aggregate, bound_aggregates
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import session, tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.aggregates.aggregation import Aggregation, Selection
from tidegate.state.copy_on_write import CopyOnWriteArrays, Entries
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.conformance import Conformance
from tidegate.testing.pipeline_run import run
from tidegate.testing.script import Checkpoint, Crash

Rows = Sequence[Mapping[str, Any]]

WINDOW_S, GAP_S = 10, 3
_KEY, _TIME, _RESULT = "key", "time", "result"
_SINKS = ("windows", "sessions", "groups", "everything")
_settings = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
_ROW = st.tuples(st.integers(0, 2**16), st.sampled_from("abcd"), st.integers(0, 40))
"""Position in the input, key, and event time in seconds."""
_BATCHES = st.lists(st.lists(_ROW, min_size=1, max_size=10), min_size=1, max_size=5)


class AggregateConformance(Conformance, ABC):
    """Subclass it, named `Test...`, and implement `make_aggregate`, `make_input` and `expected`."""

    @abstractmethod
    def make_aggregate(self) -> Aggregate:
        """Return the aggregate, such as `tidegate.aggregate("median", "delay")`."""

    @abstractmethod
    def make_input(self) -> pa.RecordBatch:
        """Return ten to a hundred rows with the columns of the aggregate, including nulls and equal values; always the
        same.

        No column may be named `key` or `time`: the suite adds these.
        """

    @abstractmethod
    def expected(self, rows: Rows) -> object:
        """Return the result for at least one row, computed in plain Python, as `to_pylist` returns it. Floats may
        differ in the last digits.

        Args:
            rows: rows of `make_input`, each any number of times, in order of arrival; each with its event time as
                `time`, for aggregates that use it.
        """

    def test_its_columns_in_snapshots_begin_with_its_name(self) -> None:
        """The names are durable: a rename of the output column changes the part after the first colon."""
        aggregation = self._aggregation()
        for name in aggregation.state_schema().names:
            prefix, _, output = name.partition(":")
            assert prefix == aggregation.function.name or prefix.startswith(f"{aggregation.function.name}_"), name
            assert output.partition(":")[0] == _RESULT, name

    @_settings
    @given(_BATCHES)
    def test_results_are_those_of_plain_python(self, drawn: list[list[tuple[int, str, int]]]) -> None:
        """Results of many entries at once, and of any selection of them, equal plain Python."""
        held, rows_of = _Held(self._aggregation()), dict[str, list[Mapping[str, Any]]]()
        for rows in map(self._rows, drawn):
            held.add(self._batch(rows), [row[_KEY] for row in rows])
            for row in rows:
                rows_of.setdefault(row[_KEY], []).append(row)
        expected = [self.expected(rows) for rows in rows_of.values()]
        self._require(held.result(slice(0, len(expected))), expected)
        backwards = np.arange(len(expected), dtype=np.int32)[::-1]
        self._require(held.result(backwards), expected[::-1])

    @_settings
    @given(_BATCHES, st.data())
    def test_merge_is_associative(self, drawn: list[list[tuple[int, str, int]]], data: st.DataObject) -> None:
        """Neighbouring states are merged in any grouping, as for panes of windows, sessions, and rescaled subtasks."""
        batches = [self._rows(rows) for rows in drawn]
        states = []
        for rows in batches:
            held = _Held(self._aggregation())
            held.add(self._batch(rows), [""] * len(rows))
            states.append(held)
        while len(states) > 1:
            at = data.draw(st.integers(0, len(states) - 2))
            both = _Held(self._aggregation())
            for one in states[at : at + 2]:
                both.merge(one.state(slice(0, 1)), [""])
            states[at : at + 2] = [both]
        self._require(states[0].result(slice(0, 1)), [self.expected([row for rows in batches for row in rows])])

    @_settings
    @given(_BATCHES)
    def test_any_order_of_states_is_as_good_if_it_says_so(self, drawn: list[list[tuple[int, str, int]]]) -> None:
        """With `any_order`, states may be merged backwards: batch mode aggregates before the exchange."""
        if not self._aggregation().function.any_order:
            return
        batches, merged = [self._rows(rows) for rows in drawn], _Held(self._aggregation())
        for rows in reversed(batches):
            held = _Held(self._aggregation())
            held.add(self._batch(rows), [""] * len(rows))
            merged.merge(held.state(slice(0, 1)), [""])
        self._require(merged.result(slice(0, 1)), [self.expected([row for rows in batches for row in rows])])

    @_settings
    @given(_BATCHES, _BATCHES)
    def test_a_snapshot_is_of_its_moment_and_gives_the_state_back(
        self, before: list[list[tuple[int, str, int]]], after: list[list[tuple[int, str, int]]]
    ) -> None:
        """Later rows are not in the snapshot. The restored state continues without difference."""
        held, restored = _Held(self._aggregation()), _Held(self._aggregation())
        early, late = ([row for rows in drawn for row in self._rows(rows)] for drawn in (before, after))
        held.add(self._batch(early), [row[_KEY] for row in early])
        keys = held.keys
        frozen, results = held.freeze(), held.result(slice(0, len(keys))).to_pylist()
        held.add(self._batch(late), [row[_KEY] for row in late])
        part = StatePart("state", "list", pa.Table.from_batches([frozen()]))
        (decoded,) = decode_parts(encode_parts([part]))
        restored.merge(decoded.table.combine_chunks().to_batches()[0].columns, keys)
        self._require(restored.result(slice(0, len(keys))), results)
        restored.add(self._batch(late), [row[_KEY] for row in late])
        everything = slice(0, len(held.keys))
        self._require(restored.result(everything), held.result(everything).to_pylist())

    def test_nulls_alone_give_what_plain_python_gives(self) -> None:
        """Rows with nulls only, in one batch, and merged with other rows."""
        rows = [dict.fromkeys(self.make_input().schema.names) | {_KEY: "", _TIME: second} for second in range(3)]
        others = self._rows([(number, "", number) for number in range(3)])
        held, merged = _Held(self._aggregation()), _Held(self._aggregation())
        held.add(self._batch(rows), [""] * 3)
        self._require(held.result(slice(0, 1)), [self.expected(rows)])
        merged.add(self._batch(others), [""] * 3)
        merged.merge(held.state(slice(0, 1)), [""])
        self._require(merged.result(slice(0, 1)), [self.expected([*others, *rows])])

    def test_no_rows_are_no_entries(self) -> None:
        """No rows give empty results of the declared types; merging them changes nothing."""
        held, rows = _Held(self._aggregation()), self._rows([(1, "", 0), (2, "", 1)])
        assert held.result(slice(0, 0)).to_pylist() == []
        nothing = held.state(slice(0, 0))
        held.add(self._batch(rows), ["", ""])
        held.merge(nothing, [])
        held.add(self._batch([]), [])
        self._require(held.result(slice(0, 1)), [self.expected(rows)])

    def test_a_job_that_crashes_and_is_rescaled_gives_the_same(self) -> None:
        """A crash and a rescale change nothing in tumbling windows, sessions, groups, and the whole stream."""
        rows = self._some_rows()
        third = len(rows) // 3
        parts = [self._records(part) for part in (rows[:third], rows[third : 2 * third], rows[2 * third :])]
        script = [*parts[0], Checkpoint(), *parts[1], Crash(3), Checkpoint(), Crash(2), *parts[2]]
        found = run(self._pipeline({}), {"rows": script}, parallelism=1)
        for uid in _SINKS:
            self._require_rows(uid, found[uid], rows)

    def test_batch_gives_the_same(self) -> None:
        """Batch mode gives the results of streaming."""
        rows = self._some_rows()
        sinks = {uid: f"aggregate-conformance-{id(self)}-{uid}" for uid in _SINKS}
        with tempfile.TemporaryDirectory(prefix="tidegate-conformance-") as scratch:
            job = InProcessBatch(lambda: self._pipeline(sinks, rows), {"parallelism": 2}, scratch=scratch)
            job.run()
            job.commit()
        for uid, sink in sinks.items():
            self._require_rows(uid, collected(sink).table().to_pylist(), rows)
            clear_collected(sink)

    def _aggregation(self) -> Aggregation:
        """Return the aggregate, bound as a window binds it."""
        (agg,), (field,) = bound_aggregates({_RESULT: self.make_aggregate()}, self._schema(), _TIME, "here")
        assert field.type == agg.bound(self._schema(), field.type).output
        return agg.bound(self._schema(), field.type)

    def _schema(self) -> pa.Schema:
        return pa.schema([*self.make_input().schema, (_KEY, pa.string()), (_TIME, pa.timestamp("s"))])

    def _rows(self, drawn: Iterable[tuple[int, str, int]]) -> list[Mapping[str, Any]]:
        rows = self.make_input().to_pylist()
        return [rows[number % len(rows)] | {_KEY: key, _TIME: second} for number, key, second in drawn]

    def _some_rows(self) -> list[Mapping[str, Any]]:
        return self._rows((number, "abcd"[number * number % 4], number * 7 % 41) for number in range(48))

    def _batch(self, rows: Rows) -> list[pa.Array]:
        """Return the aggregate's columns of some rows."""
        (agg,), _ = bound_aggregates({_RESULT: self.make_aggregate()}, self._schema(), _TIME, "here")
        schema = self._schema()
        return [pa.array([row[name] for row in rows], schema.field(name).type) for name in agg.columns]

    def _records(self, rows: Rows) -> list[pa.RecordBatch]:
        columns = {field.name: pa.array([row[field.name] for row in rows], field.type) for field in self._schema()}
        return [pa.record_batch(columns, schema=self._schema())]

    def _pipeline(self, sinks: Mapping[str, str], rows: Rows = ()) -> Pipeline:
        records = self._records(rows)[0]

        def made(numbers: Any) -> Mapping[str, Any]:
            taken = records.take(pa.array(numbers))
            return dict(zip(taken.schema.names, taken.columns, strict=True))

        p = Pipeline()
        source = DataGen(made, self._schema(), rows=len(rows), splits=1)
        stream = p.read(source, uid="rows").with_watermark(_TIME, "1 h")
        keyed = stream.group_by(_KEY)
        results = {
            "windows": keyed.window(tumbling(f"{WINDOW_S} s")).agg(uid="w", result=self.make_aggregate()),
            "sessions": keyed.window(session(f"{GAP_S} s")).agg(uid="s", result=self.make_aggregate()),
            "groups": keyed.agg(uid="g", output="final", result=self.make_aggregate()),
            "everything": stream.agg(uid="e", output="final", result=self.make_aggregate()),
        }
        for uid, result in results.items():
            result.write(CollectSink(sinks.get(uid, uid)), uid=uid)
        return p

    def _require_rows(self, uid: str, found: Rows, rows: Rows) -> None:
        """Compare the results of a sink with plain Python."""
        wanted: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        ends: dict[str, tuple[int, int]] = {}
        for row in sorted(rows, key=lambda row: row[_TIME]):
            key, second = row[_KEY], row[_TIME]
            first, last = ends.get(key, (second, second))
            ends[key] = (first, second) if second - last <= GAP_S else (second, second)
            group = {
                "windows": (key, second // WINDOW_S * WINDOW_S),
                "sessions": (key, ends[key][0]),
                "groups": (key,),
                "everything": (),
            }
            wanted.setdefault(group[uid], []).append(row)
        arrival = {id(row): number for number, row in enumerate(rows)}
        seen = {}
        for result in found:
            start = (int(result["window_start"].timestamp()),) if "window_start" in result else ()
            seen[(*((result[_KEY],) if _KEY in result else ()), *start)] = result[_RESULT]
        assert len(seen) == len(found) and seen.keys() == wanted.keys(), uid
        for group_, held in wanted.items():
            expected = self.expected(sorted(held, key=lambda row: arrival[id(row)]))
            assert same(seen[group_], expected), f"{uid} {group_}: {seen[group_]} is not {expected}"

    def _require(self, found: pa.Array, expected: Sequence[object]) -> None:
        found.validate(full=True)
        assert found.type == self._aggregation().output, f"{found.type} is not {self._aggregation().output}"
        values = found.to_pylist()
        assert len(values) == len(expected)
        for value, wanted in zip(values, expected, strict=True):
            assert same(value, wanted), f"{value} is not {wanted}"


class _Held:
    """State of an aggregate for some entries, with its arrays; entries are numbered in the order of their keys."""

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._cells = CopyOnWriteArrays(1)
        self._accumulator = aggregation.accumulator(self._cells)
        self._numbers: dict[str, int] = {}

    @property
    def keys(self) -> list[str]:
        """Return the keys by entry."""
        return list(self._numbers)

    def add(self, columns: Sequence[pa.Array], keys: Sequence[str]) -> None:
        """Add rows."""
        known = len(self._numbers)
        entries = self._entries(keys)
        values = self._accumulator.read(columns)
        self._accumulator.add(entries, values if values is None else values.part(0, len(keys)), known)

    def merge(self, columns: Sequence[pa.Array], keys: Sequence[str]) -> None:
        """Merge states."""
        known = len(self._numbers)
        self._accumulator.merge(self._entries(keys), columns, known)

    def state(self, entries: Selection) -> list[pa.Array]:
        """Return the state of some entries."""
        columns = self._accumulator.state(entries)
        assert [column.type for column in columns] == self._aggregation.state_schema().types
        return columns

    def result(self, entries: Selection) -> pa.Array:
        """Return the results of some entries."""
        return self._accumulator.result(entries)

    def freeze(self) -> Callable[[], pa.RecordBatch]:
        """Freeze the state of all entries."""
        size, cells, columns = len(self._numbers), self._cells.freeze(len(self._numbers)), self._accumulator.freeze()
        schema = self._aggregation.state_schema()
        return lambda: pa.RecordBatch.from_arrays(columns(cells.read(0), 0, size), schema=schema)

    def _entries(self, keys: Sequence[str]) -> Entries:
        entries = np.array([self._numbers.setdefault(key, len(self._numbers)) for key in keys], np.int32)
        self._cells.grow(max(len(self._numbers), 1))
        self._cells.touch(entries)
        return entries


def same(found: object, expected: object) -> bool:
    """Compare two results; floats may differ in the last digits, and NaN equals NaN."""
    if isinstance(found, float) and isinstance(expected, int | float):
        both_nan = math.isnan(found) and math.isnan(expected)
        return both_nan or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)
