"""The same queries in Flink SQL, over Parquet files with the events; runs in an environment with apache-flink.

    python flink_sql.py measure FOLDER QUERIES JARS        # prints {query: [wall seconds, CPU seconds]}
    python flink_sql.py check FOLDER QUERIES JARS OUTPUT   # writes the final rows of each to OUTPUT/<query>.parquet

The statements are those of github.com/nexmark/nexmark, with the columns of `oracle.py`. A measured query discards its
rows. A checked one collects its changes, which add and remove rows.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyflink.common import Configuration, RowKind
from pyflink.table import EnvironmentSettings, TableEnvironment

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cpu_timeline import CpuTimeline

SETTLE_S = 0.25
"""Seconds after a query in which the meter takes its last samples."""
TABLE = """
CREATE TABLE events (
  event TINYINT, date_time TIMESTAMP(3), extra STRING,
  p_id BIGINT, p_name STRING, p_email STRING, p_card STRING, p_city STRING, p_state STRING,
  a_id BIGINT, a_item STRING, a_description STRING, a_initial_bid BIGINT, a_reserve BIGINT, a_expires TIMESTAMP(6),
  a_seller BIGINT, a_category BIGINT,
  b_auction BIGINT, b_bidder BIGINT, b_price BIGINT, b_channel STRING, b_url STRING,
  WATERMARK FOR date_time AS date_time - INTERVAL '0.200' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true')
"""
VIEWS = (
    "CREATE VIEW person AS SELECT p_id AS id, p_name AS name, p_email AS email, p_card AS card, p_city AS city, "
    "p_state AS state, date_time, extra FROM events WHERE event = 0",
    "CREATE VIEW auction AS SELECT a_id AS id, a_item AS item, a_description AS description, "
    "a_initial_bid AS initial_bid, a_reserve AS reserve, date_time, a_expires AS expires, a_seller AS seller, "
    "a_category AS category, extra FROM events WHERE event = 1",
    "CREATE VIEW bid AS SELECT b_auction AS auction, b_bidder AS bidder, b_price AS price, b_channel AS channel, "
    "b_url AS url, date_time, extra FROM events WHERE event = 2",
    "CREATE VIEW bid_now AS SELECT bidder, PROCTIME() AS seen FROM bid",
)
HOT = (
    "SELECT auction, count(*) AS n, window_start, window_end "
    "FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND)) "
    "GROUP BY auction, window_start, window_end"
)
TUMBLING = "TABLE(TUMBLE(TABLE {0}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
WINNING = "auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires"
QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    "q4": "SELECT category, AVG(final) AS price FROM (SELECT CAST(MAX(b.price) AS DOUBLE) AS final, a.category "
    f"FROM {WINNING} GROUP BY a.id, a.category) GROUP BY category",
    "q5": f"SELECT c.auction, c.n, c.window_start FROM ({HOT}) c JOIN (SELECT MAX(n) AS most, window_start, window_end "
    f"FROM ({HOT}) GROUP BY window_start, window_end) m "
    "ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.n >= m.most",
    "q7": "SELECT b.auction, b.price, b.bidder, b.date_time FROM bid b JOIN (SELECT MAX(price) AS highest, "
    f"window_start, window_end FROM {TUMBLING.format('bid')} GROUP BY window_start, window_end) m "
    "ON b.price = m.highest AND b.date_time >= m.window_start AND b.date_time < m.window_end",
    "q8": "SELECT p.id, p.name, p.window_start FROM (SELECT id, name, window_start, window_end FROM "
    f"{TUMBLING.format('person')} GROUP BY id, name, window_start, window_end) p JOIN "
    f"(SELECT seller, window_start, window_end FROM {TUMBLING.format('auction')} "
    "GROUP BY seller, window_start, window_end) a "
    "ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end",
    "q9": "SELECT id, item, seller, category, bidder, price, bid_time FROM (SELECT a.id, a.item, a.seller, a.category, "
    "b.bidder, b.price, b.date_time AS bid_time, ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, "
    f"b.date_time ASC) AS place FROM {WINNING}) WHERE place = 1",
    "q11": "SELECT bidder, count(*) AS n, window_start, window_end FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, "
    "DESCRIPTOR(date_time), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end",
    "q12": "SELECT bidder, count(*) AS n, window_start, window_end FROM TABLE(TUMBLE(TABLE bid_now, DESCRIPTOR(seen), "
    "INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end",
    "q17": "SELECT auction, CAST(DATE_FORMAT(date_time, 'yyyy-MM-dd') AS TIMESTAMP(3)) AS `day`, "
    "count(*) AS total_bids, count(*) FILTER (WHERE price < 10000) AS rank1_bids, "
    "count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids, "
    "count(*) FILTER (WHERE price >= 1000000) AS rank3_bids, MIN(price) AS min_price, MAX(price) AS max_price, "
    "AVG(CAST(price AS DOUBLE)) AS avg_price, SUM(price) AS sum_price FROM bid "
    "GROUP BY auction, DATE_FORMAT(date_time, 'yyyy-MM-dd')",
    "q18": "SELECT auction, bidder, price, channel, url, date_time, extra FROM (SELECT *, ROW_NUMBER() OVER "
    "(PARTITION BY bidder, auction ORDER BY date_time DESC) AS place FROM bid) WHERE place <= 1",
    "q20": "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_time, a.item, a.initial_bid, "
    "a.reserve, a.expires, a.seller, a.category FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10",
}

REPLACED = ("q9",)
"""Queries whose changes replace the row with the same first column, without removing it first."""


def environment(folder: str, jars: str, work: Path) -> TableEnvironment:
    """Return an environment with the events and the views."""
    configuration = Configuration()
    urls = ";".join(Path(jar).as_uri() for jar in jars.split(":"))
    for name, value in {
        "pipeline.jars": urls,
        "pipeline.object-reuse": "true",
        "parallelism.default": "2",
        "table.local-time-zone": "UTC",
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": (work / "checkpoints").as_uri(),
        "taskmanager.memory.managed.size": "1g",
        "taskmanager.numberOfTaskSlots": "2",
        "restart-strategy.type": "none",
    }.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration)
    tables = TableEnvironment.create(settings.build())
    for statement in (TABLE.format(folder=folder), *VIEWS):
        tables.execute_sql(statement)
    return tables


def discard(tables: TableEnvironment, query: str) -> None:
    """Run a query and discard its rows."""
    result = tables.sql_query(QUERIES[query])
    columns = ", ".join(
        f"`{name}` {kind}" for name, kind in zip(result.get_schema().get_field_names(), _types(result), strict=True)
    )
    sink = f"sink_{query}"
    tables.execute_sql(f"CREATE TEMPORARY TABLE IF NOT EXISTS {sink} ({columns}) WITH ('connector' = 'blackhole')")
    result.execute_insert(sink).wait()


def _types(result: Any) -> list[str]:
    found = [str(kind) for kind in result._j_table.getResolvedSchema().getColumnDataTypes()]
    return [kind.replace(" NOT NULL", "").replace("*ROWTIME*", "").replace("*PROCTIME*", "").strip() for kind in found]


def final_rows(tables: TableEnvironment, query: str) -> pa.Table:
    """Run a query and return the rows that are left after all changes."""
    result = tables.execute_sql(QUERIES[query])
    names = result.get_table_schema().get_field_names()
    rows: Counter[tuple[Any, ...]] = Counter()
    newest: dict[Any, tuple[Any, ...]] = {}
    with result.collect() as changes:
        for row in changes:
            values, added = tuple(row), row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER)
            rows[values] += 1 if added else -1
            newest[values[0]] = values
    left = list(newest.values()) if query in REPLACED else [row for row, n in rows.items() for _ in range(n)]
    return pa.table({name: [row[i] for row in left] for i, name in enumerate(names)})


def measure(tables: TableEnvironment, queries: list[str]) -> dict[str, tuple[float, float]]:
    """Return wall and CPU seconds of each query, after one that is not measured."""
    found = {}
    with CpuTimeline(os.getpid()) as timeline:
        discard(tables, "q0")
        for query in queries:
            time.sleep(SETTLE_S)
            begin = time.time()
            discard(tables, query)
            end = time.time()
            time.sleep(SETTLE_S)
            found[query] = (end - begin, timeline.between(begin, end))
    return found


def main() -> None:
    """See the module."""
    mode, folder, names, jars, *output = sys.argv[1:]
    work = Path(tempfile.mkdtemp(prefix="nexmark-flink-"))
    try:
        tables = environment(folder, jars, work)
        if mode == "measure":
            print(json.dumps(measure(tables, names.split(","))), flush=True)
        else:
            for query in names.split(","):
                pq.write_table(final_rows(tables, query), Path(output[0], f"{query}.parquet"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
