"""Nexmark's events, each computed from its number only: the same number always gives the same event.

Of 50 consecutive events, the first is a person, three are auctions and 46 are bids. Event n happens at `START_US` + n x
`us_per_event`. Within a group of `shuffled` events the times are permuted, so events are out of order by less than a
group. Ids, skew and fields follow the generators of Apache Beam and of Flink's github.com/nexmark/nexmark. All numbers
are integers, so that they are equal on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split

PERSON, AUCTION, BID = 0, 1, 2
"""Values of the column `event`."""
GROUP, PERSONS, AUCTIONS = 50, 1, 3
"""Events of a group: the first are persons, then auctions, the rest bids."""
START_US = 1_767_225_600_000_000
"""2026-01-01 00:00 UTC."""
FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY, CATEGORIES = 1_000, 1_000, 10, 5
ACTIVE_PERSONS, AUCTIONS_IN_FLIGHT = 1_000, 100
"""Number of newest persons and auctions that are active."""
HOT_SELLERS, HOT_BIDDERS, HOT_AUCTIONS = 4, 4, 2
"""One of this many events does *not* belong to the hot person or auction."""
PERSON_STRIDE, AUCTION_STRIDE = 100, 100
"""The hot one is the last whose number is divisible by this."""
BATCH_GROUPS = 1_024
"""Groups of events in one batch: 51,200 events."""
SHUFFLE_STEP = 7_919
"""A prime that does not divide the group size, so that every time of a group is used once."""

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000

_TEXT, _INT = pa.string(), pa.int64()
_TIME = pa.timestamp("us")
SCHEMA = pa.schema(
    [
        pa.field("event", pa.int8(), nullable=False),
        pa.field("date_time", _TIME, nullable=False),
        pa.field("extra", _TEXT, nullable=False),
        *[
            ("p_id", _INT),
            ("p_name", _TEXT),
            ("p_email", _TEXT),
            ("p_card", _TEXT),
            ("p_city", _TEXT),
            ("p_state", _TEXT),
        ],
        *[("a_id", _INT), ("a_item", _TEXT), ("a_description", _TEXT), ("a_initial_bid", _INT), ("a_reserve", _INT)],
        *[("a_expires", _TIME), ("a_seller", _INT), ("a_category", _INT)],
        *[("b_auction", _INT), ("b_bidder", _INT), ("b_price", _INT), ("b_channel", _TEXT), ("b_url", _TEXT)],
    ]
)
"""Columns of persons, auctions and bids start with p_, a_ and b_, and are null in other events."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """Properties of all events of one run.

    Attributes:
        us_per_event: microseconds from one event to the next.
        shuffled: number of events that are out of order among themselves; a multiple of GROUP.
    """

    us_per_event: int = 1_000
    shuffled: int = 200

    def __post_init__(self) -> None:
        if self.shuffled < GROUP or self.shuffled % GROUP or self.shuffled % SHUFFLE_STEP == 0:
            raise ValueError(f"shuffled={self.shuffled} must be a multiple of {GROUP}, and not of {SHUFFLE_STEP}")

    @property
    def delay_us(self) -> int:
        """Return the longest time by which an event is out of order."""
        return self.shuffled * self.us_per_event

    @property
    def longest_auction_us(self) -> int:
        """Return the longest duration of an auction."""
        return 2 * AUCTIONS_IN_FLIGHT * GROUP // AUCTIONS * self.us_per_event


def table(events: int, shape: Shape) -> pa.Table:
    """Return the events 0 <= n < `events`."""
    return pa.Table.from_batches([batch(np.arange(events, dtype=np.int64), shape)])


def batch(numbers: Numbers, shape: Shape) -> pa.RecordBatch:
    """Return the events of these numbers, in their order."""
    group, place = np.divmod(numbers, GROUP)
    event = np.where(place < PERSONS, PERSON, np.where(place < PERSONS + AUCTIONS, AUCTION, BID)).astype(np.int8)
    time_us = _times_us(numbers, shape)
    columns: dict[str, Any] = {
        "event": event,
        "date_time": pa.array(time_us).cast(_TIME),
        "extra": _EXTRAS.take(pa.array(_below(numbers, 1, len(_EXTRAS)))),
    }
    for kind, made in (
        (PERSON, _persons(numbers[event == PERSON], group[event == PERSON])),
        (AUCTION, _auctions(numbers[event == AUCTION], group[event == AUCTION], time_us[event == AUCTION], shape)),
        (BID, _bids(numbers[event == BID], group[event == BID])),
    ):
        mine = event == kind
        places = pa.array(np.cumsum(mine) - 1, mask=~mine)
        columns |= {name: pa.array(values).take(places) for name, values in made.items()}
    arrays = [pa.array(columns[f.name]).cast(f.type) for f in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _times_us(numbers: Numbers, shape: Shape) -> Numbers:
    base, place = np.divmod(numbers, shape.shuffled)
    dealt = (place * SHUFFLE_STEP + base) % shape.shuffled
    return START_US + (base * shape.shuffled + dealt) * shape.us_per_event


def _random(numbers: Numbers, salt: int) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for each number and salt (splitmix64)."""
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt * 0x2545F4914F6CDD1D % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _below(numbers: Numbers, salt: int, limit: int | Numbers) -> Numbers:
    """Return a number 0 <= x < limit for each."""
    return (_random(numbers, salt) % np.asarray(limit).astype(np.uint64)).astype(np.int64)


