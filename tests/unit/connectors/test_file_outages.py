"""File systems that do not answer for a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from tests.unit.connectors.files_read import read_all, write
from tidegate.connectors.files.source.files import Files
from tidegate.subtask.failure_codes import failure_code


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset by peer"), TimeoutError("slow"), OSError(5, "I/O")])
@pytest.mark.parametrize("call", ["open", "info"])
def test_an_outage_of_the_file_system_is_not_taken_for_a_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, call: str
) -> None:
    """S9.1: a fault of the file ends the job at once; of an outage another try may know nothing."""
    write(tmp_path / "a.csv", "n\n1\n")
    source = Files(tmp_path / "a.csv")
    splits = source.discover(1)

    def away(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(LocalFileSystem, call, away)
    with pytest.raises(OSError, match=r"a\.csv") as caught:
        read_all(source, splits)
    assert failure_code(caught.value) == ""
    if call == "info":
        with pytest.raises(OSError, match=r"a\.csv"):
            source.unavailable_splits(splits)
