"""A caller and a small pipeline for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import cli_caller
import pytest
from cli_caller import Caller

CODE = """
import pyarrow as pa
import tidegate

SCHEMA = pa.schema([("k", pa.int64())])


def build(args):
    print("a word from the user's code")
    p = tidegate.Pipeline()
    column = args.get("column", "k")
    rows = p.read(tidegate.DataGen(lambda n: {"k": n}, SCHEMA, rows=10), uid="rows")
    rows.select(column).write(tidegate.Discard(), uid="out")
    return p
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "small_pipeline.py"
    file.write_text(CODE)
    monkeypatch.setattr(cli_caller, "PIPELINE", f"{file}:build")
    return f"{file}:build"


@pytest.fixture
def tidegate(capsys: pytest.CaptureFixture[str], pipeline: str) -> Caller:
    return Caller(capsys)
