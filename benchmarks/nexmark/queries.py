"""Nexmark's queries in the public API.

`build` makes one as a job: arguments `query`, `events`, and `out`, a folder for Parquet files; without it results are
discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow.compute as pc

from tidegate import Discard, Parquet, Pipeline, Stream, count, tumbling
from tidegate.connectors.contract import Sink

from .events import AUCTION, BID, PERSON, Nexmark

f = pc.field


def persons(events: Stream) -> Stream:
    """id, name, email, card, city, state, date_time, extra."""
    columns = {name: f(f"p_{name}") for name in ("id", "name", "email", "card", "city", "state")}
    return events.filter(f("event") == PERSON).select(**columns, date_time=f("date_time"), extra=f("extra"))


def auctions(events: Stream) -> Stream:
    """id, item, description, initial_bid, reserve, expires, seller, category, date_time, extra."""
    names = ("id", "item", "description", "initial_bid", "reserve", "expires", "seller", "category")
    columns = {name: f(f"a_{name}") for name in names}
    return events.filter(f("event") == AUCTION).select(**columns, date_time=f("date_time"), extra=f("extra"))


def bids(events: Stream) -> Stream:
    """auction, bidder, price, channel, url, date_time, extra."""
    columns = {name: f(f"b_{name}") for name in ("auction", "bidder", "price", "channel", "url")}
    return events.filter(f("event") == BID).select(**columns, date_time=f("date_time"), extra=f("extra"))


def q0(events: Stream) -> Stream:
    """Pass through: what reading and writing cost."""
    return bids(events).select("auction", "bidder", "price", "date_time", "extra")


def q1(events: Stream) -> Stream:
    """Prices in another currency."""
    return bids(events).select("auction", "bidder", "date_time", "extra", price=f("price").cast("double") * 0.908)


def q2(events: Stream) -> Stream:
    """Bids on some auctions."""
    number = f("auction")
    some = pc.equal(pc.subtract(number, pc.multiply(pc.divide(number, 123), 123)), 0)
    return bids(events).filter(some).select("auction", "price")


def q12(events: Stream) -> Stream:
    """Bids of each bidder in 10 seconds of the clock: another run gives other results."""
    windows = bids(events).group_by("bidder").window(tumbling("10 s", time="processing"))
    return windows.agg(n=count(), uid="bids-per-bidder")


QUERIES: Mapping[str, Callable[[Stream], Stream]] = {"q0": q0, "q1": q1, "q2": q2, "q12": q12}


def pipeline(query: str, source: Nexmark, sink: Sink) -> Pipeline:
    """A query from the source to the sink."""
    p = Pipeline()
    delay = f"{source.shape.delay_us} us"
    QUERIES[query](p.read(source, uid="events").with_watermark("date_time", delay)).write(sink, uid="out")
    return p


def build(arguments: Mapping[str, Any]) -> Pipeline:
    """See the module."""
    sink = Parquet(arguments["out"]) if arguments.get("out") else Discard()
    return pipeline(arguments["query"], Nexmark(int(arguments["events"])), sink)
