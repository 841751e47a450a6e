"""`tidegate.testing.run`: rows, watermarks, checkpoints, crashes and the clock, as a test of a pipeline plays them."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate
from tidegate import DataGen, Discard, Parquet, Pipeline, Stream, count, tumbling
from tidegate.errors import OptionError, PipelineError, TidegateError
from tidegate.testing import Advance, Checkpoint, Crash, End, Fed, Outcome, Watermark, run

ORDERS = pa.schema([("shop", pa.string()), ("time", pa.timestamp("us")), ("price", pa.int64())])
SHOPS = pa.schema([("shop", pa.string()), ("city", pa.string())])
MILLISECONDS = 500
"""Of a processor: a run takes some ten of them, a driver and a Spark a thousand times as many."""


def never(numbers: Any) -> dict[str, Any]:
    raise AssertionError("a fed source is not read")


def order(shop: str, clock: str, price: int = 1) -> dict[str, Any]:
    return {"shop": shop, "time": f"2026-01-01 {clock}", "price": price}


def at(clock: str) -> Watermark:
    return Watermark(f"2026-01-01 {clock}")


def orders(p: Pipeline, rows: int | None = None) -> Stream:
    return p.read(DataGen(never, ORDERS, rows=rows), uid="orders").with_watermark("time", "0 s", uid="lateness")


def hourly() -> Pipeline:
    p = Pipeline()
    windows = orders(p).group_by("shop").window(tumbling("1 h"))
    windows.agg(n=count(), total=tidegate.sum("price"), uid="hourly").write(Parquet("unused"), uid="out")
    return p


def counts(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(shop, hour, orders)."""
    return sorted((row["shop"], row["window_start"].hour, row["n"]) for row in rows)


def test_a_checkpoint_by_the_clock_counts_at_a_crash_as_one_of_the_script_does() -> None:
    def plain() -> Pipeline:
        p = Pipeline()
        orders(p).write(Parquet("unused"), uid="out")
        return p

    for crash in (Crash(), Crash(1), Crash(2)):
        script = [order("a", "10:00"), Advance("30 s"), crash, order("b", "10:01")]
        out = run(plain, {"orders": script}, checkpoint_interval="10 s")
        assert sorted(row["shop"] for row in out["out"]) == ["a", "b"], crash


def test_times_may_be_texts_in_columns_with_a_time_zone() -> None:
    schema = pa.schema([("time", pa.timestamp("ms", "Europe/Paris"))])
    p = Pipeline()
    p.read(Fed(schema), uid="in").write(Parquet("unused"), uid="out")
    rows = [{"time": "2026-01-01 10:00"}, {"time": "2026-01-01 10:00+02:00"}, {"time": None}]
    found = run(p, {"in": rows})["out"]
    assert sorted(row["time"].astimezone(UTC).hour for row in found if row["time"]) == [8, 10]
    with pytest.raises(PipelineError, match="the time .* is invalid"):
        run(p, {"in": [{"time": "noon"}]})


def test_rows_go_in_and_rows_come_out_by_sink_in_milliseconds() -> None:
    out = run(hourly, {"orders": [order("a", "10:00", 3), order("b", "10:30"), order("a", "10:59", 4)]})
    assert counts(out["out"]) == [("a", 10, 2), ("b", 10, 1)]
    assert sorted(out.tables["out"]["total"].to_pylist()) == [1, 7]
    started = time.process_time()
    run(hourly(), {"orders": [order("a", "10:00")]})
    assert (time.process_time() - started) * 1000 < MILLISECONDS


@pytest.mark.parametrize("form", ["table", "batch", "list of batches", "rows"])
def test_rows_may_be_dicts_tables_or_batches(form: str) -> None:
    table = pa.table({"shop": ["a"], "time": [datetime(2026, 1, 1, 10)], "price": [2]}, schema=ORDERS)
    batch = table.to_batches()[0]
    forms: dict[str, Any] = {
        "table": table,
        "batch": batch,
        "list of batches": [batch],
        "rows": table.to_pylist(),
    }
    assert counts(run(hourly, {"orders": forms[form]})["out"]) == [("a", 10, 1)]


def test_a_watermark_fires_windows_and_makes_rows_behind_it_late() -> None:
    """S4.4: it stands in the place of what `with_watermark` would have made of the rows."""
    script = [order("a", "10:00"), order("a", "13:00"), Checkpoint(), at("11:00"), order("a", "10:30"), Checkpoint()]
    out = run(hourly, {"orders": script})
    assert [counts(c.rows["out"]) for c in out.checkpoints] == [[], [("a", 10, 1)]]
    assert out.counters["hourly"] == {"late_dropped": 1}
    assert [c.watermarks["hourly"] for c in out.checkpoints] == [None, datetime(2026, 1, 1, 11, tzinfo=UTC)]
    assert set(out.watermarks) == {"orders", "lateness", "hourly", "out"}


