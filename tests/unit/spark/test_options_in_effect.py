"""S1.1, S9.1: the driver chooses what a submission leaves open, and records it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.spark import driver as driver_module

PIPELINE = """
import pyarrow as pa

from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.api.pipeline import Pipeline


def build(args):
    p = Pipeline()
    source = DataGen(lambda n: {"n": n}, pa.schema([("n", pa.int64())]), rows=args["rows"])
    p.read(source, uid="numbers").write(Discard(), uid="out")
    return p
"""


pytestmark = pytest.mark.usefixtures("own_signal_handlers")


class Submitted:
    """A submission, and the options that each of its drivers runs with."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int | None, options: dict[str, Any]
    ) -> None:
        (folder / "small.py").write_text(PIPELINE)
        self.client = JobClient(str(folder / "jobs"), "small")
        chosen = JobOptions.from_mapping(options) if options else None
        self.client.submit(pipeline=f"{folder / 'small.py'}:build", arguments={"rows": rows}, options=chosen)
        self._monkeypatch = monkeypatch
        self._launches = 0
        self.options: list[JobOptions] = []

    def drive(self) -> timedelta | None:
        seen = self.options

        class Supervision:
            def __init__(self, job: Any, _terminated: Any) -> None:
                seen.append(job.options)

            def run(self) -> int:
                return 0

        self._monkeypatch.setattr(driver_module, "_loop_of", lambda _: Supervision)
        self._launches += 1
        driver = driver_module.Driver(
            self.client.root, "small", spec_number=1, launch=self._launches, storage_options={}
        )
        assert driver.run() == 0
        return seen[-1].checkpoint_interval

    def document(self) -> Any:
        return json.loads(self.client.store.read(self.client.layout.graph(1)))


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("rows", "options", "interval"),
    [
        (None, {}, MINUTE),
        (None, {"parallelism": 2}, MINUTE),
        (10, {}, None),
        (None, {"checkpoint_interval": "off"}, None),
        (None, {"checkpoint_interval": "5 s"}, timedelta(seconds=5)),
        (None, {"checkpoint_mode": "off"}, None),
        (10, {"execution_mode": "batch"}, None),
    ],
)
def test_an_unbounded_job_that_names_no_interval_takes_a_checkpoint_every_minute(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: int | None,
    options: dict[str, Any],
    interval: timedelta | None,
) -> None:
    """S1.1."""
    submitted = Submitted(tmp_path, monkeypatch, rows, options)
    assert submitted.drive() == interval
    recorded = JobOptions.from_mapping(submitted.document()["options"])
    assert (recorded.checkpoint_interval, recorded.left_open) == (interval, frozenset())


def test_a_relaunch_keeps_the_interval_that_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the default is by then."""
    submitted = Submitted(tmp_path, monkeypatch, None, {})
    assert submitted.drive() == MINUTE
    monkeypatch.setattr("tidegate.coordinator.checkpoint_mode.DEFAULT_INTERVAL", timedelta(hours=1))
    assert submitted.drive() == MINUTE


def test_a_relaunch_keeps_the_attempts_that_were_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.1: the submission holds "auto", and what was in effect is recorded beside it."""
    submitted = Submitted(tmp_path, monkeypatch, None, {"restart_strategy": "fixed_delay"})
    submitted.drive()
    assert submitted.client.spec(1).options["restart_attempts"] == "auto"
    assert submitted.document()["options"]["restart_attempts"] == 3
    monkeypatch.setattr("tidegate.jobs.options.DEFAULT_ATTEMPTS", 50)
    submitted.drive()
    assert submitted.options[-1].restart_attempts == 3


def test_a_job_that_an_earlier_version_submitted_keeps_its_checkpoints_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record names every option: null was the default."""
    submitted = Submitted(tmp_path, monkeypatch, None, {})
    path = submitted.client.layout.spec(1)
    document = json.loads(submitted.client.store.read(path))
    document["options"]["checkpoint_interval"] = None
    submitted.client.store.replace(path, json.dumps(document).encode())
    assert submitted.drive() is None
