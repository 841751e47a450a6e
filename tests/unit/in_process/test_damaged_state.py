"""S9.1, S9.3 in whole jobs: a file of the snapshot to restore is damaged. No restart can help, so the job fails at
once, and the failure names the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.supervision.retry_policy import curability
from tidegate.subtask.failure_codes import failure_code
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

SCHEMA = pa.schema([("k", pa.int64())])


def counting() -> Pipeline:
    p = Pipeline()
    numbers = p.read(DataGen(lambda n: {"k": n % 5_000}, SCHEMA, rows=100_000, batch_rows=1_000), uid="numbers")
    numbers.group_by("k").agg(n=count(), uid="counts").write(Discard(), uid="out")
    return p


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": flip,
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "other": lambda data: b"x" * len(data),
}


class Stopped:
    """A job on disk that has crashed after a checkpoint."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.root = folder / "root"
        options = {"parallelism": 2, "state_backend": backend, "state_size_threshold": "0 KiB"}
        self.job = InProcessJob(counting, options, root=str(self.root), scratch=str(folder / "scratch"))
        run = self.job.submit()
        run.pump(40)
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="q"))
        assert answer is not None and answer.ok, answer
        run.crash()

    def files(self) -> list[Path]:
        found = [path for path in self.root.rglob("*") if path.is_file()]
        return sorted(path for path in found if {"checkpoints", "shared"} & set(path.parts))

    def failure(self) -> tuple[str, str]:
        """Code and text of the failure of the next run, wherever it is noticed."""
        try:
            run: InProcessRun = self.job.rerun()
            outcome = run.to_end()
        except Exception as error:
            return failure_code(error), str(error)
        assert isinstance(outcome, RunFailed), "the damage was not noticed"
        return outcome.code, outcome.message


@pytest.fixture(params=["heap", "rocksdb"])
def stopped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stopped]:
    yield Stopped(tmp_path, request.param)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_fails_the_job_at_once_and_is_named(stopped: Stopped, damage: str) -> None:
    """S9.1, S9.3."""
    files = stopped.files()
    assert len(files) >= 4
    for path in files:
        intact = path.read_bytes()
        path.write_bytes(DAMAGES[damage](intact))
        code, text = stopped.failure()
        path.write_bytes(intact)
        assert curability(code) == "incurable", (path, code, text)
        assert path.name in text, (path, text)


def test_a_missing_file_fails_the_job_at_once_and_is_named(stopped: Stopped) -> None:
    """S9.1, S9.3."""
    for path in stopped.files():
        intact = path.read_bytes()
        path.unlink()
        code, text = stopped.failure()
        path.write_bytes(intact)
        assert curability(code) == "incurable", (path, code, text)
        assert path.name in text, (path, text)
