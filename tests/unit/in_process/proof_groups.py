"""Proofs of windows, aggregates and deduplication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from proof_cases import Case, Drawing, Result, Row

from tidegate import ArrowAggregate
from tidegate.api import aggregates as agg
from tidegate.api.windows import session, sliding, tumbling

WINDOW = "epoch_ms(window_start), epoch_ms(window_end)"


class Weighted(ArrowAggregate):
    """Sum of the products of two columns; a null counts as 0."""

    state = pa.schema([("total", pa.float64())])
    result_type = pa.float64()

    def accumulate(self, columns: Sequence[pa.Array], groups: Any, count: int) -> pa.RecordBatch:
        """See `ArrowAggregate`."""
        v, f = (column.fill_null(0).to_numpy() for column in columns)
        return pa.record_batch([np.bincount(groups, v * f, count)], schema=self.state)

    def merge(self, states: pa.RecordBatch, groups: Any, count: int) -> pa.RecordBatch:
        """See `ArrowAggregate`."""
        return pa.record_batch([np.bincount(groups, states["total"].to_numpy(), count)], schema=self.state)

    def result(self, states: pa.RecordBatch) -> pa.Array:
        """See `ArrowAggregate`."""
        return states["total"]


def every_aggregate() -> dict[str, agg.Aggregate]:
    """One of each function of `api.aggregates`."""
    return {
        "n": agg.count(),
        "n_v": agg.count("v"),
        "total": agg.sum("v"),
        "low": agg.min("s"),
        "high": agg.max("f"),
        "average": agg.mean("v"),
        "variance": agg.var("v"),
        "spread": agg.stddev("v"),
        "every": agg.bool_and("b"),
        "any_": agg.bool_or("b"),
        "different": agg.count_distinct("s"),
        "set_": agg.collect_set("s"),
        "ids": agg.collect("id"),
        "first_": agg.first("id"),
        "last_": agg.last("s"),
        "of_least": agg.min_by("id", by="f"),
        "of_most": agg.max_by("id", by="v"),
        "top": agg.top_n("id", 2, by="v"),
        "named": agg.aggregate("max_by", "id", by="f"),
        "own": agg.user_aggregate(Weighted(), "v", "f"),
    }


FOUND = """n, n_v, total, low, high, round(average, 6), round(variance, 6), round(spread, 6), every, any_, different,
set_, ids, first_, last_, of_least, of_most, top, named, own"""
WANTED = """count(*), count(v), sum(v)::bigint, min(s), max(f), round(avg(v), 6), round(var_samp(v), 6),
round(stddev_samp(v), 6), bool_and(b), bool_or(b), count(distinct s),
coalesce(list_sort(list(distinct s) filter (where s is not null)), []), list(id order by ms, id),
first(id order by ms, id), last(s order by ms, id) filter (where s is not null),
first(id order by f, ms, id) filter (where f is not null),
first(id order by v desc, ms, id) filter (where v is not null),
coalesce((list(id order by v desc, ms, id) filter (where v is not null))[1:2], []),
first(id order by f desc, ms, id) filter (where f is not null),
coalesce(sum(v * f), 0)::double"""
SESSIONS = """(select *, count(*) filter (where new) over (partition by k order by ms, id rows unbounded preceding) g
from (select *, coalesce(ms - lag(ms) over (partition by k order by ms, id) > 12, true) as new from l))"""
BEST = """(select *, row_number() over (partition by {by} order by v desc, ms, id) as rank from {rows}
where v is not null qualify rank <= 2)"""


def windows(d: Drawing) -> Mapping[str, Result]:
    """Every aggregate in every window over event time."""
    groups, every = d.left.group_by("k"), every_aggregate()
    return {
        "tumbling": Result(
            groups.window(tumbling("25 ms", "3 ms")).agg(uid="t", **every),
            f"select k, (ms + 22) // 25 * 25 - 22 w, w + 25, {WANTED} from l group by k, w",
            f"select k, {WINDOW}, {FOUND} from out",
        ),
        "sliding": Result(
            groups.window(sliding("30 ms", "10 ms")).agg(uid="s", **every),
            f"select k, w, w + 30, {WANTED} from (select *, unnest([ms // 10 * 10 - 20, ms // 10 * 10 - 10, "
            f"ms // 10 * 10]) w from l) group by k, w",
            f"select k, {WINDOW}, {FOUND} from out",
        ),
        "session": Result(
            groups.window(session("12 ms")).agg(uid="ss", **every),
            f"select k, min(ms), max(ms) + 12, {WANTED} from {SESSIONS} group by k, g",
            f"select k, {WINDOW}, {FOUND} from out",
        ),
        "all": Result(
            d.left.window_all(tumbling("40 ms")).agg(uid="a", **every),
            f"select ms // 40 * 40 w, w + 40, {WANTED} from l group by w",
            f"select {WINDOW}, {FOUND} from out",
        ),
    }


def top_of_windows(d: Drawing) -> Mapping[str, Result]:
    """The best rows of windows."""
    best = BEST.format(by="k, w", rows="(select *, ms // 25 * 25 w from l)")
    last = """select k, last(id order by ms, id desc) from {rows} group by k, g"""
    return {
        "top": Result(
            d.left.group_by("k").window(tumbling("25 ms")).top_n(2, by="v", uid="top"),
            f"select k, w, rank, id from {best}",
            "select k, epoch_ms(window_start), rank, id from out",
        ),
        "last": Result(
            d.left.deduplicate("k", within="12 ms", keep="last", uid="last"),
            last.format(rows=SESSIONS),
            "select k, id from out",
        ),
    }


def final_groups(d: Drawing) -> Mapping[str, Result]:
    """Aggregates of all rows, at the end."""
    groups, every = d.left.group_by("k"), every_aggregate()
    return {
        "groups": Result(
            groups.agg(output="final", uid="g", **every),
            f"select k, {WANTED} from l group by k",
            f"select k, {FOUND} from out",
        ),
        "everything": Result(
            d.left.agg(output="final", uid="e", **every), f"select {WANTED} from l", f"select {FOUND} from out"
        ),
        "of groups": Result(
            groups.agg(n=agg.count(), output="final", uid="sizes")
            .group_by("n")
            .agg(keys=agg.count(), output="final", uid="keys-of-sizes"),
            "select n, count(*) from (select count(*) as n from l group by k) group by n",
        ),
        "beside rows": Result(
            d.left.join(groups.agg(n=agg.count(), output="final", uid="totals"), "k", "left", uid="beside").select(
                "id", "n"
            ),
            "select id, n from l left join (select k as of, count(*) as n from l group by k) on k = of",
        ),
        "top": Result(
            groups.top_n(2, by="v", output="final", uid="top"),
            f"select k, rank, id from {BEST.format(by='k', rows='l')}",
            "select k, rank, id from out",
        ),
    }


def updated_groups(d: Drawing) -> Mapping[str, Result]:
    """The last updates of aggregates of all rows: those of most rows, and the best of each rank."""
    groups, every = d.left.group_by("k"), every_aggregate()
    return {
        "groups": Result(
            groups.agg(uid="g", **every),
            f"select k, {WANTED} from l group by k",
            f"select k, {FOUND} from out qualify row_number() over (partition by k order by n desc) = 1",
        ),
        "everything": Result(
            d.left.agg(uid="e", **every),
            f"select {WANTED} from l",
            f"select {FOUND} from out order by n desc limit 1",
        ),
        "top": Result(
            groups.top_n(2, by="v", uid="top"),
            f"select k, rank, id from {BEST.format(by='k', rows='l')}",
            "select k, rank, id from out qualify row_number() over (partition by k, rank order by v desc, ms, id) = 1",
        ),
    }


def late_windows(d: Drawing) -> Mapping[str, Result]:
    """Rows come behind the watermark, and are allowed to: of what fires again the result of most rows counts, and of
    sessions those that are in no other."""
    groups = d.left.group_by("k")
    most = f"select k, {WINDOW}, n, total from out qualify row_number() over (partition by k, window_start order by "
    inner = """from out i where i.k is not distinct from out.k and i.n > out.n and i.window_start <= out.window_start
    and i.window_end >= out.window_end"""
    given = {"n": agg.count(), "total": agg.sum("v")}
    wanted = "count(*), sum(v)::bigint"
    return {
        "tumbling": Result(
            groups.window(tumbling("10 ms"), allowed_lateness="1 s").agg(uid="t", **given),
            f"select k, ms // 10 * 10 w, w + 10, {wanted} from l group by k, w",
            f"{most} n desc) = 1",
        ),
        "sliding": Result(
            groups.window(sliding("10 ms", "5 ms"), allowed_lateness="1 s").agg(uid="s", **given),
            f"select k, w, w + 10, {wanted} from (select *, unnest([ms // 5 * 5 - 5, ms // 5 * 5]) w from l) "
            f"group by k, w",
            f"{most} n desc) = 1",
        ),
        "session": Result(
            groups.window(session("12 ms"), allowed_lateness="1 s").agg(uid="ss", **given),
            f"select k, min(ms), max(ms) + 12, {wanted} from {SESSIONS} group by k, g",
            f"select distinct k, {WINDOW}, n, total from out where not exists ({inner})",
        ),
        "all": Result(
            d.left.window_all(tumbling("10 ms"), allowed_lateness="1 s").agg(uid="a", **given),
            f"select ms // 10 * 10 w, w + 10, {wanted} from l group by w",
            f"select {WINDOW}, n, total from out qualify row_number() over (partition by window_start order by n desc)"
            " = 1",
        ),
    }


def late_rows(d: Drawing) -> Mapping[str, Result]:
    """Which rows are late depends on their arrival: each is in its window or among the late ones."""
    groups, found = d.left.group_by("k"), {}
    for name, window in {"tumbling": tumbling("5 ms"), "session": session("2 ms")}.items():
        fired = groups.window(window).agg(ids=agg.collect("id"), uid=name)
        late = fired.side_output("late").group_by("id").agg(ids=agg.collect("id"), output="final", uid=f"{name}-late")
        both = fired.select("ids").union(late.select("ids"))
        found[name] = Result(both, "select id from l", "select unnest(ids) from out")
    return found


def windows_by_the_clock(d: Drawing) -> Mapping[str, Result]:
    """Which window a row is in depends on its arrival: each is in one, or of sliding ones in two."""
    groups = d.left.group_by("k")
    kinds = {
        "tumbling": tumbling("20 ms", time="processing"),
        "sliding": sliding("20 ms", "10 ms", time="processing"),
        "session": session("7 ms", time="processing"),
    }
    return {
        name: Result(
            groups.window(window).agg(ids=agg.collect("id"), uid=name),
            f"select k, id from l, range({2 if name == 'sliding' else 1})",
            "select k, unnest(ids) from out",
        )
        for name, window in kinds.items()
    }


def repeats(d: Drawing) -> Mapping[str, Result]:
    """Rows that repeat others, in order of time; or for what they are equal in, since the first to arrive stays."""
    return {
        "within": Result(
            d.ordered.deduplicate("k", within="40 ms", uid="within"), first_within, "select k, id from out"
        ),
        "keys of two": Result(
            d.ordered.deduplicate(["k", "b"], within="1 h", uid="pairs"),
            "select k, b, min(id) from o group by k, b",
            "select k, b, id from out",
        ),
        "for ever": Result(
            d.ordered.deduplicate(["k", "s"], uid="ever"), "select distinct k, s from o", "select k, s from out"
        ),
        "ttl": Result(
            d.ordered.deduplicate(["k", "b"], ttl="1 day", uid="ttl"),
            "select distinct k, b from o",
            "select k, b from out",
        ),
    }


def first_within(given: Mapping[str, pa.Table]) -> Counter[Row]:
    """Of each key the first row, and then the first that is 40 ms later than the one before."""
    kept: dict[str | None, int] = {}
    found: Counter[Row] = Counter()
    for row in given["o"].to_pylist():
        if row["k"] not in kept or row["ms"] >= kept[row["k"]] + 40:
            kept[row["k"]] = row["ms"]
            found[row["k"], row["id"]] += 1
    return found


GROUPS = {
    "windows": Case(windows),
    "best rows of windows": Case(top_of_windows),
    "final aggregates": Case(final_groups),
    "updated aggregates": Case(updated_groups, depends_on_mode=True),
    "windows with late rows": Case(late_windows, depends_on_mode=True, delay="0 s"),
    "late rows": Case(late_rows, delay="0 s"),
    "windows over processing time": Case(windows_by_the_clock, depends_on_mode=True),
    "repeats": Case(repeats, depends_on_mode=True),
}
