"""The same queries in SQL, for DuckDB over the same events: the expected results."""

from __future__ import annotations

import duckdb
import pyarrow as pa

VIEWS = """
CREATE VIEW person AS SELECT p_id AS id, p_name AS name, p_email AS email, p_card AS card, p_city AS city,
  p_state AS state, date_time, extra FROM events WHERE event = 0;
CREATE VIEW auction AS SELECT a_id AS id, a_item AS item, a_description AS description, a_initial_bid AS initial_bid,
  a_reserve AS reserve, date_time, a_expires AS expires, a_seller AS seller, a_category AS category, extra
  FROM events WHERE event = 1;
CREATE VIEW bid AS SELECT b_auction AS auction, b_bidder AS bidder, b_price AS price, b_channel AS channel,
  b_url AS url, date_time, extra FROM events WHERE event = 2;
"""

QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908::DOUBLE * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """
        SELECT category, avg(final) AS price FROM (
          SELECT max(b.price) AS final, a.category FROM auction a JOIN bid b
            ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
          GROUP BY a.id, a.category)
        GROUP BY category""",
    "q5": """
        WITH counted AS (
          SELECT auction, first + k * INTERVAL 2 SECONDS AS window_start, count(*) AS n FROM (
            SELECT auction, time_bucket(INTERVAL 2 SECONDS, date_time) - INTERVAL 8 SECONDS AS first FROM bid),
            range(5) AS steps(k)
          GROUP BY auction, window_start)
        SELECT auction, n, window_start FROM counted
        QUALIFY n = max(n) OVER (PARTITION BY window_start)""",
    "q7": """
        SELECT auction, price, bidder, date_time FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECONDS, date_time))""",
    "q8": """
        SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL 10 SECONDS, p.date_time) AS window_start
        FROM person p JOIN auction a ON p.id = a.seller
          AND time_bucket(INTERVAL 10 SECONDS, p.date_time) = time_bucket(INTERVAL 10 SECONDS, a.date_time)""",
    "q9": """
        SELECT a.id, a.item, a.seller, a.category, b.bidder, b.price, b.date_time AS bid_time
        FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
        QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time) = 1""",
    "q11": """
        SELECT bidder, count(*) AS n, min(date_time) AS window_start, max(date_time) + INTERVAL 10 SECONDS AS window_end
        FROM (SELECT bidder, date_time, sum(begins) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM (
          SELECT bidder, date_time, CASE WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
            <= INTERVAL 10 SECONDS THEN 0 ELSE 1 END AS begins FROM bid))
        GROUP BY bidder, session""",
    "q17": """
        SELECT auction, time_bucket(INTERVAL 1 DAY, date_time) AS day, count(*) AS total_bids,
          count(*) FILTER (price < 10000) AS rank1_bids,
          count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
          count(*) FILTER (price >= 1000000) AS rank3_bids, min(price) AS min_price, max(price) AS max_price,
          avg(price) AS avg_price, sum(price)::BIGINT AS sum_price
        FROM bid GROUP BY auction, day""",
    "q18": """
        SELECT auction, bidder, price, channel, url, date_time, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) = 1""",
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_time, a.item, a.initial_bid,
          a.reserve, a.expires, a.seller, a.category
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
}
"""Without q12, which is over processing time: another run gives other results (S8.2)."""


def answers(events: pa.Table, query: str) -> pa.Table:
    """Return the result of a query."""
    with duckdb.connect() as connection:
        connection.register("events", events)
        connection.execute(VIEWS)
        return connection.sql(QUERIES[query]).to_arrow_table()
