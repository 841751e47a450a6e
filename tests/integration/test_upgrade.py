"""Restores jobs of earlier versions: their state, positions and committed output (S7.4, S7.5).

`tests/golden/make.py` made the job directories with the earlier version. The expected rows are those that the earlier
version committed after the same restores.
"""

from __future__ import annotations

import importlib.util
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = ("92cea9e",)
"""By commit. Named one by one, so that a missing folder fails."""
_SPEC = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
assert _SPEC and _SPEC.loader
golden = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(golden)


@pytest.fixture(
    scope="module", params=[(version, backend) for version in VERSIONS for backend in golden.BACKENDS], ids="-".join
)
def kept_job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a stopped job, and the expected rows of each restore."""
    version, backend = request.param
    folder = tmp_path_factory.mktemp("kept") / backend
    golden.unpack(GOLDEN / version / f"{backend}.tar.xz", folder)
    with lzma.open(GOLDEN / version / "expected.json.xz", "rt") as file:
        return folder, json.load(file)[backend]


def test_another_job_starts_from_the_mid_stream_savepoint(kept_job: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = kept_job
    assert golden.branch(folder) == expected["branch"]


def test_the_stopped_job_resumes_and_ends(kept_job: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = kept_job
    assert len(expected["resume"]["joined"]) == golden.ROWS
    assert golden.resume(folder) == expected["resume"]
