"""The pipeline of the golden jobs: windows, a join, processes of two kinds, an aggregate without windows, seven sinks.

Row i of `orders` is order i at i * 40 ms; the payment of order i comes 1 s later for two orders of three. Everything is
a function of the row's number, so the output of a restored run is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from tidegate import (
    Csv,
    DataGen,
    JsonLines,
    KeyedProcess,
    Parquet,
    Pipeline,
    count,
    list_state,
    map_state,
    max_by,
    min,
    reducing_state,
    session,
    sliding,
    sum,
    tumbling,
    value_state,
)

STEP_MS = 40
SHOPS = 23
ORDERS = pa.schema(
    [("order", pa.int64()), ("shop", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("ms", tz="UTC"))]
)
PAYMENTS = pa.schema([("order", pa.int64()), ("paid", pa.float64()), ("paid_at", pa.timestamp("ms", tz="UTC"))])
UNPAID = pa.schema([("order", pa.int64()), ("due", pa.timestamp("us")), ("amount", pa.float64())])


def orders(numbers: np.ndarray) -> dict[str, Any]:
    """Return the orders with these numbers."""
    return {
        "order": numbers,
        "shop": pa.array([None if n % 101 == 0 else f"shop-{n * 7 % SHOPS:02}" for n in numbers.tolist()], pa.string()),
        "amount": (numbers * 31 % 1000) / 4,
        "at": pa.array(numbers * STEP_MS).cast(pa.timestamp("ms", tz="UTC")),
    }


def payments(numbers: np.ndarray) -> dict[str, Any]:
    """Return the payments with these numbers. Two of three orders have a payment."""
    paid = numbers // 2 * 3 + numbers % 2
    return {
        "order": paid,
        "paid": (paid * 31 % 1000) / 4,
        "paid_at": pa.array(paid * STEP_MS + 1000).cast(pa.timestamp("ms", tz="UTC")),
    }


class Overdue(KeyedProcess):
    """Emits orders without a payment after ten seconds. Has value, list, map and reducing states and event timers."""

    states = (
        value_state("amount", {"amount": pa.float64()}),
        list_state("seen", {"at_us": pa.int64()}),
        map_state("parts", {"part": pa.string()}, {"n": pa.int64()}),
        reducing_state("paid", {"us": "min", "n": "sum"}),
    )

    def process(self, rows: Any, ctx: Any) -> None:
        """Set a timer for each order, and count the payments."""
        time_us = rows.event_time_us.to_numpy()
        ordered = np.flatnonzero(pc.is_valid(rows.batch["amount"]).to_numpy(zero_copy_only=False))
        paid = np.setdiff1d(np.arange(len(time_us)), ordered)
        ctx.event_timers.register(rows.keys, rows.owners[ordered], time_us[ordered] + 10_000_000)
        amount, is_order = np.zeros(rows.keys.size), np.zeros(rows.keys.size, bool)
        amount[rows.owners[ordered]] = rows.batch["amount"].fill_null(0).to_numpy()[ordered]
        is_order[rows.owners[ordered]] = True
        ctx.value("amount").put(rows.keys, pa.record_batch([pa.array(amount)], names=["amount"]), is_order)
        ctx.list("seen").append(rows.keys, rows.owners, pa.record_batch([pa.array(time_us)], names=["at_us"]))
        ctx.merging("paid").add(
            rows.keys,
            rows.owners[paid],
            pa.record_batch([time_us[paid], np.ones(len(paid), np.int64)], names=["us", "n"]),
        )
        parts = pa.record_batch([pa.array(np.where(time_us % 40_000 == 0, "even", "odd"))], names=["part"])
        before = ctx.map("parts").get(rows.keys, rows.owners, parts).columns["n"].fill_null(0).to_numpy()
        ctx.map("parts").put(rows.keys, rows.owners, parts, pa.record_batch([before + 1], names=["n"]))

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the due orders that have no payment."""
        paid = ctx.merging("paid").get(due.keys)
        amount = ctx.value("amount").get(due.keys).columns["amount"]
        open_ = np.flatnonzero(~paid.present[due.owners])
        of = pa.array(due.owners[open_])
        number = due.keys.columns()["order"].take(of)
        yield pa.record_batch(
            [number, pa.array(due.times_us[open_]).view(pa.timestamp("us")), amount.take(of)], schema=UNPAID
        )


