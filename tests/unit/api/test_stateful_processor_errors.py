"""What `transform_with_state` does not take is refused where it is called, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StructType

from tidegate import DataGen, Discard, Pipeline, tumbling
from tidegate.api.grouped_stream import GroupedStream
from tidegate.api.stream import Stream
from tidegate.errors import PipelineError
from tidegate.plan.batch_plan import BatchPlan, plan_batch

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


class Nothing(StatefulProcessor):
    """Declares what the test says."""

    def __init__(self, declare: Callable[[StatefulProcessorHandle], Any] = lambda handle: None) -> None:
        self.declare = declare

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.declared = self.declare(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        return iter([])


def read(p: Pipeline, uid: str = "rows", *, rows: int | None = 5, schema: pa.Schema = SCHEMA) -> Stream:
    return p.read(DataGen(lambda n: {}, schema, rows=rows), uid=uid)


def grouped(*, watermark: bool = True) -> GroupedStream[Stream]:
    stream = read(Pipeline())
    return (stream.with_watermark("t", "0 s") if watermark else stream).group_by("k")


def refused(call: Callable[[], Any]) -> PipelineError:
    with pytest.raises(PipelineError) as error:
        call()
    assert __file__.rsplit("/", 1)[1] in error.value.where
    return error.value


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"statefulProcessor": Nothing}, "statefulProcessor must be an instance, but is the class Nothing"),
        ({"statefulProcessor": object()}, "statefulProcessor must be an instance, but is a object"),
        ({"outputStructType": "k STRIN"}, "outputStructType 'k STRIN' cannot be parsed"),
        ({"outputStructType": StructType([])}, "outputStructType is StructType"),
        ({"outputStructType": IntegerType()}, "outputStructType is a IntegerType"),
        ({"outputMode": "Complete"}, "outputMode 'Complete' is not supported"),
        ({"outputMode": "complet"}, "outputMode 'complet' is not supported"),
        ({"timeMode": "event"}, "unknown timeMode 'event'"),
        ({"timeMode": None}, "unknown timeMode None"),
        ({"initialState": "rows"}, "initialState must be a grouped stream, but is a str"),
        ({"eventTimeColumnName": "nope"}, "there is no column 'nope'"),
        ({"eventTimeColumnName": "k"}, "column 'k' of type string cannot be event time"),
    ],
)
@pytest.mark.parametrize("call", ["transform_with_state", "transform_with_state_in_pandas"])
def test_an_argument_that_spark_does_not_take_is_refused(call: str, arguments: dict[str, Any], what: str) -> None:
    given = {"statefulProcessor": Nothing(), "outputStructType": "k STRING", "outputMode": "Append", "timeMode": "None"}
    error = refused(lambda: getattr(grouped(), call)(**{**given, **arguments}, uid="it"))
    assert what in error.what and error.remedy


def test_event_time_needs_a_watermark_upstream() -> None:
    for arguments in (("k STRING", "Append", "EventTime"), ("k STRING, t TIMESTAMP", "Append", "None", None, "t")):
        error = refused(lambda a=arguments: grouped(watermark=False).transform_with_state(Nothing(), *a, uid="it"))  # type: ignore[misc]
        assert "with_watermark" in error.remedy


def test_a_uid_is_required() -> None:
    assert "has no uid" in refused(lambda: grouped().transform_with_state(Nothing(), "k STRING", "Append", "None")).what


def twice(handle: StatefulProcessorHandle) -> None:
    handle.getValueState("a", "n INT")
    handle.getListState("a", "n INT")


def kept_and_deleted(handle: StatefulProcessorHandle) -> None:
    handle.deleteIfExists("a")
    handle.getValueState("a", "n INT")


def fails(handle: StatefulProcessorHandle) -> None:
    raise ZeroDivisionError("of the user")


@pytest.mark.parametrize(
    ("declare", "what"),
    [
        (twice, "two states are named 'a'"),
        (kept_and_deleted, "state 'a' is both deleted and declared"),
        (fails, "init of the processor Nothing failed"),
        (lambda handle: handle.getValueState("", "n INT"), "'' is not a valid name of a state"),
        (lambda handle: handle.getValueState("a:b", "n INT"), "'a:b' is not a valid name"),
        (lambda handle: handle.getValueState("a", "INT"), "the schema 'INT' cannot be parsed"),
        (lambda handle: handle.getValueState("a", None), "the schema is a NoneType"),
        (lambda handle: handle.getValueState("a", "n INT", -5), "ttlDurationMs must be an integer above 0, but is -5"),
        (lambda handle: handle.getValueState("a", "n INT", 5), "the state has ttlDurationMs"),
        (lambda handle: handle.getMapState("a", "n ARRAY<INT>", "n INT"), "cannot be part of a map key"),
        (lambda handle: handle.getValueState("a", "n INT").update((1,)), "update of a state is called in init"),
        (lambda handle: handle.registerTimer(5), "registerTimer is called in init"),
    ],
)
def test_what_init_cannot_declare_is_refused_where_the_pipeline_is_built(
    declare: Callable[[StatefulProcessorHandle], Any], what: str
) -> None:
    error = refused(lambda: grouped().transform_with_state(Nothing(declare), "k STRING", "Append", "None", uid="it"))
    assert what in str(error)


def test_the_names_and_ttls_that_spark_takes_are_taken() -> None:
    def declare(handle: StatefulProcessorHandle) -> None:
        handle.getValueState("_ a.b-1", "n INT", 0)
        handle.getValueState("ttl", "n INT", 5)
        handle.getMapState("m", "n INT", "n INT", None)
        handle.deleteIfExists("never there")

    grouped().transform_with_state(Nothing(declare), "k STRING", "update", "processingTIME", uid="it")


def test_the_processor_itself_is_left_alone() -> None:
    processor = Nothing(lambda handle: handle.getValueState("n", "n INT"))
    grouped().transform_with_state(processor, "k STRING", "Append", "None", uid="it")
    assert not hasattr(processor, "declared")


def test_an_initial_state_is_bounded_and_has_keys_of_the_same_types() -> None:
    p = Pipeline()
    stream = read(p).group_by("k")
    other = pa.schema([("owner", pa.int64())])

    def given(initial: GroupedStream[Stream]) -> PipelineError:
        return refused(lambda: stream.transform_with_state(Nothing(), "k STRING", "Append", "None", initial, uid="it"))

    assert "initialState is an unbounded stream" in given(read(p, "endless", rows=None).group_by("k")).what
    error = given(read(p, "numbers", schema=other).group_by("owner"))
    assert "grouped by owner (int64), but the stream by k (string)" in error.what
    assert "belong to two pipelines" in given(read(Pipeline()).group_by("k")).what


def test_a_result_without_event_time_says_how_it_lost_it() -> None:
    result = grouped().transform_with_state(Nothing(), "k STRING, t TIMESTAMP", "Append", "EventTime", uid="it")
    error = refused(lambda: result.group_by("k").window(tumbling("1 min")))
    assert "eventTimeColumnName is not set" in error.cause
    kept = grouped().transform_with_state(Nothing(), "k STRING, t TIMESTAMP", "Append", "None", None, "t", uid="it")
    kept.group_by("k").window(tumbling("1 min"))


def test_explain_tells_the_processor_and_its_states() -> None:
    p = Pipeline()
    processor = Nothing(lambda handle: handle.getListState("seen", "n INT"))
    grouped_ = read(p).group_by("k")
    grouped_.transform_with_state(processor, "k STRING", "Append", "None", uid="it").write(Discard(), uid="out")
    assert "transform_with_state Nothing by k: seen (list)" in p.explain()


def planned(mode: str, *, initial: bool = False, **options: bool) -> BatchPlan:
    p = Pipeline()
    stream = read(p).with_watermark("t", "0 s").group_by("k")
    start = read(p, "start").group_by("k") if initial else None
    result = stream.transform_with_state(Nothing(), "k STRING", "Append", mode, start, uid="it")
    result.write(Discard(), uid="out")
    return plan_batch(p.build(), 2, 128, **options)


def test_in_batch_a_processor_takes_its_keys_apart_unless_rows_wait_for_its_initial_state() -> None:
    """S8.1: what has ended for the keys before is to come for those behind."""
    for initial in (False, True):
        (stage,) = (stage for stage in planned("EventTime", initial=initial).stages if stage.gathers == "exchange")
        assert stage.by_key is not initial


def test_in_batch_a_processor_that_goes_by_the_clock_asks_for_leave() -> None:
    """S8.2."""
    with pytest.raises(PipelineError, match="other rows in batch"):
        planned("ProcessingTime")
    planned("ProcessingTime", allow_mode_dependent=True)
