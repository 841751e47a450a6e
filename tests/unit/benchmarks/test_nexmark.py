"""Nexmark: events made from their numbers, and each query, crashed on its way, beside the same query in SQL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from nexmark import check, oracle, queries
from nexmark.events import AUCTION, BID, GROUP, PERSON, SCHEMA, START_US, Nexmark, Shape, batch, table

from tidegate.testing.source_conformance import SourceConformance

EVENTS = 20_000
SHAPE = Shape(us_per_event=2_000)
"""40 seconds of event time: four windows of ten."""


def test_an_event_is_the_same_however_the_numbers_are_cut() -> None:
    whole = batch(np.arange(5_000, dtype=np.int64), SHAPE)
    parts = [batch(numbers, SHAPE) for numbers in np.array_split(np.arange(5_000, dtype=np.int64), 7)]
    assert whole.schema.equals(SCHEMA)
    assert pa.Table.from_batches(parts).combine_chunks().equals(pa.Table.from_batches([whole]))
    backwards = batch(np.arange(4_999, -1, -1, dtype=np.int64), SHAPE)
    assert backwards.take(pa.array(np.arange(4_999, -1, -1))).equals(whole)


def test_of_fifty_events_one_is_a_person_and_three_are_auctions() -> None:
    counts = np.bincount(table(EVENTS, SHAPE)["event"].to_numpy())
    groups = EVENTS // GROUP
    assert (counts[PERSON], counts[AUCTION], counts[BID]) == (groups, 3 * groups, 46 * groups)


def test_events_come_out_of_order_but_never_by_more_than_said() -> None:
    times_us = table(EVENTS, SHAPE)["date_time"].cast(pa.int64()).to_numpy()
    behind_us = np.maximum.accumulate(times_us) - times_us
    assert 0 < behind_us.max() <= SHAPE.delay_us
    assert np.array_equal(np.sort(times_us), START_US + np.arange(EVENTS) * SHAPE.us_per_event)


def test_bids_are_on_auctions_that_have_been_opened_by_persons_who_are_there() -> None:
    events = table(EVENTS, SHAPE)
    ids = {name: events[name].drop_null().to_numpy() for name in ("p_id", "a_id", "b_auction", "b_bidder", "a_seller")}
    assert np.isin(ids["b_auction"], ids["a_id"]).all() and np.isin(ids["a_seller"], ids["p_id"]).all()
    assert np.isin(ids["b_bidder"], ids["p_id"]).mean() > 0.99
    hottest = np.bincount(ids["b_auction"]).max()
    assert hottest > 20 * len(ids["b_auction"]) / len(ids["a_id"]), "some auctions are hot"


@pytest.mark.parametrize("name", [name for name in queries.QUERIES if name in oracle.QUERIES])
def test_a_query_gives_what_the_same_query_in_sql_gives(name: str) -> None:
    wanted = oracle.answers(table(EVENTS, SHAPE), name)
    assert wanted.num_rows > 0
    assert check.difference(check.result(name, EVENTS, SHAPE), wanted) == ""


def test_a_difference_is_noticed() -> None:
    wanted = pa.table({"a": [1, 2, 2], "x": [0.5, 1.0, 1.0]})
    assert check.difference(wanted.take([2, 0, 1]), wanted) == ""
    assert check.difference(wanted.slice(1), wanted) == "2 rows, wanted 3"
    assert check.difference(pa.table({"a": [1, 1, 2], "x": [0.5, 1.0, 1.0]}), wanted) == "column 'a' differs"
    assert check.difference(pa.table({"a": [1, 2, 2], "x": [0.5, 1.0, 1.001]}), wanted) == "column 'x' differs"
    assert "wanted ['a', 'x']" in check.difference(pa.table({"a": [1]}), wanted)


def test_numbers_that_do_not_fit_are_refused() -> None:
    for wrong in (lambda: Nexmark(51), lambda: Shape(shuffled=70)):
        with pytest.raises(ValueError, match="must be a multiple of 50"):
            wrong()
    with pytest.raises(KeyError):
        queries.pipeline("q99", Nexmark(50), check.CollectSink("never"))


class TestNexmarkConforms(SourceConformance):
    """S4.2, S4.3."""

    def make_source(self) -> Nexmark:
        return Nexmark(500, SHAPE, batch_groups=3)