def test_without_a_watermark_in_the_script_the_pipelines_own_hold() -> None:
    out = run(hourly, {"orders": [order("a", "10:00"), order("a", "12:00"), order("a", "10:01"), Checkpoint()]})
    assert counts(out.checkpoints[0].rows["out"]) == [("a", 10, 2)], "one batch: none of its rows is late"
    assert out.watermarks["orders"] == datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("parallelism", [None, 1, 3])
def test_a_crash_goes_back_to_the_last_checkpoint_and_nothing_is_lost_or_twice(parallelism: int | None) -> None:
    """S9.1, S5.5."""
    script = [order("a", "10:00"), Checkpoint(), order("b", "10:01"), at("11:00"), Crash(parallelism)]
    out = run(hourly, {"orders": [*script, order("b", "11:30"), Checkpoint(), at("12:00")]}, parallelism=2)
    assert counts(out["out"]) == [("a", 10, 1), ("b", 10, 1), ("b", 11, 1)]
    assert counts(out.checkpoints[1].rows["out"]) == [("a", 10, 1), ("b", 10, 1)]
    assert out.watermarks["hourly"] == datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_crash_behind_a_checkpoint_keeps_the_watermark_that_had_been_told() -> None:
    out = run(hourly, {"orders": [at("11:00"), Checkpoint(), Crash(), order("a", "10:00"), order("a", "11:00")]})
    assert counts(out["out"]) == [("a", 11, 1)]
    assert out.counters["hourly"] == {"late_dropped": 1}


def test_a_crash_without_a_checkpoint_begins_anew() -> None:
    out = run(hourly, {"orders": [order("a", "10:00"), Crash(), order("a", "10:01")]})
    assert counts(out["out"]) == [("a", 10, 2)]


def test_without_drain_open_windows_give_nothing() -> None:
    """S7.2."""
    script = {"orders": [order("a", "10:00"), at("11:00"), order("a", "11:00")]}
    assert counts(run(hourly, script, drain=False)["out"]) == [("a", 10, 1)]


def by_the_clock() -> Pipeline:
    p = Pipeline()
    windows = orders(p).group_by("shop").window(tumbling("10 s", time="processing"))
    windows.agg(n=count(), uid="ten-seconds").write(Parquet("unused"), uid="out")
    return p


def test_the_clock_stands_still_but_for_advance() -> None:
    script = [
        order("a", "10:00"),
        Advance("5 s"),
        order("a", "10:00"),
        Checkpoint(),
        Advance("5 s"),
        order("a", "10:00"),
    ]
    out = run(by_the_clock, {"orders": [*script, Checkpoint()]}, clock="2026-01-01 12:00")
    assert [c.rows["out"] for c in out.checkpoints] == [[], [out["out"][0]]]
    assert [(row["window_start"], row["n"]) for row in out["out"]] == [
        (datetime(2026, 1, 1, 12), 2),
        (datetime(2026, 1, 1, 12, 0, 10), 1),
    ]


def named(rows: int | None = 1) -> Pipeline:
    p = Pipeline()
    shops = p.read(DataGen(never, SHOPS, rows=rows), uid="shops")
    orders(p).join(shops.broadcast(), on="shop", uid="city").write(Parquet("unused"), uid="out")
    return p


def test_the_broadcast_side_of_a_join_ends_with_its_last_row() -> None:
    shops = [{"shop": "a", "city": "Ulm"}]
    out = run(named, [{"shops": shops}, {"orders": [order("a", "10:00")]}, Checkpoint(), Checkpoint()])
    assert [[row["city"] for row in c.rows["out"]] for c in out.checkpoints] == [["Ulm"], []]


def test_sources_take_turns_and_a_list_of_steps_says_the_order_itself() -> None:
    script = {"orders": [order("a", "10:00"), Checkpoint(), order("b", "10:00")], "shops": [[], End()]}
    assert run(named, script)["out"] == []
    p = Pipeline()
    left, right = (p.read(DataGen(never, SHOPS), uid=uid) for uid in ("left", "right"))
    left.union(right).write(Parquet("unused"), uid="out")
    steps = [{"right": [{"shop": "1"}]}, {"left": [{"shop": "2"}]}, {"right": [{"shop": "3"}]}]
    assert [row["shop"] for row in run(p, steps)["out"]] == ["1", "2", "3"]
    turns = {"left": [[{"shop": "1"}], [{"shop": "3"}]], "right": [[{"shop": "2"}], [{"shop": "4"}]]}
    assert [row["shop"] for row in run(p, turns)["out"]] == ["1", "2", "3", "4"]


def test_a_source_that_is_not_fed_reads_what_it_reads() -> None:
    p = Pipeline()
    numbers = p.read(DataGen(lambda n: {"n": n}, pa.schema([("n", pa.int64())]), rows=5), uid="numbers")
    numbers.filter(pc.field("n") > 2).write(Parquet("unused"), uid="out")
    assert run(p, {})["out"] == [{"n": 3}, {"n": 4}]


