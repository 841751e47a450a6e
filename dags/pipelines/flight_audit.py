"""Checks whether the output of `flight_delays` is complete: DuckDB calculates the same tables from the source files.

The two tables are compared as multisets of rows, with floats rounded to nine decimals. The numbers of flights in each
window are also compared, to distinguish lost flights from duplicated ones.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import duckdb

EXPECTED_DAILY = """
    SELECT a.name, time_bucket(INTERVAL 1 DAY, f.time_hour) AS window_start,
           window_start + INTERVAL 1 DAY AS window_end, count(*) AS flights, avg(f.dep_delay) AS delay
    FROM flights f JOIN airlines a USING (carrier)
    WHERE f.dep_delay IS NOT NULL GROUP BY ALL
"""
EXPECTED_HOURLY = """
    SELECT f.origin, time_bucket(INTERVAL 1 HOUR, f.time_hour) AS window_start,
           window_start + INTERVAL 1 HOUR AS window_end, count(*) AS flights, avg(f.dep_delay) AS delay,
           max(w.wind_speed) AS wind
    FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
    WHERE f.dep_delay IS NOT NULL GROUP BY ALL
"""


@dataclass(frozen=True)
class TableAudit:
    """Comparison of one output table with the table that DuckDB calculates.

    All numbers except the last two count flights; the last two count rows.

    Attributes:
        expected: flights that must have reached the windows.
        committed: flights in committed output.
        lost: flights missing from a window.
        duplicated: flights too many in a window.
        rows_missing: rows of DuckDB's table that are not in the output, as multisets.
        rows_extra: rows of the output that are not in DuckDB's table.
    """

    expected: int
    committed: int
    lost: int
    duplicated: int
    rows_missing: int
    rows_extra: int

    @property
    def exact(self) -> bool:
        """Return whether all rows are the same, and there is at least one."""
        return self.expected > 0 and not (self.lost or self.duplicated or self.rows_missing or self.rows_extra)


def audit(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare both tables. Returns `{"daily": {...}, "hourly": {...}}`: the fields of `TableAudit`, and `exact`.

    Args:
        arguments: the pipeline's arguments.
    """
    connection = duckdb.connect()
    for name in ("flights", "airlines", "weather"):
        connection.read_parquet(parquet_of(arguments[name])).create_view(name)
    audits = {
        "daily": _compare(connection, f"{arguments['out']}/daily", EXPECTED_DAILY, "name", ("delay",)),
        "hourly": _compare(connection, f"{arguments['out']}/hourly", EXPECTED_HOURLY, "origin", ("delay", "wind")),
    }
    return {name: {**asdict(a), "exact": a.exact} for name, a in audits.items()}


def verdict(audits: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one line that says whether every flight is in the output exactly once, in both tables."""
    daily, hourly = audits["daily"], audits["hourly"]
    expected, committed = (
        str(daily[k]) if daily[k] == hourly[k] else f"{daily[k]}/{hourly[k]}" for k in ("expected", "committed")
    )
    lost, duplicated = (daily[k] + hourly[k] for k in ("lost", "duplicated"))
    return f"rows expected {expected}, committed {committed}, lost {lost}, duplicated {duplicated}"


def parquet_of(path: str) -> str:
    """Return the file, or a pattern for all Parquet files of a folder."""
    return path if path.endswith(".parquet") else f"{path.rstrip('/')}/*.parquet"


def _compare(
    connection: duckdb.DuckDBPyConnection, out: str, expected_sql: str, key: str, floats: tuple[str, ...]
) -> TableAudit:
    rounded = ", ".join(f"round({c}, 9) AS {c}" for c in floats)
    columns = f"{key}, window_start, window_end, flights, {rounded}"
    connection.sql(f"CREATE OR REPLACE TEMP TABLE expected AS SELECT {columns} FROM ({expected_sql})")
    connection.sql("CREATE OR REPLACE TEMP TABLE committed AS FROM expected LIMIT 0")
    if glob.glob(parquet_of(out)):
        connection.execute(f"INSERT INTO committed SELECT {columns} FROM read_parquet($1)", [parquet_of(out)])
    counts = connection.sql(
        f"""
        WITH e AS (SELECT {key} k, window_start w, sum(flights) n FROM expected GROUP BY ALL),
             c AS (SELECT {key} k, window_start w, sum(flights) n FROM committed GROUP BY ALL)
        SELECT coalesce(sum(e.n), 0), coalesce(sum(c.n), 0),
               coalesce(sum(greatest(coalesce(e.n, 0) - coalesce(c.n, 0), 0)), 0),
               coalesce(sum(greatest(coalesce(c.n, 0) - coalesce(e.n, 0), 0)), 0)
        FROM e FULL JOIN c ON e.k = c.k AND e.w = c.w
        """
    ).fetchall()
    missing = connection.sql("SELECT count(*) FROM (FROM expected EXCEPT ALL FROM committed)").fetchall()
    extra = connection.sql("SELECT count(*) FROM (FROM committed EXCEPT ALL FROM expected)").fetchall()
    return TableAudit(*(int(n) for n in counts[0]), int(missing[0][0]), int(extra[0][0]))
