"""S5.2: what a slot has on the local disk goes with it, however it ends."""

from __future__ import annotations

import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.channel.control.protocol import Failed
from tidegate.spark import slot_entry
from tidegate.spark.scratch import ScratchFolder
from tidegate.spark.slot_entry import SlotRuntime


class Exited(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("owner", ["slot3", "driver"])
def test_the_folder_of_a_killed_process_is_removed_by_the_next(disk: Path, dead_process: int, owner: str) -> None:
    left = disk / f"tidegate-{owner}-{dead_process}-abcdefgh"
    (left / "rides").mkdir(parents=True)
    (left / "rides" / "000008.sst").write_bytes(b"x")
    scratch = ScratchFolder("slot0")
    assert [path.name for path in disk.iterdir()] == [Path(scratch.path).name]
    scratch.remove()
    scratch.remove()
    assert list(disk.iterdir()) == []
    with ScratchFolder("driver") as path:
        assert list(disk.iterdir()) == [Path(path)]
    assert list(disk.iterdir()) == []


def test_folders_of_slots_that_live_stay_and_so_does_what_only_looks_alike(disk: Path, dead_process: int) -> None:
    first = ScratchFolder("slot0")
    held = Path(first.path).rename(disk / f"tidegate-slot0-{dead_process}-inanothe")  # as a container's, with other ids
    (disk / "elsewhere").mkdir()
    alike = [f"tidegate-slot0-{dead_process}-abcdefgh.bak", f"my-tidegate-slot0-{dead_process}-abcdefgh"]
    for name in alike:
        (disk / name).mkdir()
    link = disk / f"tidegate-slot1-{dead_process}-abcdefgh"
    link.symlink_to(disk / "elsewhere")
    second, third = ScratchFolder("slot1"), ScratchFolder("slot2")
    there = {path.name for path in disk.iterdir()}
    expected = {held.name, link.name, "elsewhere", *alike, Path(second.path).name, Path(third.path).name}
    assert there == expected


def process(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> SlotRuntime:
    """A slot with these alone; its exit raises `Exited`."""

    def end(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(slot_entry.os, "_exit", end)
    slot = SlotRuntime.__new__(SlotRuntime)
    attributes = {"_index": 0, "_over": threading.Event(), "_scratch": ScratchFolder("slot0"), **attributes}
    for name, value in attributes.items():
        setattr(slot, name, value)
    return slot


def test_a_slot_that_has_lost_its_driver_leaves_nothing(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exited, match="70"):
        process(monkeypatch)._on_control_lost("closed")
    assert list(disk.iterdir()) == []


def test_a_slot_beyond_its_memory_leaves_nothing(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SimpleNamespace(heartbeat_interval=timedelta(milliseconds=1), slot_memory_bytes=0)
    sent: list[Any] = []
    control = SimpleNamespace(send=sent.append, flush=lambda timeout_s: None)
    with pytest.raises(Exited, match="137"):
        process(monkeypatch, _options=options, _control=control)._watch()
    assert [type(message) for message in sent] == [Failed]
    assert list(disk.iterdir()) == []
