"""The CSV and JSON-lines sinks: every value, as readers see it; what is refused before the start."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.connectors.files.sink import json_text
from tidegate.connectors.files.sink.json_text import json_lines
from tidegate.connectors.files.sink.text_sinks import Csv, JsonLines
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import Sink, SourceContext
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OptionError, PipelineError
from tidegate.testing.one_sink_job import TestWriter

MOMENT = datetime(2026, 11, 21, 16, 48, 50, 123456, tzinfo=UTC)
TEXTS = ["plain", "", "né 🌊", 'a "quoted" one', "back\\slash", "two\nlines\r\n", "\x00\x1f\x7f\t\b\f", "a,b;c", None]
FLAT = pa.table(
    {
        "s": TEXTS,
        "word": pa.array(["x", None, "y", "x", "x", "x", "x", "x", "x"]).dictionary_encode(),
        "i": pa.array([2**63 - 1, -(2**63), None, 0, 1, 2, 3, 4, 5]),
        "u": pa.array([2**64 - 1, None, 0, 0, 1, 2, 3, 4, 5], pa.uint64()),
        "f": [0.1, 1.0, -0.0, 1e300, 5e-324, 1e15, 123456789.0, -2.5e-7, None],
        "b": [True, False, None] * 3,
        "d": pa.array([Decimal("1.50"), Decimal("-0.01"), None] * 3, pa.decimal128(38, 2)),
        "day": pa.array([date(2026, 11, 21), date(1, 1, 1), None] * 3, pa.date32()),
        "clock": pa.array([time(16, 48, 50, 1), None, time(0)] * 3, pa.time64("us")),
        "at": pa.array([MOMENT, datetime(1, 1, 1, tzinfo=UTC), None] * 3, pa.timestamp("us", "Europe/Berlin")),
        "naive": pa.array([MOMENT.replace(tzinfo=None), None, None] * 3, pa.timestamp("us")),
    }
)


def write(sink: Sink, table: pa.Table) -> None:
    """The table as one committed transaction."""
    sink.check(table.schema)
    writer = sink.create_writer(SinkContext("job-1", "lineage-1", "out", 0, 1, 1, "run-1", table.schema))
    for batch in table.to_batches():
        writer.write(batch)
    writer.commit(writer.prepare_commit(1)())
    sink.check(table.schema)


def only_file(folder: Path) -> Path:
    (found,) = folder.glob("part-*")
    return found


def as_read(table: pa.Table) -> list[dict[str, Any]]:
    """What should come back: plain strings, and times in UTC."""
    plain = table.set_column(1, "word", table["word"].cast(pa.string()))
    utc = plain.set_column(9, "at", plain["at"].cast(pa.timestamp("us", "UTC")))
    return list(utc.to_pylist())


def test_csv_gives_every_value_back(tmp_path: Path) -> None:
    write(Csv(tmp_path), FLAT)
    read = pa_csv.read_csv(
        only_file(tmp_path),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=FLAT.schema.set(1, pa.field("word", pa.string())).set(9, pa.field("at", _UTC)),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    assert read.to_pylist() == as_read(FLAT)
    assert math.copysign(1, read["f"][2].as_py()) == -1


_UTC = pa.timestamp("us", "UTC")


def test_json_lines_give_every_value_back(tmp_path: Path) -> None:
    write(JsonLines(tmp_path), FLAT)
    lines = [json.loads(line) for line in only_file(tmp_path).read_bytes().decode().split("\n")[:-1]]
    for name in ("s", "i", "u", "f", "b"):
        assert [line[name] for line in lines] == FLAT[name].to_pylist()
    assert [type(line["f"]) for line in lines[:-1]] == [float] * 8
    assert list(lines[0]) == FLAT.schema.names
    assert (lines[0]["at"], lines[1]["at"]) == ("2026-11-21T16:48:50.123456Z", "0001-01-01T00:00:00.000000Z")
    assert (lines[0]["naive"], lines[0]["day"], lines[0]["clock"]) == (
        "2026-11-21T16:48:50.123456",
        "2026-11-21",
        "16:48:50.000001",
    )
    assert '"d":1.50,' in only_file(tmp_path).read_text().splitlines()[0]


def test_json_lines_are_read_by_arrow_with_their_types(tmp_path: Path) -> None:
    kept = FLAT.select(["s", "i", "f", "b", "d", "naive"])
    write(JsonLines(tmp_path), kept)
    options = pa_json.ParseOptions(explicit_schema=kept.schema)
    assert pa_json.read_json(only_file(tmp_path), parse_options=options).to_pylist() == kept.to_pylist()


def test_dates_and_times_of_json_lines_are_found_by_a_source_without_a_schema(tmp_path: Path) -> None:
    kept = FLAT.select(["s", "day", "at", "naive"])
    write(JsonLines(tmp_path), kept)
    expected = kept.set_column(2, "at", kept["at"].cast(_UTC))
    source = Files(tmp_path)
    assert source.schema() == expected.schema
    reader = source.create_reader(SourceContext("job", 0, 1))
    reader.add_splits(source.discover(1))
    polled = reader.poll(0)
    assert polled.batch is not None
    assert polled.batch.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("sink", [Csv, JsonLines])
def test_other_readers_agree(sink: Callable[..., Sink], tmp_path: Path) -> None:
    write(sink(tmp_path), FLAT.select(["s", "i", "b", "at"]))
    kind, file = ("csv", "*.csv") if sink is Csv else ("json", "*.jsonl")
    query = f"""select s, i, b, epoch_us("at") from read_{kind}('{tmp_path}/{file}')"""
    found = duckdb.connect().execute(query).fetchall()
    assert [row[1:3] for row in found] == list(zip(FLAT["i"].to_pylist(), FLAT["b"].to_pylist(), strict=True))
    assert [row[0] for row in found[2:6]] == TEXTS[2:6]
    assert found[0][3] == round(MOMENT.timestamp() * 1e6)
    path = only_file(tmp_path)
    frame = pd.read_csv(path) if sink is Csv else pd.read_json(path, lines=True)
    assert frame["s"].to_list()[2:6] == TEXTS[2:6]
    assert pd.to_datetime(frame["at"][0]) == pd.Timestamp(MOMENT)


@pytest.mark.parametrize("sink", [Csv, JsonLines])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_files_are_whole_and_are_read_back_by_files(
    sink: Callable[..., Sink], compression: str, tmp_path: Path
) -> None:
    table = pa.table({"n": range(50_000), "s": [f"row {n % 7}" for n in range(50_000)]})
    write(sink(tmp_path, compression=compression), table)
    path = only_file(tmp_path)
    content = path.read_bytes()
    assert path.suffix == {"gzip": ".gz", "zstd": ".zst"}[compression]
    if compression == "gzip":
        assert gzip.decompress(content).count(b"\n") == 50_000 + (sink is Csv)
    source = Files(tmp_path)
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1))
    found: list[int] = []
    while (polled := reader.poll(0)).batch is not None:
        found += polled.batch.column("n").to_pylist()
    assert found == list(range(50_000))


def test_in_a_csv_file_of_one_column_no_line_is_empty(tmp_path: Path) -> None:
    """Readers pass over empty lines, and with them over a record."""
    write(Csv(tmp_path / "i"), pa.table({"n": [1, None, 3]}))
    assert only_file(tmp_path / "i").read_text() == '"n"\n"1"\n""\n"3"\n'
    assert pa_csv.read_csv(only_file(tmp_path / "i")).to_pydict() == {"n": [1, None, 3]}
    write(Csv(tmp_path / "s"), pa.table({"s": pa.array(["a", None, ""]).dictionary_encode()}))
    assert only_file(tmp_path / "s").read_text() == '"s"\n"a"\n""\n""\n'


def test_not_a_number_and_infinities(tmp_path: Path) -> None:
    """JSON has no word for them."""
    values = [1.5, math.nan, math.inf, -math.inf, None]
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        column = pa.array(np.array(values[:4], kind.to_pandas_dtype())).cast(kind)
        table = pa.table({"f": pa.concat_arrays([column, pa.nulls(1, kind)]), "n": range(5)})
        write(JsonLines(tmp_path / f"j{kind}"), table)
        lines = only_file(tmp_path / f"j{kind}").read_text().splitlines()
        assert [json.loads(line)["f"] for line in lines] == [1.5, None, None, None, None]
        write(Csv(tmp_path / f"c{kind}"), table)
        assert only_file(tmp_path / f"c{kind}").read_text().splitlines()[1:] == [
            "1.5,0",
            "nan,1",
            "inf,2",
            "-inf,3",
            ",4",
        ]


_leaf = st.one_of(st.none(), st.text(max_size=5), st.sampled_from(TEXTS))
_ROW = pa.struct(
    [
        ("text", pa.string()),
        ("list", pa.list_(pa.list_(pa.string()))),
        ("pair", pa.list_(pa.float32(), 2)),
        (
            'odd "name"',
            pa.struct(
                [("n", pa.int64()), ("at", pa.timestamp("s")), ("more", pa.large_list(pa.struct([("x", pa.bool_())])))]
            ),
        ),
    ]
)
_rows = st.fixed_dictionaries(
    {
        "text": _leaf,
        "list": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.lists(_leaf, max_size=3)), max_size=3)),
        "pair": st.one_of(st.none(), st.lists(st.sampled_from([0.0, 1.5, None]), min_size=2, max_size=2)),
        'odd "name"': st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
                    "at": st.one_of(st.none(), st.just(datetime(2026, 1, 2, 3, 4, 5))),
                    "more": st.one_of(
                        st.none(),
                        st.lists(st.one_of(st.none(), st.fixed_dictionaries({"x": st.sampled_from([None, True])}))),
                    ),
                }
            ),
        ),
    }
)


def _isoformat(value: Any) -> str:
    return str(value.isoformat())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), _rows), min_size=1, max_size=6), st.integers(0, 5), st.booleans())
def test_nested_values_are_what_json_makes_of_them(rows: list[Any], skipped: int, in_pieces: bool) -> None:
    """Also of a slice, and where nulls hide values beneath."""
    batch = pa.record_batch({"row": pa.array(rows, _ROW)}).slice(min(skipped, len(rows) - 1))
    before, json_text._TEXT_BYTES = json_text._TEXT_BYTES, 8 if in_pieces else json_text._TEXT_BYTES
    try:
        lines = b"".join(json_lines(batch)).decode().split("\n")
    finally:
        json_text._TEXT_BYTES = before
    expected = json.loads(json.dumps(batch.to_pylist(), default=_isoformat))
    assert [json.loads(line) for line in lines[:-1]] == expected
    assert lines[-1] == ""


def test_values_that_a_null_hides_do_not_show() -> None:
    """Arrow may keep anything below a null list or struct."""
    words = pa.array(['"a', "b", "c", None])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3, 4], pa.int32()), words, mask=pa.array([False, True, False]))
    structs = pa.StructArray.from_arrays([words.slice(0, 3)], ["w"], mask=pa.array([True, False, False]))
    (lines,) = json_lines(pa.record_batch({"l": lists, "s": structs}))
    assert [json.loads(line) for line in lines.to_pybytes().splitlines()] == [
        {"l": ['"a', "b"], "s": None},
        {"l": None, "s": {"w": "b"}},
        {"l": [None], "s": {"w": "c"}},
    ]


@pytest.mark.parametrize("sink", [Csv, JsonLines])
@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.binary(3), pa.duration("s"), pa.map_(pa.string(), pa.int64()), pa.month_day_nano_interval()],
)
def test_a_type_without_a_text_is_refused_by_column(
    sink: Callable[..., Sink], kind: pa.DataType, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=r"'odd'.*map_in_arrow"):
        sink(tmp_path).check(pa.schema([("n", pa.int64()), ("odd", kind)]))
    with pytest.raises(PipelineError, match="'odd'"):
        sink(tmp_path).check(pa.schema([("n", pa.int64()), ("odd", pa.list_(kind))]))


def test_csv_refuses_nested_columns(tmp_path: Path) -> None:
    for kind in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())])):
        JsonLines(tmp_path).check(pa.schema([("nested", kind)]))
        with pytest.raises(PipelineError, match=r"'nested'.*CSV has no"):
            Csv(tmp_path).check(pa.schema([("nested", kind)]))


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_csv_files_of_other_columns_are_no_place_to_write_to(compression: Any, tmp_path: Path) -> None:
    write(Csv(tmp_path, compression=compression), FLAT.select(["s", "i"]))
    with pytest.raises(PipelineError, match=r"other columns.*the file has s, i; the sink has n"):
        Csv(tmp_path).check(TestWriter.schema)


def test_a_compression_that_is_unknown_is_refused(tmp_path: Path) -> None:
    for sink in (Csv, JsonLines):
        with pytest.raises(OptionError, match="'lz4'"):
            sink(tmp_path, compression="lz4")  # type: ignore[arg-type]


def test_a_file_is_cut_at_its_size(tmp_path: Path) -> None:
    """Of what is on disk: compressed, to within a group of records."""
    noise = random.Random(1)
    table = pa.table({"s": [f"{noise.random()}" for _ in range(100_000)]})
    for sink, suffix in ((Csv, "csv"), (JsonLines, "jsonl")):
        folder = tmp_path / suffix
        made = sink(folder, target_file_size="600 KiB")
        writer = made.create_writer(SinkContext("job-1", "lineage-1", "out", 0, 1, 1, "run-1", table.schema))
        for batch in table.to_batches(max_chunksize=5_000):
            writer.write(batch)
        writer.commit(writer.prepare_commit(1)())
        sizes = sorted(file.stat().st_size for file in folder.glob("part-*"))
        assert len(sizes) >= 3
        assert sizes[1] >= 600 * 2**10
        assert sizes[-1] < 1_400 * 2**10
