"""The winning bid of an auction: the highest one, of equal bids the first, known when the auction has closed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidegate import FiredTimers, KeyedProcess, KeyedRows, ProcessContext, value_state

TIME = pa.timestamp("us")
WINNERS = pa.schema(
    [
        *[("id", pa.int64()), ("item", pa.string()), ("seller", pa.int64()), ("category", pa.int64())],
        *[("bidder", pa.int64()), ("price", pa.int64()), ("bid_time", TIME), ("date_time", TIME)],
    ]
)
"""`date_time` is the time at which the auction closed: the event time of the results."""
BEST = {"price": pa.int64(), "bidder": pa.int64(), "time_us": pa.int64()}


class WinningBid(KeyedProcess):
    """Finds the winning bid. Keys are an auction's columns; rows also have a bid's columns."""

    states = (value_state("best", BEST),)

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Store the best bid of each auction, and set a timer at its end."""
        columns = {name: rows.batch[name].to_numpy() for name in ("price", "bidder")}
        columns["time_us"] = rows.batch["date_time"].cast(pa.int64()).to_numpy()
        closes_us = rows.batch["expires"].cast(pa.int64()).to_numpy() + 1
        order = np.lexsort((columns["time_us"], -columns["price"], rows.owners))
        first = order[np.unique(rows.owners[order], return_index=True)[1]]  # one row for each key, in the order of keys
        mine = {name: values[first] for name, values in columns.items()}
        known = ctx.value("best").get(rows.keys)
        theirs = {name: known.columns[name].fill_null(0).to_numpy() for name in BEST}
        higher = mine["price"] > theirs["price"]
        earlier = (mine["price"] == theirs["price"]) & (mine["time_us"] < theirs["time_us"])
        better = pa.record_batch([pa.array(mine[name]) for name in BEST], names=list(BEST))
        ctx.value("best").put(rows.keys, better, ~known.present | higher | earlier)
        ctx.event_timers.register(rows.keys, rows.owners[first], closes_us[first])

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        """Emit the winning bid: the auction has closed, so no timely bid is missing."""
        best, owners = ctx.value("best").get(due.keys).columns, pa.array(due.owners)
        auction = due.keys.columns()
        columns = {name: auction[name].take(owners) for name in ("id", "item", "seller", "category")}
        columns |= {name: best[name].take(owners) for name in ("bidder", "price")}
        columns["bid_time"] = best["time_us"].take(owners).cast(TIME)
        columns["date_time"] = pa.array(due.times_us).cast(TIME)
        yield pa.record_batch([columns[name] for name in WINNERS.names], schema=WINNERS)
        ctx.value("best").clear(due.keys)
