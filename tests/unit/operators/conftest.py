"""Opens operators outside a slot and drives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from builders import operators

from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import StreamOperator
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import decode_parts, encode_parts

OpenOperator = Callable[..., Any]


@pytest.fixture
def open_operator() -> OpenOperator:
    """open_operator(spec, restored=None): an opened operator, restored from parts that went through a state stream."""

    def open_(spec: OperatorSpec, restored: Sequence[StatePart] | None = None) -> StreamOperator:
        operator: StreamOperator = operators.open_operator(spec, pa.schema([]))
        if restored is not None:
            operator.restore(decode_parts(encode_parts(restored)))
        return operator

    return open_


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def place_of_state(request: pytest.FixtureRequest, quick_folder: Path) -> Iterator[Callable[[], Any]]:
    """place_of_state(): arguments of an `OperatorContext`, for one operator; every test runs with each back end. A
    module's autouse fixture hands it to what opens operators."""
    numbers = iter(range(10**6))
    with TemporaryDirectory(dir=quick_folder, ignore_cleanup_errors=True) as folder:

        def arguments() -> dict[str, Any]:
            scratch = f"{folder}/{next(numbers)}" if request.param == "rocksdb" else ""
            return {"state_backend": request.param, "scratch": scratch, "state_memory_bytes": 2**22}

        yield arguments


@pytest.fixture
def scratches(tmp_path: Path) -> Callable[[], Path]:
    """scratches(): a new folder at every call."""
    numbers = iter(range(10**6))

    def scratch() -> Path:
        folder = tmp_path / f"{next(numbers)}"
        folder.mkdir()
        return folder

    return scratch
