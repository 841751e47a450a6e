"""Conformance suite for sources: subclass it, define how to create the source, and pytest runs the tests.

Needs pytest and hypothesis. A source that passes can be restored from any snapshot without losing or repeating a record
(S4.1, S4.2).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.connectors.interface import (
    Discovery,
    PollResult,
    ReleasesInput,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tidegate.testing.conformance import Conformance

MAX_BATCH_ROWS = 65_536
_ACTIONS = ["poll", "poll", "poll", "snapshot", "restore"]
_settings = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


class SourceConformance(Conformance, ABC):
    """Subclass it, named `Test...`, and implement `make_source`.

    Attributes:
        enough_rows: number of records per split of an unbounded source that are compared.
    """

    enough_rows = 500

    @abstractmethod
    def make_source(self) -> Source:
        """Return a new source over the same input each time: some hundreds of records, created in milliseconds."""

    def test_a_fresh_start_is_accepted(self) -> None:
        """The check before the start changes nothing, and may be repeated."""
        source = self.make_source()
        source.check_fresh_start()
        source.check_fresh_start()

    def test_discovering_twice_gives_the_same_json_able_splits(self) -> None:
        """S4.3: splits are deterministic, unique, and serialisable in a snapshot."""
        first, second = splits_of(self.make_source(), 3), splits_of(self.make_source(), 3)
        assert list(first) == list(second)
        assert len({split.split_id for split in first}) == len(first)
        assert [through_json(split) for split in first] == list(first)
        assert all(split.position is None and not split.finished and split.weight > 0 for split in first)

    def test_every_batch_has_the_schema_and_a_known_split(self) -> None:
        """Batches fulfil the guarantees of `poll`."""
        source = self.make_source()
        splits = splits_of(source)
        reader = _reader(source, splits)
        seen = _play(source, reader, self.enough_rows)
        reader.close()
        for polled in seen:
            for name, rows in polled.sides.items():
                assert rows.schema.equals(source.side_outputs()[name]), rows.schema
            if polled.batch is None:
                continue
            assert polled.batch.schema.equals(source.schema()), polled.batch.schema
            assert 0 < polled.batch.num_rows <= MAX_BATCH_ROWS
            assert polled.split_id in {split.split_id for split in splits}

    def test_a_bounded_source_ends_and_an_unbounded_one_never_does(self) -> None:
        """S4.2: this is the only difference between bounded and unbounded sources."""
        source = self.make_source()
        reader = _reader(source, splits_of(source))
        _play(source, reader, self.enough_rows)
        if source.boundedness == "bounded":
            assert reader.poll(10**9).state == "end", "a bounded source has left its end"
            assert all(split.finished for split in reader.snapshot())
            assert reader.active_splits() == frozenset()
        elif source.continuous_discovery() is None:
            assert not any(split.finished for split in reader.snapshot())
        reader.close()

    def test_a_lineage_that_never_ran_owns_nothing(self) -> None:
        """S2.3: releasing is idempotent, and a release finds nothing where nothing was read."""
        source = self.make_source()
        if not isinstance(source, ReleasesInput):
            return
        ctx = SourceContext("in", 0, 1, job_id="job-1", lineage="never-ran")
        assert [list(source.release(ctx, dry_run=dry_run)) for dry_run in (True, False, False)] == [[], [], []]

    def test_a_reader_without_splits_ends_or_is_idle(self) -> None:
        """More subtasks than splits are allowed."""
        source = self.make_source()
        reader = _reader(source, [])
        polled = reader.poll(0)
        reader.close()
        assert polled.state == "end" if source.boundedness == "bounded" else polled.idle

    @_settings
    @given(st.lists(st.tuples(st.sampled_from(_ACTIONS), st.sampled_from([0, 1, 7, 1_000, 60_000])), max_size=30))
    def test_any_interleaving_of_polls_snapshots_and_restores_gives_each_record_once(
        self, script: list[tuple[str, int]]
    ) -> None:
        """S4.1, S4.2: records per split equal the records of an uninterrupted run, in the same order."""
        source = self.make_source()
        splits = splits_of(source)
        reader = _reader(source, splits)
        uninterrupted = _play(source, reader, self.enough_rows)
        whole, counters = _by_split(uninterrupted), dict(reader.counters())
        reader.close()
        reader, taken = _reader(source, splits), list(splits)
        kept: list[PollResult] = []
        seen: list[PollResult] = []
        now_ms = 0
        for action, passed_ms in script:
            now_ms += passed_ms
            if action == "snapshot":
                taken, kept = [through_json(split) for split in reader.snapshot()], list(seen)
            elif action == "restore":
                reader.close()
                reader, seen = _reader(self.make_source(), taken), list(kept)
            else:
                polled = reader.poll(now_ms)
                if polled.batch is not None or polled.sides:
                    seen.append(polled)
        seen.extend(_play(source, reader, self.enough_rows, now_ms))
        reader.close()
        if source.boundedness == "bounded":
            assert dict(reader.counters()) == counters, "a skipped record was not counted once"
            assert _side_rows(seen) == _side_rows(uninterrupted)
        found = _by_split(seen)
        assert found.keys() == whole.keys()
        for split_id, expected in whole.items():
            rows = found[split_id].num_rows
            if source.boundedness == "unbounded" and expected.num_rows >= self.enough_rows:
                assert rows >= self.enough_rows
                rows = min(rows, expected.num_rows)
            assert found[split_id].slice(0, rows).equals(expected.slice(0, rows)), f"split {split_id}"


def through_json(split: Split) -> Split:
    """Return the split after the JSON round trip of a snapshot."""
    return replace(split, data=json.loads(json.dumps(split.data)), position=json.loads(json.dumps(split.position)))


class DiscoveringSourceConformance(SourceConformance, ABC):
    """The suite of a source that discovers splits while the job runs. Implement `add_input`, too."""

    @abstractmethod
    def add_input(self) -> None:
        """Add one split or more to the input of all sources that this test has made."""

    def test_a_search_finds_each_split_once(self) -> None:
        """S4.3: what an earlier search has found is not found again, and what is added is found."""
        enumerator = self.make_source().create_enumerator(None)
        before = _searched(enumerator)
        assert before.splits and _searched(enumerator).splits == []
        self.add_input()
        added = _searched(enumerator).splits
        enumerator.close()
        assert added and not {s.split_id for s in added} & {s.split_id for s in before.splits}

    def test_an_enumerator_with_a_restored_state_finds_only_later_splits(self) -> None:
        """S4.3, for the state after each search, after the JSON round trip of a snapshot."""
        enumerator = self.make_source().create_enumerator(None)
        states: list[tuple[object, list[str]]] = [(None, [])]
        found: list[str] = []
        for add in (False, True):
            if add:
                self.add_input()
            while (search := enumerator.discover()).splits or search.more:
                found += [split.split_id for split in search.splits]
                states.append((json.loads(json.dumps(search.state)), list(found)))
        enumerator.close()
        for state, known in states:
            restored = self.make_source().create_enumerator(state)
            later = [split.split_id for split in _searched(restored).splits]
            restored.close()
            assert sorted(known + later) == sorted(found), f"from state {state}"

    def test_splits_that_are_assigned_while_a_reader_reads_are_read_once(self) -> None:
        """S4.3: one after the other, between polls, with a snapshot and a restore after each."""
        source = self.make_source()
        splits = splits_of(source)
        reader = _reader(source, splits)
        whole = _by_split(_play(source, reader, self.enough_rows))
        reader.close()
        reader = _reader(source, [], last=False)
        assert reader.poll(0).idle, "a reader without splits waits, and holds no watermark back"
        seen: list[PollResult] = []
        for split in splits:
            reader.add_splits([split])
            seen += [polled for polled in [reader.poll(1)] if polled.batch is not None]
            taken = [through_json(part) for part in reader.snapshot()]
            reader.close()
            reader = _reader(self.make_source(), taken, last=False)
        reader.no_more_splits()
        seen += _play(source, reader, self.enough_rows, 1)
        reader.close()
        found = _by_split(seen)
        assert found.keys() == whole.keys()
        for split_id, expected in whole.items():
            rows = min(found[split_id].num_rows, expected.num_rows)
            assert found[split_id].slice(0, rows).equals(expected.slice(0, rows)), f"split {split_id}"


def splits_of(source: Source, parallelism: int = 2) -> list[Split]:
    """Return all splits that a source has now."""
    if source.continuous_discovery() is None:
        return list(source.discover(parallelism))
    enumerator = source.create_enumerator(None)
    found = list(_searched(enumerator).splits)
    enumerator.close()
    return found


def _searched(enumerator: SplitEnumerator) -> Discovery:
    """Search until nothing more is known. Return the last result, with all splits."""
    found = enumerator.discover()
    splits = list(found.splits)
    while found.more:
        found = enumerator.discover()
        splits += found.splits
    return replace(found, splits=splits)


def _reader(source: Source, splits: Sequence[Split], *, last: bool = True) -> SourceReader:
    reader = source.create_reader(SourceContext("source", 0, 1))
    reader.add_splits(splits)
    if last:
        reader.no_more_splits()
    return reader


def _play(source: Source, reader: SourceReader, enough_rows: int, now_ms: int = 0) -> list[PollResult]:
    """Poll, with a clock that follows the reader's requests: to the end, to idleness, or until an unbounded source has
    returned `enough_rows` records of each split."""
    seen: list[PollResult] = []
    missing = {split.split_id: enough_rows for split in reader.snapshot()}
    while source.boundedness == "bounded" or any(rows > 0 for rows in missing.values()):
        polled = reader.poll(now_ms)
        if polled.sides and polled.batch is None:
            seen.append(polled)
        if polled.batch is not None:
            assert polled.state != "end" and polled.split_id is not None
            seen.append(polled)
            missing[polled.split_id] -= polled.batch.num_rows
        elif polled.state == "end" or (polled.idle and not polled.sides):
            break
        if polled.state == "nothing_now":
            assert polled.retry_at_ms >= now_ms, "the reader requests a poll in the past"
            now_ms = max(now_ms + 1, polled.retry_at_ms)
    return seen


def _side_rows(seen: Sequence[PollResult]) -> dict[str, list[object]]:
    """Return the rows of side outputs, in order."""
    rows: dict[str, list[object]] = {}
    for polled in seen:
        for name, batch in polled.sides.items():
            rows.setdefault(name, []).extend(batch.to_pylist())
    return rows


def _by_split(seen: Sequence[PollResult]) -> dict[str, pa.Table]:
    batches: dict[str, list[pa.RecordBatch]] = {}
    for polled in seen:
        if polled.batch is None:
            continue
        assert polled.split_id is not None
        batches.setdefault(polled.split_id, []).append(polled.batch)
    return {split_id: pa.Table.from_batches(given).combine_chunks() for split_id, given in batches.items()}
