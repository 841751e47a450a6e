"""Nexmark's queries in the public API.

`build` creates one as a job. Arguments: `query`; `events` (their number), or `files` (a folder with them, written with
the default shape); and `out`, a folder for Parquet files, without which results are discarded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pyarrow.compute as pc

import tidegate
from tidegate import Discard, Files, Parquet, Pipeline, Stream, count, mean, session, sliding, tumbling
from tidegate.connectors.interface import Sink, Source

from .events import AUCTION, BID, PERSON, Nexmark, Shape
from .winning import WINNERS, WinningBid

f = pc.field
SHAPE = Shape()
"""The default."""


def persons(events: Stream) -> Stream:
    """Select persons: id, name, email, card, city, state, date_time, extra."""
    columns = {name: f(f"p_{name}") for name in ("id", "name", "email", "card", "city", "state")}
    return events.filter(f("event") == PERSON).select(**columns, date_time=f("date_time"), extra=f("extra"))


def auctions(events: Stream) -> Stream:
    """Select auctions: id, item, description, initial_bid, reserve, expires, seller, category, date_time, extra."""
    names = ("id", "item", "description", "initial_bid", "reserve", "expires", "seller", "category")
    columns = {name: f(f"a_{name}") for name in names}
    return events.filter(f("event") == AUCTION).select(**columns, date_time=f("date_time"), extra=f("extra"))


def bids(events: Stream) -> Stream:
    """Select bids: auction, bidder, price, channel, url, date_time, extra."""
    columns = {name: f(f"b_{name}") for name in ("auction", "bidder", "price", "channel", "url")}
    return events.filter(f("event") == BID).select(**columns, date_time=f("date_time"), extra=f("extra"))


def q0(events: Stream) -> Stream:
    """Pass events through: the cost of reading and writing."""
    return bids(events).select("auction", "bidder", "price", "date_time", "extra")


def q1(events: Stream) -> Stream:
    """Convert prices to another currency."""
    return bids(events).select("auction", "bidder", "date_time", "extra", price=f("price").cast("double") * 0.908)


def q2(events: Stream) -> Stream:
    """Select bids on some auctions."""
    number = f("auction")
    some = pc.equal(pc.subtract(number, pc.multiply(pc.divide(number, 123), 123)), 0)
    return bids(events).filter(some).select("auction", "price")


def q3(events: Stream) -> Stream:
    """Find sellers in category 10, in three states: a join that stores both sides."""
    sellers = (
        persons(events).filter(f("state").isin(["OR", "ID", "CA"])).select("name", "city", "state", person=f("id"))
    )
    items = auctions(events).filter(f("category") == 10).select("id", "seller")
    joined = items.join(sellers, left_on="seller", right_on="person", uid="sellers-of-items")
    return joined.select("name", "city", "state", "id")


def winning_bids(events: Stream, shape: Shape) -> Stream:
    """Find the winning bid of each auction that had a bid while it was open, when it closes: see `WINNERS`."""
    opened = auctions(events).select("id", "item", "seller", "category", "expires", opened=f("date_time"))
    in_time = bids(events).join(
        opened,
        left_on="auction",
        right_on="id",
        between=(timedelta(microseconds=-shape.longest_auction_us), timedelta(0)),
        where=f("date_time") <= f("expires"),
        uid="bids-in-time",
    )
    of_auction = in_time.group_by("id", "item", "seller", "category", "expires")
    return of_auction.process(WinningBid(), schema=WINNERS, uid="winning-bid")


def q4(events: Stream, shape: Shape) -> Stream:
    """Compute the mean price of winning bids by category and day."""
    by_category = winning_bids(events, shape).group_by("category").window(tumbling("1 day"))
    return by_category.agg(price=mean("price"), uid="price-of-category").select("category", "price")


def q5(events: Stream) -> Stream:
    """Find the auctions with the most bids in each 10 seconds, every 2 seconds."""
    windows = bids(events).group_by("auction").window(sliding("10 s", "2 s"))
    counted = windows.agg(n=count(), uid="bids-of-auction").select("auction", "n", start=f("window_start"))
    timed = counted.with_watermark("start", "0 s")
    most = timed.select("n", "start", all=pc.scalar(0)).group_by("all").window(tumbling("2 s"))
    top = most.agg(most=tidegate.max("n"), uid="most-bids").select("most", at=f("window_start"))
    top = top.with_watermark("at", "0 s")
    hot = timed.join(top, left_on="n", right_on="most", how="semi", window=tumbling("2 s"), uid="hot-auctions")
    return hot.select("auction", "n", "window_start")


def q7(events: Stream) -> Stream:
    """Find the highest bids in each 10 seconds."""
    bid = bids(events)
    windows = bid.select("price", "date_time", all=pc.scalar(0)).group_by("all").window(tumbling("10 s"))
    highest = windows.agg(highest=tidegate.max("price"), uid="highest-price").select("highest", at=f("window_start"))
    highest = highest.with_watermark("at", "0 s")
    found = bid.join(
        highest, left_on="price", right_on="highest", how="semi", window=tumbling("10 s"), uid="highest-bids"
    )
    return found.select("auction", "price", "bidder", "date_time")


def q8(events: Stream) -> Stream:
    """Find new persons who opened an auction within the same 10 seconds."""
    sellers = auctions(events).select("seller", opened=f("date_time"))
    new = persons(events).join(
        sellers, left_on="id", right_on="seller", how="semi", window=tumbling("10 s"), uid="new-sellers"
    )
    return new.select("id", "name", "window_start")


def q9(events: Stream, shape: Shape) -> Stream:
    """Find the winning bid of each auction."""
    names = ("id", "item", "seller", "category", "bidder", "price", "bid_time")
    return winning_bids(events, shape).select(*names)


def q11(events: Stream) -> Stream:
    """Count bids of each bidder in one session."""
    return bids(events).group_by("bidder").window(session("10 s")).agg(n=count(), uid="sessions")


def q12(events: Stream) -> Stream:
    """Count bids of each bidder in 10 seconds of processing time: another run gives other results."""
    windows = bids(events).group_by("bidder").window(tumbling("10 s", time="processing"))
    return windows.agg(n=count(), uid="bids-per-bidder")


def q17(events: Stream) -> Stream:
    """Compute statistics of each auction and day."""
    price = f("price")
    ranked = bids(events).select(
        "auction",
        "price",
        "date_time",
        rank1=(price < 10_000).cast("int64"),
        rank2=((price >= 10_000) & (price < 1_000_000)).cast("int64"),
        rank3=(price >= 1_000_000).cast("int64"),
    )
    windows = ranked.group_by("auction").window(tumbling("1 day"))
    day = windows.agg(
        total_bids=count(),
        rank1_bids=tidegate.sum("rank1"),
        rank2_bids=tidegate.sum("rank2"),
        rank3_bids=tidegate.sum("rank3"),
        min_price=tidegate.min("price"),
        max_price=tidegate.max("price"),
        avg_price=mean("price"),
        sum_price=tidegate.sum("price"),
        uid="statistics",
    )
    return day.select(*(n for n in day.schema.names if not n.startswith("window_")), day=f("window_start"))


def q18(events: Stream) -> Stream:
    """Find the last bid of each bidder on each auction, if there was no other for a day."""
    names = ("auction", "bidder", "price", "channel", "url", "date_time", "extra")
    found = bids(events).deduplicate(("bidder", "auction"), keep="last", within="1 day", uid="last-bid")
    return found.select(*names)


def q20(events: Stream) -> Stream:
    """Join bids with their auctions of category 10: a join that stores both sides."""
    names = ("item", "initial_bid", "reserve", "expires", "seller", "category")
    items = auctions(events).filter(f("category") == 10).select("id", *names)
    bid = bids(events).select("auction", "bidder", "price", "channel", "url", bid_time=f("date_time"))
    joined = bid.join(items, left_on="auction", right_on="id", uid="bids-with-items")
    return joined.select(*bid.schema.names, *names)


QUERIES: Mapping[str, Callable[..., Stream]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q12, q17, q18, q20)
}
"""Some queries also need the shape of the events, for the longest auction."""


def pipeline(query: str, source: Source, sink: Sink, shape: Shape = SHAPE) -> Pipeline:
    """Build a query from the source to the sink."""
    p = Pipeline()
    delay = f"{shape.delay_us} us"
    events = p.read(source, uid="events").with_watermark("date_time", delay)
    made = QUERIES[query]
    more = (shape,) if "shape" in inspect.signature(made).parameters else ()
    made(events, *more).write(sink, uid="out")
    return p


def build(arguments: Mapping[str, Any]) -> Pipeline:
    """See the module."""
    sink = Parquet(arguments["out"]) if arguments.get("out") else Discard()
    files = arguments.get("files")
    source = Files(files) if files else Nexmark(int(arguments["events"]))
    return pipeline(arguments["query"], source, sink)
