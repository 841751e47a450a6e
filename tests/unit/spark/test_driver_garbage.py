"""S2.3: a driver begins by putting away what drivers before it left."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import FencedError
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, write_pinned_graph
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.records import RestoreFrom, encode
from tidegate.spark import driver as driver_module

PIPELINE = """
import pyarrow as pa

from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.api.pipeline import Pipeline


def build(args):
    p = Pipeline()
    source = DataGen(lambda n: {"n": n}, pa.schema([("n", pa.int64())]), rows=10)
    p.read(source, uid="numbers").write(Discard(), uid="out")
    return p
"""
NOW = "2026-11-21T09:25:00.000Z"


pytestmark = pytest.mark.usefixtures("own_signal_handlers")


class Left:
    """A job whose first driver died with checkpoints 1 to 3 completed and 4 on its way."""

    def __init__(self, folder: Path) -> None:
        (folder / "small.py").write_text(PIPELINE)
        self.client = JobClient(str(folder / "jobs"), "small")
        self.spec = self.client.submit(pipeline=f"{folder / 'small.py'}:build")
        nonces = itertools.count()
        log = DecisionLog(self.client.store, self.client.layout, lambda: NOW, lambda: f"first-{next(nonces)}")
        generation_log = log.begin_generation(spec=1, launch=1)
        write_pinned_graph(
            self.client.store, self.client.layout, PinnedGraph(1, 1, 128, {"version": 5, "operators": []}, NOW)
        )
        for n in (1, 2, 3, 4):
            path = self.client.layout.checkpoint(n, 1)
            data = {"checkpoint_id": n, "kind": "checkpoint", "path": path}
            generation_log.append("claim", {**data, "triggered_at": NOW})
            self.client.store.create(f"{path}/state", b"")
            if n < 4:
                generation_log.append("complete", {**data, "metrics": {}, "parent": None})

    def folders(self) -> list[str]:
        return self.client.store.list(self.client.layout.checkpoints)

    def submit_from(self, checkpoint_id: int) -> None:
        restore = RestoreFrom("checkpoint", checkpoint_id=checkpoint_id)
        later = dataclasses.replace(self.spec, number=2, submission_id="later", restore=restore)
        self.client.store.create(self.client.layout.spec(2), encode(later))

    def fence(self) -> None:
        DecisionLog(self.client.store, self.client.layout, lambda: NOW, lambda: "third").begin_generation(
            spec=1, launch=3
        )

    def drive(self, monkeypatch: pytest.MonkeyPatch, during: Any) -> int:
        """A second driver, without Spark and grace, that calls `during(job)` and ends."""

        class Supervision:
            def __init__(self, job: Any, _terminated: Any) -> None:
                self._job = job

            def run(self) -> int:
                self._job.retire_garbage()
                during(self._job)
                return 0

        monkeypatch.setattr(driver_module, "StreamingLoop", Supervision)
        return driver_module.Driver(self.client.root, "small", spec_number=1, launch=2, storage_options={}).run()


def test_what_a_dead_driver_left_is_deleted_and_its_recovery_point_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(tmp_path)
    assert left.folders() == ["chk-1-g1", "chk-2-g1", "chk-3-g1", "chk-4-g1"]
    assert left.drive(monkeypatch, lambda job: job.retiring.delete_due()) == 0
    assert left.folders() == ["chk-3-g1"]


def test_what_a_submission_names_that_has_come_meanwhile_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(tmp_path)

    def submit_and_delete(job: Any) -> None:
        left.submit_from(2)
        job.retiring.delete_due()

    left.drive(monkeypatch, submit_and_delete)
    assert left.folders() == ["chk-2-g1", "chk-3-g1"]


def test_a_driver_that_was_fenced_meanwhile_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.2."""
    left = Left(tmp_path)

    def be_fenced_and_delete(job: Any) -> None:
        left.fence()
        job.retiring.delete_due()

    left.drive(monkeypatch, be_fenced_and_delete)
    assert left.folders() == ["chk-1-g1", "chk-2-g1", "chk-3-g1", "chk-4-g1"]


def test_a_cancelled_job_that_keeps_nothing_leaves_what_a_newer_submission_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(tmp_path)

    def submit_and_cancel(job: Any) -> None:
        left.submit_from(2)
        job.delete_checkpoints()

    left.drive(monkeypatch, submit_and_cancel)
    assert left.folders() == ["chk-2-g1"]


def test_a_submission_that_comes_while_a_cancelled_job_deletes_keeps_what_it_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(tmp_path)

    def submit_meanwhile(job: Any) -> None:
        delete = type(job.store).delete_folder

        def delete_and_submit(store: Any, path: str) -> None:
            delete(store, path)
            if path.endswith("chk-1-g1"):
                left.submit_from(3)

        monkeypatch.setattr(type(job.store), "delete_folder", delete_and_submit)
        job.delete_checkpoints()

    left.drive(monkeypatch, submit_meanwhile)
    assert left.folders() == ["chk-3-g1"]


def test_a_cancelled_job_without_a_successor_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Left(tmp_path)
    rows = left.client.layout.materialised(1)
    left.client.store.create(f"{rows}/orders.json", b"{}")
    left.drive(monkeypatch, lambda job: job.delete_checkpoints())
    assert left.folders() == [] and not left.client.store.walk(rows)


def test_rows_of_dataframes_stay_with_a_checkpoint_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.2: its positions are in them."""
    left = Left(tmp_path)
    rows = left.client.layout.materialised(1)
    left.client.store.create(f"{rows}/orders.json", b"{}")

    def submit_and_cancel(job: Any) -> None:
        left.submit_from(2)
        job.delete_checkpoints()

    left.drive(monkeypatch, submit_and_cancel)
    assert left.folders() == ["chk-2-g1"] and left.client.store.walk(rows)


def test_a_fenced_driver_deletes_no_checkpoints_of_a_cancelled_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.2: the newer generation may be writing there."""
    left = Left(tmp_path)

    def be_fenced_and_cancel(job: Any) -> None:
        left.fence()
        job.delete_checkpoints()

    with pytest.raises(FencedError):
        left.drive(monkeypatch, be_fenced_and_cancel)
    assert left.folders() == ["chk-1-g1", "chk-2-g1", "chk-3-g1", "chk-4-g1"]
