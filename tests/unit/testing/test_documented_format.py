"""The format of docs/connectors/custom-formats.md passes the suite that the page names; a faulty one is reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate import formats
from tidegate.errors import PipelineError
from tidegate.testing import FormatConformance

_PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "custom-formats.md"
_NAMES = ("DecodedRecords", "Format", "RecordDecoder", "RecordEncoder", "UndecodableRecord")


def documented() -> dict[str, Any]:
    names: dict[str, Any] = {name: getattr(formats, name) for name in _NAMES}
    names |= {"pa": pa, "PipelineError": PipelineError, "FormatConformance": FormatConformance}
    for block in re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, _PAGE.name, "exec"), names)
    return names


PAGE = documented()
TestMeasurement = PAGE["TestMeasurement"]


def faulty(change: str, into: str) -> Any:
    """An instance of the page's test class, whose decoder has a mistake."""
    block = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    assert change in block
    names = dict(PAGE)
    exec(compile(block.replace(change, into), "faulty", "exec"), names)

    class Faulty(FormatConformance):
        def make_format(self) -> formats.Format:
            made: formats.Format = names["Measurement"]()
            return made

        good_records = TestMeasurement.good_records
        bad_records = TestMeasurement.bad_records

    return Faulty()


@pytest.mark.parametrize(
    ("change", "into", "test"),
    [
        ("except ValueError:", "except ZeroDivisionError:", "test_bad_records_are_named_and_leave_the_others"),
        ('"not of the form sensor;celsius"', 'f"no measurement: {value!r}"', "test_any_reason_is_safe"),
        (".select(list(self.columns))", "", "test_fewer_columns_change_nothing_else"),
        ("records.append(index)", "records.append(0)", "test_records_do_not_depend_on_their_neighbours"),
        ("{row['celsius']!r}", "{row['celsius']:.0f}", "test_rows_that_it_encodes_are_decoded_again"),
    ],
)
def test_a_mistake_is_reported(change: str, into: str, test: str) -> None:
    """The quoted record is longer than what a reason may contain by chance."""
    suite = faulty(change, into)
    if test == "test_any_reason_is_safe":
        suite.bad_records = lambda: [b"a very long record without a number"]
        test = "test_bad_records_are_named_and_leave_the_others"
    with pytest.raises((AssertionError, ValueError, ExceptionGroup)):
        getattr(suite, test)()
