"""Joins over sessions of both sides against plain Python: random order, batches, watermarks, restores at other
parallelisms (S5, S4.4)."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any, get_args

import numpy as np
import pyarrow.compute as pc
import pytest
from driven_join import (
    BACK_ENDS,
    GROUPS,
    LEFT_ROWS,
    PROPERTY,
    RIGHT_ROWS,
    SECOND,
    Subtasks,
    in_some_order,
    join_spec,
    play,
)
from hypothesis import given
from hypothesis import strategies as st

import tidegate as td
from tidegate.errors import SnapshotError
from tidegate.operators.joins.join_specs import SessionMatch, StreamJoinKind, StreamJoinSpec
from tidegate.operators.joins.session_spans import SessionSpans

Row = tuple[Any, ...]


def session_spec(gap: int = 3, how: str = "inner", **arguments: Any) -> StreamJoinSpec:
    return join_spec(how=how, window=td.session(f"{gap} s"), **arguments)


def in_sessions(left: list[Row], right: list[Row], gap_us: int) -> list[tuple[int, int, list[Row], list[Row]]]:
    """(start, end, left rows, right rows) of every session; a row whose key is null has one of its own."""
    timed = [
        (row[0], row[1], side, row) for side, rows in enumerate((left, right)) for row in rows if row[1] is not None
    ]
    found: list[tuple[int, int, list[Row], list[Row]]] = []
    last: dict[Any, int] = {}
    for key, time, side, row in sorted(timed, key=lambda one: one[1]):
        at = last.get(key)
        if key is not None and at is not None and time <= found[at][1]:
            start, _, *rows = found[at]
            found[at] = (start, time + gap_us, *rows)  # type: ignore[assignment]
        else:
            at = last[key] = len(found)
            found.append((time, time + gap_us, [], []))
        found[at][2 + side].append(row)
    return found


def expected(left: list[Row], right: list[Row], gap_us: int, how: str, most: int) -> Counter[Row]:
    """Pairs whose x is greater than `most`, and what stands alone, as the join gives them."""
    found: Counter[Row] = Counter()
    for start, end, mine, theirs in in_sessions(left, right, gap_us):
        pairs = [(a, b) for a in mine for b in theirs if a[0] is not None and a[2] > most]
        for a in mine:
            has = any(pair[0] is a for pair in pairs)
            if how in ("semi", "anti") and has == (how == "semi"):
                found[*a, start, end] += 1
            if how in ("left", "full") and not has:
                found[*a, None, None, start, end] += 1
        for b in theirs:
            if how in ("right", "full") and not any(pair[1] is b for pair in pairs):
                found[b[0], None, None, b[1] // 1000, b[2], start, end] += 1
        if how not in ("semi", "anti"):
            found.update((*a, b[1] // 1000, b[2], start, end) for a, b in pairs)
    return found


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(get_args(StreamJoinKind)),
    gap=st.sampled_from([1, 3, 8]),
    condition=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_session_join_equals_plain_python(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: str, gap: int, condition: bool, seed: int
) -> None:
    where = pc.field("x") > 4 if condition else None
    column = {"right": "ms", "full": None}.get(how, "t")
    subtasks = Subtasks(session_spec(gap, how, where=where), back_end, scratches(), time_column=column)
    chance = random.Random(seed)
    out = play(subtasks, (in_some_order(left, chance), in_some_order(right, chance)), seed)
    assert Counter(out) == expected(left, right, gap * SECOND, how, 4 if condition else -1)
    timeless = sum(row[1] is None for row in (*left, *right))
    assert subtasks.counters == ({"null_event_time_dropped": timeless} if timeless else {})


def test_a_row_of_one_side_makes_one_session_of_two_of_the_other(scratches: Any) -> None:
    subtasks = Subtasks(session_spec(5), "heap", scratches())
    subtasks.feed(0, [(1, 0, 1), (1, 8 * SECOND, 2), (1, 13 * SECOND + 1, 3)])
    subtasks.feed(1, [(1, 4 * SECOND, "a")])
    bounds = (0, 13 * SECOND)
    subtasks.watermark(13 * SECOND)
    assert subtasks.out == [], "a row at its very end still belongs to it"
    subtasks.watermark(13 * SECOND + 1)
    assert Counter(subtasks.out) == Counter([(1, 0, 1, 4000, "a", *bounds), (1, 8 * SECOND, 2, 4000, "a", *bounds)])
    assert len(subtasks.finish()) == 2, "more than a gap apart is another session"


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_rows_exactly_a_gap_apart_match_whenever_the_watermark_comes(scratches: Any, back_end: str) -> None:
    """S4.4, S8.2."""
    subtasks = Subtasks(session_spec(5, "full"), back_end, scratches())
    subtasks.feed(0, [(1, 0, 1), (2, 0, 2)])
    subtasks.watermark(5 * SECOND)
    subtasks.feed(1, [(1, 5 * SECOND, "a"), (2, 5 * SECOND + 1000, "b")])
    pair = (1, 0, 1, 5000, "a", 0, 10 * SECOND)
    alone = (2, 0, 2, None, None, 0, 5 * SECOND)
    other = (2, None, None, 5001, "b", 5 * SECOND + 1000, 10 * SECOND + 1000)
    assert Counter(subtasks.finish()) == Counter([pair, alone, other]) and subtasks.counters == {}


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("grows", [False, True])
def test_sessions_a_gap_apart_of_a_snapshot_of_version_0_1_become_one(
    scratches: Any, back_end: str, grows: bool
) -> None:
    """S5.5: there a gap of 3 s was what one of a microsecond less is now; its timers come a microsecond early."""
    old = join_spec(how="inner", window=td.session(timedelta(microseconds=3 * SECOND - 1)))
    subtasks = Subtasks(old, back_end, scratches())
    subtasks.feed(0, [(1, 0, 1), (2, 0, 2)])
    subtasks.feed(1, [(1, 3 * SECOND, "a"), (2, SECOND, "b")])
    subtasks.spec = session_spec(3)
    subtasks.restart(1, portable=False)
    subtasks.watermark(3 * SECOND)
    if grows:
        subtasks.feed(1, [(1, 4 * SECOND, "c")])
    end = (7 if grows else 6) * SECOND
    subtasks.watermark(4 * SECOND)
    assert subtasks.out == []
    subtasks.watermark(4 * SECOND + 1)
    assert subtasks.out == [(2, 0, 2, 1000, "b", 0, 4 * SECOND)]
    subtasks.watermark(end)
    assert len(subtasks.out) == 1
    subtasks.watermark(end + 1)
    found = [(1, 0, 1, 3000, "a", 0, end), (1, 0, 1, 4000, "c", 0, end)]
    assert sorted(subtasks.out[1:]) == found[: 1 + grows]
    (operator,) = subtasks.operators
    operator.portable = True
    kept = {part.name: part.table.num_rows for part in operator.snapshot(1)()}
    assert not any(kept[name] for name in ("left", "right", "sessions", "timers:event", "timers:processing"))
    subtasks.close()


def test_a_row_behind_the_watermark_is_not_late_inside_a_session_that_is_open(scratches: Any) -> None:
    subtasks = Subtasks(session_spec(5, "left"), "heap", scratches(), time_column="t")
    subtasks.feed(0, [(1, 10 * SECOND, 1), (1, 14 * SECOND, 2)])
    subtasks.watermark(15 * SECOND)
    subtasks.feed(1, [(1, 12 * SECOND, "a"), (1, 9 * SECOND, "b"), (2, 12 * SECOND, "c")])
    subtasks.restart(2)
    subtasks.feed(0, [(None, 14 * SECOND, 3), (1, 9 * SECOND, 4), (None, 15 * SECOND, 5)])
    bounds = (10 * SECOND, 19 * SECOND)
    alone = (None, 15 * SECOND, 5, None, None, 15 * SECOND, 20 * SECOND)
    pairs = [(1, t * SECOND, x, 12_000, "a", *bounds) for t, x in ((10, 1), (14, 2))]
    assert Counter(subtasks.finish()) == Counter([alone, *pairs])
    assert subtasks.counters == {"late_dropped": 4}


def test_the_watermark_is_held_back_to_the_first_row_of_the_earliest_open_session(scratches: Any) -> None:
    subtasks = Subtasks(session_spec(5), "heap", scratches())
    subtasks.watermark(8 * SECOND)
    assert subtasks.told == [8 * SECOND]
    subtasks.feed(0, [(1, 10 * SECOND, 1), (2, 11 * SECOND, 2)])
    subtasks.feed(1, [(1, 14 * SECOND, "a")])
    subtasks.watermark(16 * SECOND + 1)
    assert subtasks.told == [10 * SECOND], "the session of key 2 is over, that of key 1 is not"
    subtasks.restart(2)
    subtasks.watermark(17 * SECOND)
    assert min(subtasks.told) == 10 * SECOND
    subtasks.watermark(19 * SECOND + 1)
    assert subtasks.told == [19 * SECOND + 1] * 2 and len(subtasks.out) == 1
    subtasks.close()


@pytest.mark.parametrize("how", get_args(StreamJoinKind))
def test_nothing_is_kept_of_sessions_that_are_over(scratches: Any, how: str) -> None:
    subtasks = Subtasks(session_spec(2, how), "heap", scratches())
    for second in range(60):
        key = second % 7
        subtasks.feed(
            second % 2, [(key, second * SECOND, second if second % 2 == 0 else "a"), (None, second * SECOND, None)]
        )
        subtasks.watermark((second - 5) * SECOND)
    (operator,) = subtasks.operators
    kept = {part.name: part.table.num_rows for part in operator.snapshot(1)()}
    assert 0 < kept["sessions"] == kept["timers:event"] == kept["timers:processing"] <= 8
    assert kept["left"] + kept["right"] <= 8
    subtasks.watermark(80 * SECOND)
    kept = {part.name: part.table.num_rows for part in operator.snapshot(2)()}
    assert {name: n for name, n in kept.items() if n} == {"watermark:passed": GROUPS, "join:form": GROUPS}
    subtasks.close()


def test_a_session_that_goes_on_has_one_timer(scratches: Any) -> None:
    """However many batches it came in, or it would be looked at for each of them."""
    subtasks = Subtasks(session_spec(60), "heap", scratches())
    for second in range(0, 100, 2):
        subtasks.feed(0, [(1, second * SECOND, 1)])
    (operator,) = subtasks.operators
    kept = {part.name: part.table.num_rows for part in operator.snapshot(1)()}
    assert kept["timers:event"] == kept["timers:processing"] == kept["sessions"] == 1
    subtasks.close()


def test_many_matches_of_a_session_come_in_bounded_batches(scratches: Any) -> None:
    subtasks = Subtasks(session_spec(5), "heap", scratches())
    subtasks.feed(0, [(1, n, n) for n in range(500)])
    subtasks.feed(1, [(1, n * 1000, "a") for n in range(300)])
    (operator,) = subtasks.operators
    found = list(operator.on_watermark(100 * SECOND))
    sizes = [element.num_rows for element in found[:-1]]
    assert sum(sizes) == 150_000 and max(sizes) == 65536
    subtasks.close()


def test_state_of_another_gap_is_refused(scratches: Any) -> None:
    """Two of its sessions may be one now, or one two."""
    subtasks = Subtasks(session_spec(3), "heap", scratches())
    subtasks.feed(0, [(1, 0, 1)])
    subtasks.spec = session_spec(4)
    with pytest.raises(
        SnapshotError, match="is inner in sessions, gap 3 s, the join of the pipeline is inner in sessions, gap 4 s"
    ):
        subtasks.restart(1)


def test_the_end_of_the_input_closes_sessions_of_every_kind_of_join() -> None:
    """S7.5: a drain does, too, and asks for leave."""
    for how in get_args(StreamJoinKind):
        assert session_spec(3, how).results_at_end("fire") == "any"


@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=8), max_size=5),
    gap=st.integers(1, 9),
)
def test_sessions_that_grow_by_batches_are_those_of_all_rows(batches: list[list[tuple[int, int]]], gap: int) -> None:
    empty = np.empty(0, np.int64)
    sessions = SessionSpans(empty.astype(np.int32), empty, empty, np.zeros(5, np.int64))
    for rows in batches:
        owners, times = np.array([k for k, _ in rows], np.int32), np.array([t for _, t in rows], np.int64)
        sessions = SessionSpans.kept_spans(sessions.extend(owners, times, gap).elements())
    wanted = in_sessions([(k, t) for rows in batches for k, t in rows], [], gap)
    found = zip(sessions.owners.tolist(), sessions.firsts.tolist(), (sessions.lasts + gap).tolist(), strict=True)
    assert list(found) == sorted((left[0][0], start, end) for start, end, left, _ in wanted)


def test_a_call_says_sessions_and_has_their_bounds_in_its_columns() -> None:
    spec = session_spec(5, "left")
    assert spec.bounds == SessionMatch(5 * SECOND)
    assert spec.schema.names[-2:] == ["window_start", "window_end"]
    assert spec.describe() == "left join on k in sessions, gap 5 s"
