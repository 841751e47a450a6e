"""S5.2: after a restore the files of a RocksDB are known again: what has not changed is not written a second time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.plan.execution_plan import ExecutionPlan
from tidegate.snapshot.redistribution import RestoreShare
from tidegate.state.keyed_state import BackendContext, StateDescriptor
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend
from tidegate.subtask.snapshots.restored_state import RestoredState, load_restored_state
from tidegate.subtask.snapshots.snapshot_writer import SnapshotPlace, SnapshotWriter, WrittenSnapshot
from tidegate.testing.in_process_job import InlineExecutor

KEYS = pa.schema([("k", pa.int64())])
VALUE = StateDescriptor("v", "value", pa.schema([("n", pa.int64())]))
PLACE = ("op", 0)
KEY_COUNT = 20_000
PLAN = cast(ExecutionPlan, SimpleNamespace(parallelism=1, max_parallelism=128))


class Run:
    """One run of the operator subtask "op", 0, with its back end and its snapshot writer."""

    def __init__(self, folder: Path, number: int, threshold_bytes: int) -> None:
        self._store = open_store(str(folder / "store"))
        self.writer = SnapshotWriter(f"r{number}", number, self.open, threshold_bytes, InlineExecutor())
        self.backend = RocksDBBackend()
        scratch = str(folder / f"scratch-{number}")
        self.backend.open(BackendContext("op", KEYS, ("k",), 128, range(128), lambda: 0, scratch, 2**24))
        self.state = self.backend.value(VALUE)

    def open(self, location: str) -> tuple[Store, str]:
        return self._store, location

    def put(self, keys: range) -> None:
        batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
        self.state.put(self.backend.keys(batch), pa.record_batch({"n": batch["k"]}))

    def snapshot(self, n: int) -> WrittenSnapshot:
        made: list[WrittenSnapshot] = []
        failures: list[Exception] = []
        place = SnapshotPlace(n, location(n), False)
        self.writer.write(0, place, [("op", self.backend.snapshot(n))], made.append, failures.append)
        assert failures == []
        self.writer.blobs.completed(n)
        return made[0]

    def restore(self, n: int, written: WrittenSnapshot) -> None:
        """From checkpoint `n` of the run before, as a slot does."""
        document: dict[str, Any] = {
            "location": location(n),
            "parallelism": 1,
            "may_share": True,
            "shares": {"op": RestoreShare(((0, written.handles["op"]),), None).to_json()},
            "finished": [],
            "checkpoint_id": n,
            "generation": 1,
            "log_number": 1,
            "drained": [],
            "after_drain": False,
            "is_fork": False,
        }
        restored = load_restored_state({0: document}, self.open, PLAN)
        assert isinstance(restored, RestoredState)
        self.writer.blobs.restored(restored.files)
        self.backend.restore(restored.parts[PLACE])


def location(n: int) -> str:
    return f"j/checkpoints/chk-{n}-g1"


def blob_ids(written: WrittenSnapshot) -> set[str]:
    return {blob.id for file in written.handles["op"].files for blob in file.blobs}


def test_a_restored_state_that_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """S5.2, S7.4: neither by the next run nor by the one after it."""
    run = Run(tmp_path, 1, 0)
    run.put(range(KEY_COUNT))
    written = run.snapshot(1)
    whole = written.metrics["persisted_bytes"]
    for number in (2, 3):
        run.backend.close()
        run = Run(tmp_path, number, 0)
        run.restore(number - 1, written)
        written = run.snapshot(number)
        assert written.metrics["persisted_bytes"] < whole / 10
        assert written.metrics["bytes"] > whole / 2
    run.put(range(1))
    assert run.snapshot(4).metrics["persisted_bytes"] < whole / 10
    run.backend.close()


@pytest.mark.parametrize("threshold_bytes", [0, 2**30], ids=["files", "inline"])
def test_ids_of_files_do_not_grow_with_every_restart(tmp_path: Path, threshold_bytes: int) -> None:
    run = Run(tmp_path, 1, threshold_bytes)
    run.put(range(1_000))
    written = run.snapshot(1)
    first = blob_ids(written)
    for number in (2, 3):
        run.backend.close()
        run = Run(tmp_path, number, threshold_bytes)
        run.restore(number - 1, written)
        written = run.snapshot(number)
        assert blob_ids(written) == first
    run.backend.close()
