"""S9.2: a driver that cannot know what it decided ends, and leaves everything that is open to its successor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import StoreError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.stores.local_disk import LocalStore
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


pytestmark = pytest.mark.usefixtures("own_signal_handlers")


class DeafSupervision:
    """In the place of Spark: meets a store that carries the next append out and does not say so."""

    def __init__(self, job: Any, _terminated: Any) -> None:
        self._job = job

    def run(self) -> int:
        while not self._job.desk.take():
            continue
        create, read = LocalStore.create, LocalStore.read_range

        def create_and_forget(store: LocalStore, path: str, data: bytes) -> None:
            if "decisions/" in path and not store.exists(path):
                create(store, path, data)
            if "decisions/" in path:
                raise StoreError("connection reset", where=path)
            create(store, path, data)

        def read_nothing(store: LocalStore, path: str, *span: int) -> bytes:
            if path.endswith("decisions/00000002.json"):
                raise StoreError("connection reset", where=path)
            return read(store, path, *span)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalStore, "create", create_and_forget)
            patch.setattr(LocalStore, "read_range", read_nothing)
            self._job.status("WAITING_FOR_SLOTS")
        raise AssertionError("the append came back")


def test_the_driver_ends_with_its_own_code_and_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.py").write_text(PIPELINE)
    client = JobClient(str(tmp_path / "jobs"), "small")
    client.submit(pipeline=f"{tmp_path / 'small.py'}:build", options={"store_timeout": "150 ms"})
    command = client.send("savepoint", issued_by="test")
    monkeypatch.setattr(driver_module, "StreamingLoop", DeafSupervision)
    code = driver_module.main(["--root", client.root, "--job", "small", "--spec", "1", "--launch", "1"])
    said = capsys.readouterr().err
    assert code == 14 and "entry 2 ('status')" in said and "the new driver reads from the log" in said
    assert client.result(command.command_id) is None
    assert [entry.kind for entry in client.log.read()] == ["fence", "status"]
    assert not client.view().is_terminal
