"""What the Postgres sink is told, and what it never says; no server."""

from __future__ import annotations

import builtins
import pickle
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate import Postgres
from tidegate.connectors import row_spool
from tidegate.connectors.postgres.connection import is_unreachable
from tidegate.connectors.postgres.source.change_reader import ChangeReader
from tidegate.connectors.row_spool import RowSpool
from tidegate.errors import EnvironmentProblemError, OptionError, OutageError, PipelineError
from tidegate.subtask.failure_codes import failure_code
from tidegate.testing.one_sink_job import TestWriter, numbers

HIDDEN = "hidden-word"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "merge"}, "mode='merge'"),
        ({"mode": "upsert"}, "an empty key"),
        ({"key": "n"}, "mode=append"),
        ({"mode": "upsert", "key": ["n", "n"]}, "repeated"),
        ({"table": "a.b.c"}, "table name .* is invalid"),
        ({"table": ".t"}, "table name .* is invalid"),
        ({"table": ""}, "table name .* is invalid"),
        ({"staging_schema": ""}, "staging_schema is empty"),
        ({"password": HIDDEN}, "plain text"),
        ({"dsn": f"host=db password={HIDDEN}"}, "contains a secret: password"),
        ({"dsn": f"postgresql://etl:{HIDDEN}@db/sales"}, "contains a secret: password"),
        ({"dsn": f"host=db sslpassword={HIDDEN}"}, "contains a secret: sslpassword"),
        ({"dsn": f"host=db {HIDDEN}"}, "cannot be parsed"),
    ],
)
def test_a_wrong_option_is_refused_by_name_and_no_secret_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        Postgres(**{"dsn": "host=db", "table": "t", **options})
    assert HIDDEN not in "".join(traceback.format_exception(caught.value))


def test_the_description_names_the_place_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_WORD", HIDDEN)
    sink = Postgres("postgresql://etl@db:5433/sales?sslmode=require", "daily", password="secret:env/TIDEGATE_TEST_WORD")
    assert sink.describe() == "Postgres('etl@db:5433/sales', 'public.daily')"
    upsert = Postgres("dbname=sales", "Mart.Daily", mode="upsert", key=("day", "shop"))
    assert upsert.describe() == "Postgres('localhost/sales', 'Mart.Daily', key=['day', 'shop'])"
    assert HIDDEN.encode() not in pickle.dumps(sink)


def test_a_reader_without_the_split_reports_what_the_reader_with_it_reports() -> None:
    """The status shows what all readers report: the lag would be missing at parallelism 2."""
    context: Any = None  # the reader connects to nothing before it has the split
    idle = ChangeReader(context, context).progress()
    assert idle == {"rows": 0, "copying": False, "lag_bytes": 0}


def test_an_unreachable_server_and_a_missing_secret_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_WORD", HIDDEN)
    sink = Postgres(f"host={tmp_path} dbname=sales", "daily", password="secret:env/TIDEGATE_TEST_WORD")
    with pytest.raises(PipelineError, match="cannot be reached") as caught:
        sink.check(TestWriter.schema)
    assert str(tmp_path) in str(caught.value)
    assert HIDDEN not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(OptionError, match="NOT_THERE"):
        Postgres(f"host={tmp_path}", "daily", password="secret:env/NOT_THERE").check(TestWriter.schema)


def test_a_server_that_goes_away_is_an_outage_and_no_fault_of_the_database(tmp_path: Path) -> None:
    """S9.1: the job tries again; nobody has to fix anything in the database."""
    writer = Postgres(f"host={tmp_path} dbname=sales", "daily").create_writer(TestWriter().context())
    writer.write(numbers(0, 1))
    with pytest.raises(OutageError, match="the database cannot be reached") as caught:
        writer.prepare_commit(1)()
    assert "tries again according to its restart strategy" in str(caught.value) and "?. " not in str(caught.value)
    assert failure_code(caught.value) == "outage"


def test_only_a_lost_or_missing_connection_is_unreachable() -> None:
    from psycopg import OperationalError, errors

    assert is_unreachable(OperationalError("server closed the connection unexpectedly"))
    assert is_unreachable(errors.ConnectionFailure("lost"))
    assert not is_unreachable(OperationalError('FATAL:  password authentication failed for user "etl"'))
    assert not is_unreachable(errors.DiskFull("no space left"))


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return there(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EnvironmentProblemError, match=r"tidegate\[postgres\]"):
        Postgres("host=db", "t")


def test_records_that_wait_come_back_in_order_from_memory_and_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_spool, "MEMORY_BYTES", 100)
    monkeypatch.setattr(row_spool, "CHUNK_ROWS", 25)
    rows = RowSpool(TestWriter.schema, str(tmp_path))
    for first in range(0, 100, 10):
        rows.append(numbers(first, 10))
    assert rows.rows == 100
    for _ in range(2):
        chunks = list(rows.chunks())
        assert pa.Table.from_batches(chunks).column("n").to_pylist() == list(range(100))
        assert [chunk.num_rows for chunk in chunks] == [30, 30, 30, 10]
    rows.drop()
    assert list(tmp_path.iterdir()) == []