def _price(numbers: Numbers, salt: int) -> Numbers:
    """Return a price in cents: three digits followed by 0 to 5 zeros, all equally likely."""
    return (100 + _below(numbers, salt, 900)) * np.int64(10) ** _below(numbers, salt + 1, 6)


def _active(numbers: Numbers, salt: int, newest: Numbers, active: int) -> Numbers:
    """Return one of the `active` numbers up to `newest`, from 0 on."""
    oldest = np.maximum(newest - active + 1, 0)
    return oldest + _below(numbers, salt, newest - oldest + 1)


def _persons(numbers: Numbers, group: Numbers) -> dict[str, Any]:
    first, last = _below(numbers, 10, len(FIRST_NAMES)), _below(numbers, 11, len(LAST_NAMES))
    names = _joined(" ", pa.array(FIRST_NAMES).take(first), pa.array(LAST_NAMES).take(last))
    mail = _joined("", names_of(LAST_NAMES, last), _text(_below(numbers, 12, 10_000)), "@example.com")
    card = [_text(1_000 + _below(numbers, 13 + k, 9_000)) for k in range(4)]
    return {
        "p_id": FIRST_PERSON + group,
        "p_name": names,
        "p_email": mail,
        "p_card": _joined(" ", *card),
        "p_city": names_of(CITIES, _below(numbers, 17, len(CITIES))),
        "p_state": names_of(STATES, _below(numbers, 18, len(STATES))),
    }