def test_a_sink_that_does_not_commit_shows_rows_as_often_as_they_were_written() -> None:
    p = Pipeline()
    orders(p).write(Discard(), uid="out")
    assert len(run(p, {"orders": [order("a", "10:00"), Crash()]})["out"]) == 2


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"order": []}, "the pipeline has no source 'order', did you mean 'orders'?"),
        ({"orders": [{"shopp": "a"}]}, "there is no column 'shopp', did you mean 'shop'?"),
        ({"orders": [{"price": "much"}]}, "the values of column 'price' are not of type int64"),
        ({"orders": [{"time": "yesterday"}]}, "the values of column 'time' are not of type timestamp[us]"),
        ({"orders": pa.table({"shopp": ["a"]})}, "there is no column 'shopp'"),
        ({"orders": pa.table({"shop": ["a"]})}, "the rows of the input do not fit the schema"),
        ({"orders": [Watermark("late")]}, "the time 'late' is invalid"),
        ({"orders": [Advance("5")]}, "by='5' is not a duration"),
        ({}, "source 'orders' is unbounded, and inputs has no rows"),
        ({"orders": ["a"]}, "the element 'a' of the inputs is of an unknown kind"),
        ({"orders": "abc"}, "the element 'abc' of the inputs is of an unknown kind"),
        ([{"orders": []}, "crash"], "the element 'crash' of the inputs is of an unknown kind"),
        ({"orders": [End(), order("a", "10:00")]}, "comes after the end of source 'orders'"),
        ([{"orders": [End()]}, Checkpoint()], "the job has ended before Checkpoint()"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(inputs: Any, says: str) -> None:
    with pytest.raises(PipelineError) as caught:
        run(hourly, inputs)
    assert says in caught.value.what
    assert caught.value.remedy


def test_a_column_without_a_value_is_null_where_it_may_be() -> None:
    p = Pipeline()
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    p.read(DataGen(never, schema), uid="in").write(Parquet("unused"), uid="out")
    assert run(p, {"in": [{"a": 1}]})["out"] == [{"a": 1, "b": None}]
    with pytest.raises(PipelineError, match="column 'a' has no value in row 1"):
        run(p, {"in": [{"a": 1}, {"b": 1}]})


def test_a_fed_source_has_rows_in_a_trial_alone() -> None:
    p = Pipeline()
    p.read(Fed(ORDERS), uid="orders").write(Parquet("unused"), uid="out")
    assert len(run(p, {"orders": [order("a", "10:00")]})["out"]) == 1
    with pytest.raises(PipelineError, match="unbounded, and inputs has no rows"):
        run(p, {})
    with pytest.raises(PipelineError, match="has no records of its own"):
        Fed(ORDERS, bounded=True).discover(1)


def test_fed_and_made_watermarks_do_not_meet_in_one_assigner() -> None:
    p = Pipeline()
    left, right = (p.read(DataGen(never, ORDERS), uid=uid) for uid in ("left", "right"))
    left.union(right).with_watermark("time", "0 s").write(Parquet("unused"), uid="out")
    with pytest.raises(PipelineError, match="a source that has Watermark") as caught:
        run(p, {"left": [at("10:00")], "right": []})
    assert "test_trial_runs.py:" in caught.value.where
    assert run(p, {"left": [at("10:00")], "right": [at("11:00")]})["out"] == []


def test_what_an_operator_raises_names_it_and_shows_its_traceback() -> None:
    def broken(batches: Any) -> Any:
        raise ValueError("no such shop")

    p = Pipeline()
    p.read(DataGen(never, ORDERS), uid="orders").map_in_arrow(broken, ORDERS, uid="broken").write(Discard(), uid="out")
    with pytest.raises(TidegateError, match="no such shop") as caught:
        run(p, {"orders": [order("a", "10:00")]})
    assert caught.value.where == "operator 'broken', subtask 0"
    assert "in broken" in caught.value.__notes__[0]


def test_a_wrong_option_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(OptionError, match="parallelism"):
        run(hourly, {"orders": []}, paralelism=2)


def test_a_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.jobs.stores import in_memory
    from tidegate.testing import collect_sink

    before = set(in_memory._objects), set(collect_sink._registry)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run(hourly, {"orders": [order("a", "10:00"), Checkpoint(), Crash()]})
    assert (set(in_memory._objects), set(collect_sink._registry)) == before


ELEMENTS = st.one_of(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5)),
    st.just(Checkpoint()),
    st.sampled_from([Crash(), Crash(1), Crash(3)]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(ELEMENTS, max_size=25), st.integers(1, 3))
def test_whatever_crashes_and_checkpoints_come_rows_are_counted_once(elements: list[Any], parallelism: int) -> None:
    """S5.5, S7.4, S9.1: the oracle is a Counter. The watermark comes last, so no row is late."""
    script = [order(e[0], f"1{e[1]}:00") if isinstance(e, tuple) else e for e in elements]
    out: Outcome = run(hourly, {"orders": [*script, at("23:00"), Checkpoint()]}, parallelism=parallelism)
    wanted = Counter((e[0], 10 + e[1]) for e in elements if isinstance(e, tuple))
    assert counts(out["out"]) == sorted((shop, hour, n) for (shop, hour), n in wanted.items())