class Ledger(StatefulProcessor):
    """PySpark's interface: totals of a shop in a value state, large orders in a list state, counts in a map state."""

    def init(self, handle: Any) -> None:
        """Declare the states."""
        self.total = handle.getValueState("total", "rows BIGINT, amount DOUBLE")
        self.large = handle.getListState("large", "`order` BIGINT, amount DOUBLE")
        self.hundreds = handle.getMapState("hundreds", "hundred INT", "rows BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Add the orders. Emit a row at every 50th order of a shop."""
        n, amount = self.total.get() or (0, 0.0)
        for row in rows:
            n, amount = n + 1, amount + row.amount
            hundred = int(row.amount // 100)
            before = self.hundreds.getValue((hundred,))
            self.hundreds.updateValue((hundred,), ((before[0] if before else 0) + 1,))
            if row.amount > 240:
                self.large.appendValue((row.order, row.amount))
            if n % 50 == 0:
                large = sorted(r[0] for r in self.large.get())[-3:]
                hundreds = ",".join(f"{k[0]}:{v[0]}" for k, v in sorted(self.hundreds.iterator()))
                yield Row(shop=key[0], rows=n, amount=amount, large=str(large), hundreds=hundreds)
        self.total.update((n, amount))


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline. Arguments: rows (orders, a multiple of 3), rate (orders a second), out (folder)."""
    out, n, rate = Path(str(args["out"])), int(args["rows"]), float(args["rate"])
    p = Pipeline()
    ordered = p.read(DataGen(orders, ORDERS, rows=n, rate=rate, splits=1), uid="orders").with_watermark("at", "5 s")
    paid = p.read(DataGen(payments, PAYMENTS, rows=n * 2 // 3, rate=rate * 2 / 3, splits=1), uid="payments")
    paid = paid.with_watermark("paid_at", "5 s")

    by_shop = ordered.group_by("shop")
    windows = by_shop.window(tumbling("10 s")).agg(
        n=count(), amount=sum("amount"), first=min("order"), dearest=max_by("order", by="amount"), uid="windows"
    )
    windows.write(Parquet(str(out / "windows")), uid="windows-out")
    slid = by_shop.window(sliding("20 s", "5 s")).agg(n=count(), uid="sliding")
    slid.write(Csv(str(out / "sliding")), uid="sliding-out")
    sessions = ordered.filter(pc.less(pc.field("amount"), 12)).group_by("shop").window(session("4 s"))
    sessions.agg(n=count(), amount=sum("amount"), uid="sessions").write(
        JsonLines(str(out / "sessions")), uid="sessions-out"
    )
    by_shop.agg(n=count(), amount=sum("amount"), output="final", uid="totals").write(
        Parquet(str(out / "totals")), uid="totals-out"
    )
    joined = ordered.join(paid, on="order", how="left", between=("0 s", "3 s"), uid="joined")
    joined.select("order", "shop", "amount", "paid").write(Parquet(str(out / "joined")), uid="joined-out")
    both = ordered.select("order", "amount", "at").union(
        paid.select(
            order=pc.field("order"),
            amount=pc.if_else(pc.less(pc.field("paid"), 0), pc.field("paid"), pa.scalar(None, pa.float64())),
            at=pc.field("paid_at"),
        )
    )
    both.group_by("order").process(Overdue(), schema=UNPAID, uid="overdue").write(
        Parquet(str(out / "overdue")), uid="overdue-out"
    )
    ledger = by_shop.transform_with_state(
        Ledger(),
        "shop STRING, rows BIGINT, amount DOUBLE, large STRING, hundreds STRING",
        outputMode="Append",
        timeMode="None",
        uid="ledger",
    )
    ledger.write(Parquet(str(out / "ledger")), uid="ledger-out")
    return p