def _auctions(numbers: Numbers, group: Numbers, time_us: Numbers, shape: Shape) -> dict[str, Any]:
    own = group * AUCTIONS + numbers % GROUP - PERSONS
    hot = _below(numbers, 20, HOT_SELLERS) > 0
    seller = np.where(hot, group // PERSON_STRIDE * PERSON_STRIDE, _active(numbers, 21, group, ACTIVE_PERSONS))
    initial = _price(numbers, 22)
    item = _below(numbers, 24, 1_000)
    return {
        "a_id": FIRST_AUCTION + own,
        "a_item": _joined("", "item-", _text(item)),
        "a_description": _joined("", "Item ", _text(item), ", as good as new"),
        "a_initial_bid": initial,
        "a_reserve": initial + _price(numbers, 25),
        "a_expires": pa.array(time_us + 1 + _below(numbers, 27, shape.longest_auction_us)).cast(_TIME),
        "a_seller": FIRST_PERSON + seller,
        "a_category": FIRST_CATEGORY + _below(numbers, 28, CATEGORIES),
    }


def _bids(numbers: Numbers, group: Numbers) -> dict[str, Any]:
    newest = group * AUCTIONS + AUCTIONS - 1
    hot = _below(numbers, 30, HOT_AUCTIONS) > 0
    auction = np.where(hot, newest // AUCTION_STRIDE * AUCTION_STRIDE, _active(numbers, 31, newest, AUCTIONS_IN_FLIGHT))
    hot_bidder = _below(numbers, 32, HOT_BIDDERS) > 0
    bidder = np.where(
        hot_bidder, group // PERSON_STRIDE * PERSON_STRIDE + 1, _active(numbers, 33, group, ACTIVE_PERSONS)
    )
    known = _below(numbers, 36, 2) > 0
    channel = np.where(known, _below(numbers, 37, len(HOT_CHANNELS)), len(HOT_CHANNELS) + _below(numbers, 38, CHANNELS))
    places = pa.array(channel)
    return {
        "b_auction": FIRST_AUCTION + auction,
        "b_bidder": FIRST_PERSON + bidder,
        "b_price": _price(numbers, 34),
        "b_channel": _CHANNELS.take(places),
        "b_url": _URLS.take(places),
    }


def names_of(names: Sequence[str], places: Numbers) -> pa.Array:
    """Return the name at each position."""
    return pa.array(names).take(pa.array(places))


def _text(numbers: Numbers) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _joined(between: str, *parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, between)


_CHANNELS = pa.array([*HOT_CHANNELS, *(f"channel-{k}" for k in range(CHANNELS))])
_SITE = "https://www.nexmark.example"
_URLS = pa.array([f"{_SITE}/{name.lower()}/item.htm?channel_id={k}" for k, name in enumerate(_CHANNELS.to_pylist())])
_EXTRAS = pa.array([f"{int(_random(np.array([k]), 99)[0]):016x}" * (2 + k % 4) for k in range(256)])
"""Texts of 32 to 80 characters."""


@dataclass(frozen=True)
class Nexmark(Source):
    """Nexmark's events 0 <= n < `events`, in the order of their numbers.

    Split s of S has the groups of 50 events s, s + S, s + 2 S, ...; its position is the number of groups that it has

    Attributes:
        events: a multiple of 50.
        splits: number of splits; None: the source's parallelism at the first start.
    """

    events: int
    shape: Shape = Shape()
    splits: int | None = None
    batch_groups: int = BATCH_GROUPS

    def __post_init__(self) -> None:
        if self.events % GROUP:
            raise ValueError(f"events={self.events} must be a multiple of {GROUP}")

    @property
    def boundedness(self) -> Boundedness:
        """Return "bounded"."""
        return "bounded"

    def schema(self) -> pa.Schema:
        """Return all columns of all kinds of events."""
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return the splits, by stride."""
        count = self.splits or parallelism
        return [Split(f"nexmark-{s:05d}-of-{count:05d}", {"index": s, "of": count}) for s in range(count)]

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader that reads its splits in turn."""
        return _Reader(self)

    def describe(self) -> str:
        """Return the number of events."""
        return f"Nexmark({self.events} events)"


class _Reader(SourceReader):
    """Computes the events of its splits; the split with the lowest position is next."""

    def __init__(self, source: Nexmark) -> None:
        self._source = source
        self._splits: list[Split] = []

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Add splits at their positions."""
        self._splits = list(splits)

    def _groups(self, split: Split) -> int:
        groups = self._source.events // GROUP
        return max(0, -(-(groups - split.data["index"]) // split.data["of"]))

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch."""
        left = [s for s in self._splits if (s.position or 0) < self._groups(s)]
        if not left:
            return PollResult(state="end")
        split = min(left, key=lambda s: s.position or 0)
        done = split.position or 0
        end = min(done + self._source.batch_groups, self._groups(split))
        groups = split.data["index"] + np.arange(done, end, dtype=np.int64) * split.data["of"]
        numbers = (groups[:, None] * GROUP + np.arange(GROUP, dtype=np.int64)[None, :]).ravel()
        self._splits[self._splits.index(split)] = replace(split, position=end)
        return PollResult(batch(numbers, self._source.shape), split.split_id)

    def snapshot(self) -> Sequence[Split]:
        """Return all splits with the number of groups that they have emitted."""
        return [replace(s, finished=(s.position or 0) == self._groups(s)) for s in self._splits]
