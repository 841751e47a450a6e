"""Proofs of joins: each bound on times with each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import pyarrow.compute as pc
from proof_cases import Case, Drawing, Result

from tidegate.api.windows import session, sliding, tumbling
from tidegate.operators.joins.join_specs import StreamJoinKind

BOUNDS: dict[str, tuple[dict[str, Any], str]] = {
    "interval": ({"between": ("-20 ms", "35 ms")}, "r.ms between l.ms - 20 and l.ms + 35"),
    "ttl": ({"ttl": "15 ms"}, "abs(r.ms - l.ms) <= 15"),
    "any time": ({"where": pc.field("v") > pc.field("y")}, "l.v > r.y"),
}
"""Arguments, and the condition in SQL."""


IN_SESSIONS = """(select *, count(*) filter (where new) over (in_order rows unbounded preceding) g from
(select *, coalesce(ms - lag(ms) over in_order > 12, true) as new from
(select 'l' as side, id, k, ms from l union all select 'r', rid, k, ms from r)
window in_order as (partition by k order by ms, side, id)) window in_order as (partition by k order by ms, side, id))"""
TOGETHER = f"""(select t.*, w, w_end from {{0}} t join (select side, id, case when k is null then ms else
min(ms) over (partition by k, g) end w, case when k is null then ms else max(ms) over (partition by k, g) end + 12 w_end
from {IN_SESSIONS}) s on s.side = '{{0}}' and s.id = t.{{1}})"""


def joins(
    arguments: Mapping[str, Any], condition: str, left: str = "l", right: str = "r", bounds: str = ""
) -> Callable[[Drawing], Mapping[str, Result]]:
    """All kinds of join of two streams.

    Args:
        arguments: of the calls.
        condition: the same in SQL, beside equal keys.
        left, right: the rows of both sides.
        bounds: columns of both with the bounds of windows that the result is to have, such as "w w_end".
    """

    def draw(d: Drawing) -> Mapping[str, Result]:
        found = {}
        for how in get_args(StreamJoinKind):
            joined = d.left.join(d.right, "k", how, suffix="_r", uid=how, **arguments)
            is_half = how in ("semi", "anti")
            picked = ["l.k", "id"] if is_half else ["coalesce(l.k, r.k)", "id", "rid"]
            picked += [f"l.{column}" if is_half else f"coalesce(l.{column}, r.{column})" for column in bounds.split()]
            query = f"select {', '.join(picked)} from {left} l {how} join {right} r on l.k = r.k and {condition}"
            times = "epoch_ms(window_start), epoch_ms(window_end)" if bounds else ""
            read = f"select {', '.join(['k', 'id', *([] if is_half else ['rid'])])}, {times} from out"
            found[how] = Result(joined, query, read)
        return found

    return draw


def broadcast(d: Drawing) -> Mapping[str, Result]:
    """All kinds of join with a side that is everywhere."""
    found = {}
    for how in ("inner", "left", "semi", "anti"):
        joined = d.left.join(d.names.broadcast(), "k", how, uid=how)  # type: ignore[arg-type]
        picked = "l.k, id" if how in ("semi", "anti") else "l.k, id, name"
        query = f"select {picked} from l {how} join names n on l.k = n.k"
        names = ["k", "id"] if how in ("semi", "anti") else ["k", "id", "name"]
        found[how] = Result(joined.select(*names), query)
    return found


def as_of(d: Drawing) -> Mapping[str, Result]:
    """The version in force; of several of one time any may be."""
    inner = "select l.k, id, max(r.ms) from l asof join r on l.k = r.k and l.ms >= r.ms group by all"
    outer = inner.replace("asof join", "asof left join")
    near = f"select l.k, id, case when ms - since <= 10 then since end from l join ({outer}) f(k, id, since) using (id)"
    kinds: dict[str, tuple[dict[str, Any], str]] = {
        "inner": ({"how": "inner"}, inner),
        "left": ({"how": "left"}, outer),
        "within": ({"how": "left", "tolerance": "10 ms"}, near),
    }
    return {
        name: Result(d.left.join_as_of(d.right, "k", suffix="_r", uid=name, **how).select("k", "id", "ms_r"), query)
        for name, (how, query) in kinds.items()
    }


CUT = "(select *, w + {size} as w_end from (select *, unnest({starts}) w from {rows}))"


def windowed(arguments: Mapping[str, Any], size: int, starts: str) -> Case:
    """Joins in windows that begin at `starts`."""
    left, right = (CUT.format(size=size, starts=starts, rows=rows) for rows in "lr")
    return Case(joins(arguments, "l.w = r.w", left, right, "w w_end"))


JOINS = {
    **{f"joins: {name}": Case(joins(*arguments)) for name, arguments in BOUNDS.items()},
    "joins: tumbling windows": windowed({"window": tumbling("25 ms")}, 25, "[ms // 25 * 25]"),
    "joins: sliding windows": windowed(
        {"window": sliding("20 ms", "10 ms")}, 20, "[ms // 10 * 10 - 10, ms // 10 * 10]"
    ),
    "joins: sessions": Case(
        joins(
            {"window": session("12 ms")},
            "l.w = r.w",
            TOGETHER.format("l", "id"),
            TOGETHER.format("r", "rid"),
            "w w_end",
        )
    ),
    "broadcast joins": Case(broadcast),
    "joins as of a time": Case(as_of),
}
