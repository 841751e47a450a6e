"""Conformance suite for two-phase-commit sinks: subclass it, define how to create the sink, and pytest runs the tests.

Needs pytest and hypothesis. A sink that passes publishes each record once, whatever crashes (S7.4).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import dataset

from tidegate.connectors.interface import CollectsLeftovers, Sink, SinkWriter, SupportsQuarantine, SupportsRewind
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, parse_transaction_id
from tidegate.errors import TidegateError
from tidegate.jobs.client.staged_data import StagedData, merge_staged, quarantined_data
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store_registry import open_store
from tidegate.testing.conformance import Conformance
from tidegate.testing.one_sink_job import (
    COLLECT_ACTIONS,
    CRASH_ACTIONS,
    REWIND_ACTIONS,
    OneSinkJob,
    TestWriter,
    numbers,
)

_settings = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


class SinkConformance(Conformance, ABC):
    """Subclass it, named `Test...`, and implement the two methods. Records are batches of one int64 column `n`."""

    @abstractmethod
    def make_sink(self, fresh: bool) -> Sink:
        """Return a two-phase-commit sink. Args: fresh: use a new, empty target, else the target created last."""

    @abstractmethod
    def visible(self) -> list[int]:
        """Return what readers see in the target created last, in any order."""

    def read_staged(self, staged: StagedData) -> list[int] | None:
        """Return the rows at the place that the sink reports for staged data (S7.8).

        Override it for formats other than Parquet. None: the sink reports no place.
        """
        if staged.kind == "opaque":
            return None
        paths = [url_to_fs(path) for path in staged.paths]
        files = dataset.dataset([path for _, path in paths], format=staged.format, filesystem=paths[0][0])
        return [int(n) for n in files.to_table().column("n").to_pylist()]

    def _prepared(self, writer: SinkWriter, checkpoint_id: int, first: int, count: int) -> list[Committable]:
        writer.write(numbers(first, count))
        made = writer.prepare_commit(checkpoint_id)()
        return [replace(c, data=json.loads(json.dumps(dict(c.data)))) for c in made]

    def test_nothing_is_visible_before_the_commit_and_everything_after(self) -> None:
        """S7.4."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context())
        handles = self._prepared(writer, 1, 0, 5)
        assert self.visible() == []
        writer.commit(handles)
        assert sorted(self.visible()) == [0, 1, 2, 3, 4]

    def test_records_after_the_barrier_belong_to_the_next_transaction(self) -> None:
        """S3.6: also when the asynchronous part of the first transaction runs after them."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context())
        writer.write(numbers(0, 2))
        stage = writer.prepare_commit(1)
        writer.write(numbers(2, 2))
        later = writer.prepare_commit(2)
        writer.commit(later())
        assert sorted(self.visible()) == [2, 3]
        writer.commit(stage())
        assert sorted(self.visible()) == [0, 1, 2, 3]

    def test_a_handle_tells_who_wrote_it_for_which_checkpoint(self) -> None:
        """S7.4, S7.8: its id is made by `transaction_id`, so verdicts on a checkpoint find its transactions."""
        ctx = TestWriter().context(3, parallelism=4)
        writer = self.make_sink(fresh=True).create_writer(ctx)
        handles = [handle for n in (1, 2) for handle in self._prepared(writer, n, 10 * n, 2)]
        parsed = [parse_transaction_id(handle.transaction_id) for handle in handles]
        assert sorted({made.checkpoint_id for made in parsed}) == [1, 2]
        assert {(made.job_id, made.lineage, made.uid, made.subtask) for made in parsed} == {
            (ctx.job_id, ctx.lineage, ctx.uid, ctx.subtask)
        }
        assert {(made.generation, made.run_id) for made in parsed} == {(ctx.generation, ctx.run_id)}
        assert len({handle.transaction_id for handle in handles}) == len(handles), "ids are not unique"

    def test_what_was_written_before_the_end_of_the_input_is_committed_as_ever(self) -> None:
        """S7.2: also when only the last snapshot follows the end. Nothing of it is visible before."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context())
        writer.commit(self._prepared(writer, 1, 0, 2))
        writer.write(numbers(2, 3))
        writer.end_input()
        assert sorted(self.visible()) == [0, 1]
        handles = writer.prepare_commit(2)()
        assert list(writer.prepare_commit(3)()) == []
        writer.commit(handles)
        writer.close()
        assert sorted(self.visible()) == [0, 1, 2, 3, 4]

    def test_what_was_written_before_the_end_of_the_input_is_dropped_without_a_snapshot(self) -> None:
        """S7.4: the run has failed, and the next one writes it again."""
        identity = TestWriter()
        writer = self.make_sink(fresh=True).create_writer(identity.context())
        writer.write(numbers(0, 3))
        writer.end_input()
        writer.close()
        identity.run = 2
        again = self.make_sink(fresh=False).create_writer(identity.context())
        again.recover(0)
        again.commit(self._prepared(again, 1, 0, 3))
        assert sorted(self.visible()) == [0, 1, 2]

    def test_an_empty_transaction_has_no_handle(self) -> None:
        """Idle checkpoints leave no data."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context())
        assert list(writer.prepare_commit(1)()) == []

    def test_what_is_staged_can_be_read_before_its_commit(self) -> None:
        """S7.8: at the place that the sink reports for its handle, which makes a JSON round trip as in a snapshot."""
        ctx = TestWriter().context()
        sink = self.make_sink(fresh=True)
        writer = sink.create_writer(ctx)
        self._prepared(writer, 1, 0, 3)
        handles = self._prepared(writer, 2, 3, 4)
        parsed = [StagedData.from_json(json.loads(json.dumps(sink.staged(ctx, 2, h).to_json()))) for h in handles]
        assert {(t.uid, t.checkpoint_id) for t in parsed} == {(ctx.uid, 2)}
        (staged,) = merge_staged(parsed)
        found = self.read_staged(staged)
        assert found is None or sorted(found) == [3, 4, 5, 6]
        assert staged.rows == (4 if found is not None else staged.rows)
        assert self.visible() == []

    def test_committing_again_changes_nothing(self) -> None:
        """Commits are idempotent: in the same run, and in the run that restores."""
        identity = TestWriter()
        writer = self.make_sink(fresh=True).create_writer(identity.context())
        handles = self._prepared(writer, 1, 0, 3)
        writer.commit(handles)
        writer.commit(handles)
        identity.generation = 2
        self.make_sink(fresh=False).create_writer(identity.context()).commit(handles)
        assert sorted(self.visible()) == [0, 1, 2]

    def test_a_later_run_commits_what_an_earlier_one_prepared(self) -> None:
        """The run crashes between completion and commit."""
        identity = TestWriter()
        first = self.make_sink(fresh=True).create_writer(identity.context())
        handles = self._prepared(first, 1, 0, 3)
        first.close()
        identity.run = 2
        second = self.make_sink(fresh=False).create_writer(identity.context())
        second.commit(handles)
        second.recover(1)
        assert sorted(self.visible()) == [0, 1, 2]

    def test_a_transaction_with_neither_marker_nor_data_is_a_loud_failure(self) -> None:
        """S7.4: the sink must not treat it as committed."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context())
        handles = self._prepared(writer, 1, 0, 3)
        writer.abort(handles)
        writer.abort(handles)
        _expect_refusal(lambda: writer.commit(handles))
        assert self.visible() == []

    def test_aborting_a_committed_transaction_takes_nothing_away(self) -> None:
        """Published output stays published."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context())
        handles = self._prepared(writer, 1, 0, 3)
        writer.commit(handles)
        writer.abort(handles)
        assert sorted(self.visible()) == [0, 1, 2]

    def test_recovery_removes_what_failed_runs_left_but_not_what_awaits_a_verdict(self) -> None:
        """S7.4, S7.8."""
        identity = TestWriter()
        first = self.make_sink(fresh=True).create_writer(identity.context())
        waiting, garbage = self._prepared(first, 1, 0, 2), self._prepared(first, 2, 2, 2)
        identity.run = 2
        second = self.make_sink(fresh=False).create_writer(identity.context())
        own = self._prepared(second, 3, 4, 2)
        second.recover(1, waiting)
        _expect_refusal(lambda: second.commit(garbage))
        second.commit(waiting)
        second.commit(own)
        assert sorted(self.visible()) == [0, 1, 4, 5]

    def test_what_is_in_quarantine_can_be_read_and_never_committed(self, tmp_path: Path) -> None:
        """S7.8: the move may be repeated, in this run or a later one. Recovery keeps the data; the rest is
        committed."""
        identity = TestWriter()
        sink = self.make_sink(fresh=True)
        if not isinstance(sink, SupportsQuarantine):
            return
        first = sink.create_writer(identity.context())
        kept, gone, late = (self._prepared(first, n, 10 * n, 3) for n in (1, 2, 3))
        store = open_store(str(tmp_path))
        into = Quarantine(store, "job/quarantine", WithheldRange(1, (2,), "anna", "wrong prices"))
        sink.quarantine(identity.context(), gone, into)
        sink.quarantine(identity.context(), gone, into)
        identity.generation = 2
        later = self.make_sink(fresh=False)
        assert isinstance(later, SupportsQuarantine)
        later.quarantine(identity.context(), gone, into)
        second = later.create_writer(identity.context())
        _expect_refusal(lambda: second.commit(gone))
        second.recover(1, [*kept, *late])
        second.commit([*kept, *late])
        assert sorted(self.visible()) == [10, 11, 12, 30, 31, 32]
        found = [self.read_staged(data) for data in quarantined_data(store, "job/quarantine", 2)]
        assert [sorted(rows or ()) for rows in found] in ([[20, 21, 22]], []), "opaque data has no note"
        assert not quarantined_data(store, "job/quarantine", 3)

    def test_a_zombie_that_recovers_late_does_not_harm_its_successor(self) -> None:
        """S9.2: zombies are fenced by generation, and within a generation by the order of runs."""
        for newer in ("generation", "run"):
            identity = TestWriter()
            zombie = self.make_sink(fresh=True).create_writer(identity.context())
            setattr(identity, newer, 2)
            self._recovered_late(zombie, identity)

    def _recovered_late(self, zombie: SinkWriter, identity: TestWriter) -> None:
        writer = self.make_sink(fresh=False).create_writer(identity.context())
        handles = self._prepared(writer, 1, 0, 2)
        zombie.recover(0)
        writer.commit(handles)
        assert sorted(self.visible()) == [0, 1]

    def test_recovery_leaves_other_subtasks_alone(self) -> None:
        """Each subtask cleans up its own data."""
        identity = TestWriter()
        other = self.make_sink(fresh=True).create_writer(identity.context(subtask=1))
        handles = self._prepared(other, 1, 0, 2)
        identity.generation = 2
        self.make_sink(fresh=False).create_writer(identity.context(subtask=0)).recover(0)
        other.commit(handles)
        assert sorted(self.visible()) == [0, 1]

    def test_a_rescaled_run_commits_what_subtasks_that_are_no_more_prepared(self) -> None:
        """S5.5, S7.4: subtask 1 of 2 is responsible for subtask 3 of 4, and later subtask 1 of 3 for subtask 1 of 2."""
        identity = TestWriter()
        first = self.make_sink(fresh=True).create_writer(identity.context(3, parallelism=4))
        early, late = self._prepared(first, 1, 0, 2), self._prepared(first, 2, 2, 2)
        first.close()
        identity.generation = 2
        second = self.make_sink(fresh=False).create_writer(identity.context(1, parallelism=2))
        second.commit(early)
        second.recover(1, late)
        assert sorted(self.visible()) == [0, 1]
        identity.generation = 3
        self.make_sink(fresh=False).create_writer(identity.context(0, parallelism=3)).commit([*early, *late])
        assert sorted(self.visible()) == [0, 1, 2, 3]

    def test_leftovers_of_subtasks_that_are_no_more_are_removed_by_who_looks_after_them(self) -> None:
        """S7.4: subtask 1 of 2 removes the leftovers of subtask 3 of 4, and keeps its own staged data."""
        identity = TestWriter()
        first = self.make_sink(fresh=True).create_writer(identity.context(3, parallelism=4))
        garbage = self._prepared(first, 2, 0, 2)
        identity.generation = 2
        keeper = self.make_sink(fresh=False).create_writer(identity.context(1, parallelism=2))
        own = self._prepared(keeper, 3, 2, 2)
        keeper.recover(0)
        _expect_refusal(lambda: keeper.commit(garbage))
        keeper.commit(own)
        assert sorted(self.visible()) == [2, 3]

    def test_a_stranger_leaves_what_another_looks_after(self) -> None:
        """S7.4: output prepared by subtask 3 of 4 survives the recovery of subtask 0 of 2."""
        identity = TestWriter()
        first = self.make_sink(fresh=True).create_writer(identity.context(3, parallelism=4))
        handles = self._prepared(first, 2, 0, 2)
        identity.generation = 2
        self.make_sink(fresh=False).create_writer(identity.context(0, parallelism=2)).recover(0)
        self.make_sink(fresh=False).create_writer(identity.context(1, parallelism=2)).commit(handles)
        assert sorted(self.visible()) == [0, 1]

    def test_a_fork_touches_nothing_of_its_original(self) -> None:
        """S7.4."""
        original = self.make_sink(fresh=True).create_writer(TestWriter().context())
        handles = self._prepared(original, 1, 0, 2)
        fork = TestWriter("lineage-2")
        fork.generation = 5
        writer = self.make_sink(fresh=False).create_writer(fork.context())
        writer.recover(1)
        _expect_refusal(lambda: writer.commit(handles))
        _expect_refusal(lambda: writer.abort(handles))
        original.commit(handles)
        _expect_refusal(lambda: writer.commit(handles))
        assert sorted(self.visible()) == [0, 1]

    def test_closing_drops_what_was_not_prepared(self) -> None:
        """Prepared output is kept."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context())
        handles = self._prepared(writer, 1, 0, 2)
        writer.write(numbers(2, 2))
        writer.close()
        self.make_sink(fresh=False).create_writer(TestWriter().context()).commit(handles)
        assert sorted(self.visible()) == [0, 1]

    def test_rewinding_takes_back_what_was_published_behind_the_snapshot(self) -> None:
        """S9.3: of every subtask. Output that the snapshot covers stays, published or staged; so does output of a
        fork."""
        identity = TestWriter()
        sink = self.make_sink(fresh=True)
        later = TestWriter()
        later.generation = 2
        everybody = later.context(0, parallelism=1)
        if not isinstance(sink, SupportsRewind):
            return
        first, second = (sink.create_writer(identity.context(subtask)) for subtask in (0, 1))
        fork = sink.create_writer(TestWriter("lineage-2").context())
        first.commit(self._prepared(first, 1, 0, 2))
        held = self._prepared(second, 2, 2, 2)
        first.commit(self._prepared(first, 3, 4, 2))
        staged = self._prepared(second, 3, 6, 2)
        fork.commit(self._prepared(fork, 3, 8, 2))
        take_back = sink.rewind_to(everybody, 2, held)
        assert sorted(self.visible()) == [0, 1, 4, 5, 8, 9], "until the function is called, nothing changes"
        take_back()
        take_back()
        sink.rewind_to(everybody, 2, held)()
        assert sorted(self.visible()) == [0, 1, 8, 9]
        # The next run commits: a sink may refuse everything of writers of an older generation (S9.2).
        _expect_refusal(lambda: second.commit(staged))
        restored = sink.create_writer(later.context(1))
        _expect_refusal(lambda: restored.commit(staged))
        restored.commit(held)
        assert sorted(self.visible()) == [0, 1, 2, 3, 8, 9]

    def test_a_rewind_leaves_alone_what_a_newer_driver_has_begun(self) -> None:
        """S9.2, S9.3: the driver that rewinds may have been replaced without knowing it."""
        identity = TestWriter()
        sink = self.make_sink(fresh=True)
        if not isinstance(sink, SupportsRewind):
            return
        first = sink.create_writer(identity.context())
        first.commit(self._prepared(first, 1, 0, 2))
        first.commit(self._prepared(first, 2, 2, 2))
        identity.generation = 2
        take_back = sink.rewind_to(identity.context(0, parallelism=1), 1, before=3)
        identity.generation = 3
        newer = sink.create_writer(identity.context())
        committed = self._prepared(newer, 3, 4, 2)
        newer.commit(committed)
        staged = self._prepared(newer, 4, 6, 2)
        take_back()
        assert sorted(self.visible()) == [0, 1, 4, 5]
        newer.commit([*committed, *staged])
        assert sorted(self.visible()) == [0, 1, 4, 5, 6, 7]

    def test_collecting_removes_what_no_snapshot_needs(self) -> None:
        """S2.3, S7.4: output in a retained snapshot can still be committed; committed output is never committed again;
        other lineages are not touched."""
        identity = TestWriter()
        sink = self.make_sink(fresh=True)
        if not isinstance(sink, CollectsLeftovers):
            return
        first, second = (sink.create_writer(identity.context(subtask)) for subtask in (0, 1))
        fork = sink.create_writer(TestWriter("lineage-2").context())
        done = self._prepared(first, 1, 0, 2)
        first.commit(done)
        held, lost = self._prepared(second, 2, 2, 2), self._prepared(first, 3, 4, 2)
        other = self._prepared(fork, 3, 6, 2)
        needed = NeededTransactions(held, 1, datetime.max.replace(tzinfo=UTC))
        everybody = identity.context(0, parallelism=1)
        assert sink.collect(everybody, NeededTransactions(held, 1, datetime.min.replace(tzinfo=UTC))).found == ()
        would = sink.collect(everybody, needed, dry_run=True)
        assert sum(one.size_bytes for one in would.found if one.why == "staged") > 0
        assert sink.collect(everybody, needed) == would
        assert sink.collect(everybody, needed).found == ()
        _expect_refusal(lambda: first.commit(lost))
        first.commit(done)
        second.commit(held)
        fork.commit(other)
        assert sorted(self.visible()) == [0, 1, 2, 3, 6, 7]

    @_settings
    @given(st.data())
    def test_whatever_crashes_each_record_is_published_once(self, data: st.DataObject) -> None:
        """S7.4, S9.3: a job with one sink subtask restarts from its latest completed checkpoint after every crash, or
        from an older one if the sink supports rewind. Unneeded data may be collected at any time (S2.3)."""
        sink = self.make_sink(fresh=True)
        actions: tuple[str, ...] = REWIND_ACTIONS if isinstance(sink, SupportsRewind) else CRASH_ACTIONS
        actions += COLLECT_ACTIONS if isinstance(sink, CollectsLeftovers) else ()
        script = data.draw(st.lists(st.tuples(st.sampled_from(actions), st.integers(0, 3)), max_size=25))
        job = OneSinkJob(lambda: self.make_sink(fresh=False))
        for action, number in script:
            job.act(action, number)
            found = sorted(self.visible())
            assert found == list(range(len(found))), f"lost or repeated: {found}"
            assert len(found) <= job.completed_position, "a visible record belongs to no completed checkpoint"
        job.act("checkpoint", 1)
        assert sorted(self.visible()) == list(range(job.position))


def _expect_refusal(call: Callable[[], Any]) -> None:
    try:
        call()
    except TidegateError:
        return
    except Exception as error:
        raise AssertionError(f"expected a TidegateError, got {type(error).__name__}: {error}") from error
    raise AssertionError("expected a TidegateError, but the call succeeded")
