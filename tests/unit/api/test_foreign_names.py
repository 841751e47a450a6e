"""Names of Spark, Flink, Beam and pandas on a stream say what to use here; and errors about expressions that are right
about the cause."""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate import DataGen, Pipeline, Stream, tumbling
from tidegate.api.foreign_names import STREAM_NAMES
from tidegate.errors import PipelineError

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.uint8()),
        ("t", pa.string()),
        ("l", pa.list_(pa.int64())),
        ("at", pa.timestamp("us")),
    ]
)


@pytest.fixture
def stream() -> Stream:
    return Pipeline().read(DataGen(lambda numbers: {}, SCHEMA), uid="in")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("map", "map_in_arrow"),
        ("flat_map", "map_in_arrow"),
        ("flatMap", "map_in_arrow"),
        ("foreach", "write(sink"),
        ("withColumn", "with_columns("),
        ("groupBy", "group_by("),
        ("keyBy", "group_by("),
        ("where", "filter("),
        ("toDF", "tidegate.testing.run"),
        ("dropDuplicates", "deduplicate("),
        ("withWatermark", "with_watermark("),
        ("explode", "list_flatten"),
    ],
)
def test_a_name_of_another_library_says_what_to_use(stream: Any, name: str, use: str) -> None:
    with pytest.raises(AttributeError, match=f"a stream has no {name!r}. Use ") as caught:
        getattr(stream, name)(lambda row: row)
    assert use in str(caught.value) and caught.value.name == name


def test_no_name_that_a_stream_has_is_called_foreign(stream: Stream) -> None:
    named = {name for name in dir(type(stream)) if not name.startswith("_")}
    foreign = set(STREAM_NAMES) - named
    assert {"map", "withColumn", "toDF"} <= foreign and all(STREAM_NAMES[name] for name in foreign)


def test_other_names_get_the_nearest_one_and_python_its_own_way(stream: Any) -> None:
    with pytest.raises(AttributeError, match=r"Did you mean 'filter'\?"):
        _ = stream.fliter
    with pytest.raises(AttributeError, match=r"a grouped stream has no 'windw'. Did you mean 'window'\?"):
        _ = stream.group_by("n").windw
    windowed = stream.with_watermark("at", "0 s").group_by("n").window(tumbling("1 h"))
    with pytest.raises(AttributeError, match="a windowed stream has no 'count'. It has agg, top_n"):
        _ = windowed.count
    assert not hasattr(stream, "__array__") and not hasattr(stream, "shape")
    assert copy.copy(stream).schema == stream.schema


def refused(stream: Stream, expression: Any) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        stream.select(x=expression)
    return caught.value


def test_a_function_of_whole_columns_is_no_aggregate(stream: Stream) -> None:
    error = refused(stream, pc.list_flatten(pc.field("l")))
    assert (
        error.what == "the expression list_flatten(l) does not return one value for each row"
        and "aggregate" not in str(error)
    )
    assert "map_in_arrow" in error.remedy and "list_parent_indices" in error.remedy
    assert "map_in_arrow" in refused(stream, pc.cumulative_sum(pc.field("n")) + 1).remedy
    assert "is an aggregate" in refused(stream, pc.sum(pc.field("n"))).what


def test_whole_numbers_that_may_not_fit_a_decimal_say_how_to_cast_them(stream: Stream) -> None:
    error = refused(stream, pc.field("n").cast(pa.decimal128(10, 2)))
    assert "may not fit decimal128(10, 2)" in error.what
    assert "Precision is not great enough" not in str(error) and "21 digits" in error.cause
    assert ".cast(pa.decimal128(21, 2)).cast(pa.decimal128(10, 2))" in error.remedy
    wide = pc.field("n").cast(pa.decimal128(21, 2)).cast(pa.decimal128(10, 2))
    assert stream.select(x=wide).schema.field("x").type == pa.decimal128(10, 2), "the remedy works"
    assert "decimal128(4, 2)" in refused(stream, pc.field("small").cast(pa.decimal128(4, 2))).what


def test_a_text_as_event_time_names_strptime(stream: Stream) -> None:
    with pytest.raises(PipelineError) as caught:
        stream.with_watermark("t", "0 s")
    assert "pc.strptime(pc.field('t'), format=" in (caught.value.remedy or "")
    parsed = stream.with_columns(t=pc.strptime(pc.field("t"), format="%d.%m.%Y %H:%M", unit="us"))
    assert parsed.with_watermark("t", "0 s").schema.field("t").type == pa.timestamp("us")
