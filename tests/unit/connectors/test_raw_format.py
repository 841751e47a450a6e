"""Raw: bytes, text and big-endian numbers as one column."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.connectors.formats.utf8 import invalid_texts
from tidegate.errors import OptionError, PipelineError
from tidegate.formats import Raw


@given(
    st.lists(st.none() | st.binary(max_size=20) | st.text(max_size=9).map(lambda t: t.encode("utf-8", "surrogatepass")))
)
def test_texts_are_checked_as_python_checks_them(values: list[bytes | None]) -> None:
    def is_text(value: bytes) -> bool:
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
        return True

    expected = [at for at, value in enumerate(values) if value is not None and not is_text(value)]
    assert invalid_texts(pa.array(values, pa.binary())).tolist() == expected


@pytest.mark.parametrize("kind", ["binary", "string"])
def test_bytes_and_texts_are_not_copied(kind: str) -> None:
    values = pa.array([b"abc", None, b"d"], pa.binary())
    column = Raw("line", kind).create_decoder().decode(values).batch.column("line")
    assert column.buffers()[2].address == values.buffers()[2].address
    assert column.type == kind and column.null_count == 1


@pytest.mark.parametrize(
    ("kind", "code", "numbers"),
    [
        ("int16", "h", [1, -2]),
        ("int32", "i", [1, -2]),
        ("int64", "q", [2**40, -2]),
        ("float32", "f", [0.5, -2]),
        ("float64", "d", [0.1, -2]),
    ],
)
def test_numbers_are_those_of_kafkas_own_serializers(kind: str, code: str, numbers: list[float]) -> None:
    values = [struct.pack(f">{code}", number) for number in numbers]
    format_ = Raw(type=kind)
    found = format_.create_decoder().decode(pa.array([values[0], None, b"abc", values[1]], pa.binary()))
    assert found.batch.column("value").to_pylist() == [numbers[0], None, numbers[1]]
    assert [(one.index, "3 bytes" in one.reason) for one in found.bad] == [(2, True)]
    assert found.records is not None and found.records.to_pylist() == [0, 1, 3]
    batch = pa.record_batch({"value": pa.array(numbers, kind)})
    assert format_.create_encoder(batch.schema).encode(batch).to_pylist() == values


def test_rows_must_be_the_one_column() -> None:
    with pytest.raises(PipelineError, match="int64"):
        Raw().check_encodable(pa.schema([("value", pa.int64())]))
    batch = pa.record_batch({"value": pa.array([b"a", None], pa.binary())})
    with pytest.raises(PipelineError, match="null"):
        Raw().create_encoder(batch.schema).encode(batch)


@pytest.mark.parametrize("options", [{"name": ""}, {"type": "uint7"}])
def test_wrong_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        Raw(**options)
