"""Deduplication: which record is kept, and for how long its key is known (S4.4, S5.1)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from builders.batches import batch_of
from builders.operators import open_operator
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import PipelineError
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.stream_operator import SideOutput
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups

GROUPS = 8
INPUT = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("n", pa.int64())])
Triple = tuple[int | None, int | None, int]


def spec(within: int = 0, ttl: int = 0) -> DeduplicateSpec:
    return DeduplicateSpec(("k",), "t" if within else None, "us", within, ttl, INPUT)


def opened(
    deduplicate: DeduplicateSpec,
    subtask: int = 0,
    parallelism: int = 1,
    back_end: Any = "heap",
    now_ms: Any = lambda: 0,
    scratch: str = "",
) -> Any:
    place = {"subtask": subtask, "parallelism": parallelism, "max_parallelism": GROUPS, "processing_time_ms": now_ms}
    return open_operator(deduplicate, INPUT, **place, state_backend=back_end, scratch=scratch)


def batch(rows: list[Triple]) -> pa.RecordBatch:
    return batch_of(INPUT, rows)


def kept(operator: Any, *rows: Triple) -> list[int]:
    """Numbers of the rows that are passed on."""
    out = [b for b in operator.process(batch(list(rows)), 0) if isinstance(b, pa.RecordBatch)]
    return [n for b in out for n in b.column("n").to_pylist()]


@pytest.mark.parametrize("back_end", ["heap", "memory", "rocksdb"])
def test_the_first_row_of_each_key_passes_at_once(back_end: Any, tmp_path: Any) -> None:
    operator = opened(spec(), back_end=back_end, scratch=str(tmp_path / "one"))
    assert kept(operator, (1, 0, 1), (1, 0, 2), (None, 0, 3), (2, 0, 4), (None, 0, 5)) == [1, 3, 4]
    assert kept(operator, (2, 9, 6), (3, 0, 7)) == [7]
    operator.portable = True
    again = opened(spec(), back_end=back_end, scratch=str(tmp_path / "two"))
    again.restore(decode_parts(encode_parts(operator.snapshot(1)())))
    assert kept(again, (3, 0, 8), (4, 0, 9)) == [9]
    operator.close()
    again.close()


def test_within_a_time_a_row_repeats_the_one_that_was_kept_and_its_key_is_forgotten_behind_the_watermark() -> None:
    operator = opened(spec(within=10))
    assert kept(operator, (1, 20, 1), (1, 29, 2), (1, 5, 3), (1, 30, 4), (2, None, 5)) == [1, 4]
    list(operator.on_watermark(39))
    assert kept(operator, (1, 38, 6), (2, 38, 7)) == []
    assert operator.ctx.counters == {"null_event_time_dropped": 1, "late_dropped": 1}
    list(operator.on_watermark(40))
    assert sum(part.table.num_rows for part in operator.snapshot(1)() if part.name == "seen") == 0
    assert kept(operator, (1, 40, 8)) == [8]
    list(operator.on_watermark(MAX_WATERMARK))
    assert kept(operator, (3, 0, 9)) == [9], "what an operator emits at its end is not late"


@pytest.mark.parametrize("back_end", ["heap", "rocksdb"])
def test_a_key_is_forgotten_after_a_longer_time_too_than_the_one_that_it_was_kept_for(
    back_end: Any, tmp_path: Any
) -> None:
    operator = opened(spec(within=10), back_end=back_end, scratch=str(tmp_path / "one"))
    assert kept(operator, (1, 0, 1)) == [1]
    again = opened(spec(within=30), back_end=back_end, scratch=str(tmp_path / "two"))
    operator.portable = again.portable = True
    again.restore(decode_parts(encode_parts(operator.snapshot(1)())))
    list(again.on_watermark(20))
    assert kept(again, (1, 25, 2)) == [], "a repeat"
    list(again.on_watermark(30))
    assert sum(table.num_rows for part in again.snapshot(2)() if part.name == "seen" for table in part.tables()) == 0
    for one in (operator, again):
        one.close()


def test_late_rows_go_to_the_side_output_where_something_reads_it() -> None:
    operator = opened(spec(within=10))
    operator.ctx.side_outputs = frozenset({"late"})
    list(operator.on_watermark(50))
    (out,) = operator.process(batch([(1, 3, 1)]), 0)
    assert isinstance(out, SideOutput) and out.batch.column("n").to_pylist() == [1]


def test_a_key_is_forgotten_after_its_time_to_live() -> None:
    now = [0]
    operator = opened(spec(ttl=100), now_ms=lambda: now[0])
    assert kept(operator, (1, 0, 1)) == [1]
    now[0] = 99
    assert kept(operator, (1, 0, 2)) == []
    now[0] = 101
    assert kept(operator, (1, 0, 3)) == [3]


@settings(deadline=None, max_examples=60)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=8), max_size=6),
    rescales=st.lists(st.sampled_from([0, 1, 2, 3]), min_size=6, max_size=6),
    within=st.sampled_from([1, 7, 30]),
    slow=st.integers(0, 40),
)
def test_what_is_kept_equals_a_model_that_forgets_nothing(
    batches: list[list[tuple[int, int]]], rescales: list[int], within: int, slow: int
) -> None:
    operators, n, watermark, late = [opened(spec(within))], 0, -100, 0
    last: dict[int, int] = {}
    for rows, parallelism in zip(batches, rescales, strict=False):
        if parallelism:
            streams = [encode_parts(operator.snapshot(1)()) for operator in operators]
            late += sum(o.ctx.counters.get("late_dropped", 0) for o in operators)
            operators = [opened(spec(within), i, parallelism) for i in range(parallelism)]
            for i, operator in enumerate(operators):
                former = {number: decode_parts(stream) for number, stream in enumerate(streams)}
                operator.restore(redistributed(former, 0, Rescale(len(streams), parallelism, GROUPS, i)))
        numbered: list[Triple] = [(k, t, n + i) for i, (k, t) in enumerate(rows)]
        n += len(rows)
        whole = batch(numbered)
        owners = subtask_of_key_groups(len(operators), GROUPS)[key_groups(hash_keys(whole, ["k"]), GROUPS)]
        found = [
            kept(o, *(r for r, i in zip(numbered, owners, strict=True) if i == me)) for me, o in enumerate(operators)
        ]
        expected, model_late = [], 0
        for key, time, number in numbered:
            assert key is not None and time is not None
            known = key in last and last[key] + within > watermark
            if known and time < last[key] + within:
                continue
            if not known and time < watermark:
                model_late += 1
                continue
            expected.append(number)
            last[key] = time
        assert sorted(sum(found, [])) == expected
        late -= model_late
        watermark = max([watermark, *(t - slow for _, t in rows)])
        for operator in operators:
            list(operator.on_watermark(watermark))
    assert late + sum(o.ctx.counters.get("late_dropped", 0) for o in operators) == 0


def stream(p: td.Pipeline) -> td.Stream:
    return p.read(td.DataGen(lambda n: {}, INPUT, rows=5), uid="in")


def test_the_last_is_that_of_a_session_and_keeps_the_columns() -> None:
    p = td.Pipeline()
    last = stream(p).with_watermark("t", "0 s").deduplicate("k", within="1 h", keep="last", uid="d")
    assert last.schema.names == INPUT.names
    last.write(td.Discard(), uid="out")
    assert "sessions of t, gap 3600 s, by k" in p.explain()


def test_what_does_not_fit_is_refused_with_the_line() -> None:
    s = stream(td.Pipeline())
    with pytest.raises(PipelineError, match="no event time.*test_deduplicate.py"):
        s.deduplicate("k", within="1 h", uid="d")
    with pytest.raises(PipelineError, match='keep="last" needs within'):
        s.deduplicate("k", keep="last", uid="d")
    with pytest.raises(PipelineError, match="within='0 s' is not positive"):
        s.deduplicate("k", within="0 s", uid="d")
    with pytest.raises(PipelineError, match="did you mean 'k'|no column"):
        s.deduplicate("kk", uid="d")
    with pytest.raises(PipelineError, match=r"deduplicate\(\.\.\.\) has no columns"):
        s.deduplicate([], uid="d")
