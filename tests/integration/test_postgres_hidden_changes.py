"""Statements that change rows of a PostgreSQL table without changes in the stream: a job fails, and never diverges
(S4.2, ADR 0049)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from postgres_server import PostgresServer
from test_postgres_changes import Reading, Table, change

from tidegate.connectors.interface import Split
from tidegate.connectors.postgres.source import change_feed
from tidegate.errors import OutageError, PipelineError

PARTITIONED = (
    "DROP TABLE $t; CREATE TABLE $t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    " CREATE TABLE $t_1 PARTITION OF $t FOR VALUES FROM (0) TO (10);"
    " CREATE TABLE $t_2 PARTITION OF $t FOR VALUES FROM (10) TO (20);"
    " INSERT INTO $t VALUES (1, 'a'), (11, 'b')"
)
PLAIN = "INSERT INTO $t VALUES (1, 'a'), (11, 'b')"
FAST_DEFAULT = f"{PLAIN}; ALTER TABLE $t ADD w text DEFAULT 'w'"
ENUM = (
    "DROP TABLE $t; CREATE TYPE $t_e AS ENUM ('a', 'b'); CREATE TABLE $t (id int PRIMARY KEY, v $t_e);"
    " INSERT INTO $t VALUES (1, 'a'), (11, 'b')"
)
OTHER = "CREATE TABLE $t_3 (id int PRIMARY KEY, v text)"
ATTACH = "ALTER TABLE $t ATTACH PARTITION $t_3 FOR VALUES FROM (20) TO (30)"

HIDDEN = {
    "column-replaced": (PLAIN, "ALTER TABLE $t DROP v; ALTER TABLE $t ADD v text DEFAULT 'x'", "column 'v' is another"),
    "names-swapped": (
        "ALTER TABLE $t ADD w text; INSERT INTO $t VALUES (1, 'v', 'w'), (11, 'v', 'w')",
        "ALTER TABLE $t RENAME v TO x; ALTER TABLE $t RENAME w TO v; ALTER TABLE $t RENAME x TO w",
        "column 'v' is another",
    ),
    "new-values": (PLAIN, "ALTER TABLE $t ALTER v TYPE text USING upper(v)", "column 'v' was altered"),
    "new-values-and-default": (
        FAST_DEFAULT,
        "ALTER TABLE $t ALTER w TYPE text USING 'x' || w",
        "column 'w' was altered",
    ),
    "new-values-in-partitions": (
        PARTITIONED,
        "ALTER TABLE $t ALTER v TYPE text USING v || 'x'",
        "column 'v' was altered",
    ),
    "shorter-values": (PLAIN, "ALTER TABLE $t ALTER v TYPE varchar(1) USING left(v, 1)", "column 'v' was altered"),
    "enum-value-renamed": (ENUM, "ALTER TYPE $t_e RENAME VALUE 'a' TO 'z'", "the value 'a' of an enum is now 'z'"),
    "detached": (PARTITIONED, "ALTER TABLE $t DETACH PARTITION $t_1", "the partition $t_1 was detached"),
    "dropped": (PARTITIONED, "DROP TABLE $t_1", "a partition (oid "),
    "attached": (PARTITIONED, f"{OTHER}; INSERT INTO $t_3 VALUES (25, 'z'); {ATTACH}", "$t_3, which is not empty"),
    "attached-in-one-transaction": (
        PARTITIONED,
        f"BEGIN; {OTHER}; INSERT INTO $t_3 VALUES (25, 'z'); {ATTACH}; COMMIT",
        "$t_3, which is not empty",
    ),
    "detached-and-attached": (
        PARTITIONED,
        "ALTER TABLE $t DETACH PARTITION $t_1; DELETE FROM $t_1;"
        " ALTER TABLE $t ATTACH PARTITION $t_1 FOR VALUES FROM (0) TO (10)",
        "the partition $t_1 was detached, and attached again",
    ),
    "publication-created-again": (
        PLAIN,
        "DROP PUBLICATION tidegate_public_$t; CREATE PUBLICATION tidegate_public_$t FOR TABLE $t",
        "the publication was dropped and created again",
    ),
    "left-the-publication": (
        PLAIN,
        "ALTER PUBLICATION tidegate_public_$t DROP TABLE $t; ALTER PUBLICATION tidegate_public_$t ADD TABLE $t",
        "the table has left the publication",
    ),
}
HARMLESS = {
    "rewritten": (PLAIN, "VACUUM FULL $t"),
    "clustered": (PLAIN, "CLUSTER $t USING $t_pkey"),
    "analyzed": (PLAIN, "ANALYZE $t"),
    "default-of-a-new-column-written": (FAST_DEFAULT, "VACUUM FULL $t"),
    "rewritten-for-a-new-column": (PLAIN, "ALTER TABLE $t ADD r float DEFAULT random()"),
    "longer": ("ALTER TABLE $t ALTER v TYPE varchar(9); " + PLAIN, "ALTER TABLE $t ALTER v TYPE varchar(20)"),
    "statistics": (PLAIN, "ALTER TABLE $t ALTER v SET STATISTICS 10"),
    "default": (PLAIN, "ALTER TABLE $t ALTER v SET DEFAULT 'd'"),
    "enum-value-added": (ENUM, "ALTER TYPE $t_e ADD VALUE 'c'"),
    "partition-rewritten": (PARTITIONED, "VACUUM FULL $t_1"),
    "partition-created": (PARTITIONED, "CREATE TABLE $t_3 PARTITION OF $t FOR VALUES FROM (20) TO (30)"),
    "empty-partition-attached": (PARTITIONED, f"{OTHER}; {ATTACH}"),
    "tree-of-partitions-created": (
        PARTITIONED,
        "CREATE TABLE $t_3 PARTITION OF $t FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id);"
        " CREATE TABLE $t_4 PARTITION OF $t_3 FOR VALUES FROM (20) TO (30)",
    ),
}


@pytest.fixture
def make(postgres: PostgresServer) -> Iterator[Callable[..., Table]]:
    made: list[Table] = []

    def table(prepare: str, **options: Any) -> Table:
        made.append(Table(postgres, **options))
        each(made[-1], prepare)
        return made[-1]

    yield table
    for one in made:
        one.end()
        with postgres.connect() as sql:
            sql.execute(f"DROP TABLE IF EXISTS {one.name}, {one.name}_1, {one.name}_2, {one.name}_3")


def each(table: Table, statements: str) -> None:
    """Run statements one by one: some do not run together in one transaction."""
    for statement in [statements] if statements.startswith("BEGIN") else statements.split("; "):
        table.run(statement)


def streaming(table: Table) -> Reading:
    reading = table.read()
    assert len(reading.rows(2)) == 2
    reading.until(lambda: not reading.position["copying"])
    return reading


def stopped(reading: Reading) -> list[Split]:
    splits = reading.snapshot()
    reading.reader.close()
    reading.reader._prefetch._thread.join(60)  # type: ignore[attr-defined]
    return splits


@pytest.mark.parametrize("case", HIDDEN)
def test_a_hidden_change_fails_the_job_before_a_later_row(make: Callable[..., Table], case: str) -> None:
    prepare, statements, said = HIDDEN[case]
    table = make(prepare)
    reading = streaming(table)
    table.run("INSERT INTO $t (id) VALUES (2)")
    reading.rows(1)
    each(table, statements)
    reading.snapshot()
    table.run("INSERT INTO $t (id) VALUES (12)")
    error = reading.failure()
    assert isinstance(error, PipelineError) and said.replace("$t", table.name) in str(error), error
    assert reading.batches == []


@pytest.mark.parametrize("case", HIDDEN)
def test_a_hidden_change_while_no_job_runs_is_refused_by_the_check_and_by_the_run(
    make: Callable[..., Table], case: str
) -> None:
    """S9.3."""
    prepare, statements, said = HIDDEN[case]
    table = make(prepare)
    splits = stopped(streaming(table))
    each(table, statements)
    ((_, problem),) = table.source().unavailable_splits(splits)
    assert said.replace("$t", table.name) in problem
    error = table.read(splits, run_id="r2").failure()
    assert isinstance(error, PipelineError) and said.replace("$t", table.name) in str(error), error


@pytest.mark.parametrize("runs", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("case", HARMLESS)
def test_other_statements_change_no_row_and_nothing_fails(make: Callable[..., Table], case: str, runs: bool) -> None:
    prepare, statements = HARMLESS[case]
    table = make(prepare)
    reading = streaming(table)
    definition = reading.position["definition"]
    splits = reading.snapshot() if runs else stopped(reading)
    each(table, statements)
    if not runs:
        assert table.source().unavailable_splits(splits) == []
        reading = table.read(splits, run_id="r2")
    if case != "analyzed":
        reading.until(lambda: reading.position is not None and reading.position["definition"] != definition)
    high = 25 if table.sql.execute(f"SELECT to_regclass('{table.name}_3') IS NOT NULL").fetchone()[0] else 12
    table.run(f"INSERT INTO $t (id, v) VALUES (2, 'b'), ({high}, 'a')")
    assert [(row["change_kind"], row["id"], row["v"]) for row in reading.rows(2)] == [
        ("insert", 2, "b"),
        ("insert", high, "a"),
    ]
    # What was accepted is the base of the next comparison.
    splits = stopped(reading)
    assert table.source().unavailable_splits(splits) == []


def test_a_partition_that_is_created_and_filled_in_one_transaction_is_read(make: Callable[..., Table]) -> None:
    table = make(PARTITIONED)
    reading = streaming(table)
    table.run(
        "BEGIN; CREATE TABLE $t_3 PARTITION OF $t FOR VALUES FROM (20) TO (30); INSERT INTO $t VALUES (21, 'c'); COMMIT"
    )
    assert reading.rows(1) == [change("insert", id=21, v="c")]
    table.run("UPDATE $t SET v = 'd' WHERE id = 21")
    assert reading.rows(1) == [change("update_after", id=21, v="d")]


def test_a_truncate_of_a_partition_fails_in_its_place_in_the_stream(make: Callable[..., Table]) -> None:
    """Also after rows and statistics that make it look like VACUUM FULL."""
    table = make(PARTITIONED)
    splits = stopped(streaming(table))
    each(table, "INSERT INTO $t VALUES (2, 'b'); TRUNCATE $t_1; INSERT INTO $t VALUES (3, 'c'), (12, 'c'); ANALYZE $t")
    reading = table.read(splits, run_id="r2")
    error = reading.failure()
    assert isinstance(error, PipelineError) and "a partition of the table was truncated" in str(error)
    assert all(row["id"] == 2 for batch in reading.batches for row in batch.to_pylist())


def test_truncates_of_partitions_can_be_ignored(make: Callable[..., Table], caplog: pytest.LogCaptureFixture) -> None:
    table = make(PARTITIONED, on_truncate="ignore")
    reading = streaming(table)
    each(table, "TRUNCATE $t_1; INSERT INTO $t VALUES (3, 'c'); TRUNCATE $t; INSERT INTO $t VALUES (12, 'c')")
    assert reading.rows(2) == [change("insert", id=3, v="c"), change("insert", id=12, v="c")]
    assert caplog.text.count("was truncated; its rows are not deleted downstream") == 2


def test_hidden_changes_can_be_ignored(make: Callable[..., Table], caplog: pytest.LogCaptureFixture) -> None:
    """Old partitions are dropped, and their rows stay downstream; also rows of one that nobody saw while it existed."""
    table = make(PARTITIONED, on_hidden_change="ignore")
    splits = stopped(streaming(table))
    each(
        table,
        "DROP TABLE $t_1; CREATE TABLE $t_3 PARTITION OF $t FOR VALUES FROM (20) TO (30);"
        " INSERT INTO $t VALUES (12, 'c'), (21, 'd')",
    )
    each(table, "DROP TABLE $t_3; INSERT INTO $t VALUES (13, 'e')")
    assert table.source().unavailable_splits(splits) == []
    reading = table.read(splits, run_id="r2")
    assert [row["id"] for row in reading.rows(3)] == [12, 21, 13]
    assert "a partition (oid" in caplog.text and "are not changed downstream" in caplog.text


def test_changes_of_a_partition_that_nobody_saw_while_it_existed_fail(make: Callable[..., Table]) -> None:
    table = make(PARTITIONED)
    splits = stopped(streaming(table))
    each(table, "CREATE TABLE $t_3 PARTITION OF $t FOR VALUES FROM (20) TO (30); INSERT INTO $t VALUES (21, 'd')")
    table.run("DROP TABLE $t_3")
    assert table.source().unavailable_splits(splits) == []
    error = table.read(splits, run_id="r2").failure()
    assert isinstance(error, PipelineError) and "a partition that does not exist any more" in str(error)


def test_partitions_with_columns_in_another_order_are_read_in_the_order_of_the_changes(
    make: Callable[..., Table],
) -> None:
    """S4.2: with a restore in the middle of the transaction."""
    table = make(PARTITIONED + f"; CREATE TABLE $t_3 (v text, id int NOT NULL PRIMARY KEY); {ATTACH}")
    splits = stopped(streaming(table))
    table.run("INSERT INTO $t SELECT 12 + (g % 2) * 8, 'x' || g FROM generate_series(1, 2) g")
    table.run(
        "BEGIN; " + "".join(f"UPDATE $t SET v = '{n}' WHERE id = {12 + n % 2 * 8}; " for n in range(40)) + "COMMIT"
    )
    reading = table.read(splits, run_id="r2")
    found: list[tuple[int, str]] = []
    while len(found) < 42:
        reading.until(lambda: bool(reading.batches))  # noqa: B023 - called at once
        found += [(row["id"], row["v"]) for batch in reading.batches for row in batch.to_pylist()]
        splits = stopped(reading)
        reading = table.read(splits, run_id=f"r{len(found) + 2:03d}")
    assert found == [(20, "x1"), (12, "x2"), *((12 + n % 2 * 8, str(n)) for n in range(40))]


def test_a_publication_as_the_whole_table_is_refused_with_the_statement_that_changes_it(
    make: Callable[..., Table],
) -> None:
    table = make(PARTITIONED, publication="as_root")
    each(table, "CREATE PUBLICATION as_root FOR TABLE $t WITH (publish_via_partition_root = true)")
    with pytest.raises(PipelineError, match=r"no TRUNCATE of a partition; run ALTER PUBLICATION"):
        table.source().schema()
    each(table, "DROP PUBLICATION as_root; CREATE PUBLICATION as_root FOR TABLE $t_1")
    with pytest.raises(PipelineError, match=f"lacks the partitions public.{table.name}_2;"):
        table.source().schema()
    each(table, "DROP PUBLICATION as_root; CREATE PUBLICATION as_root FOR TABLE $t")
    assert table.source().schema().names == ["change_kind", "id", "v"]
    table.run("DROP PUBLICATION as_root")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ("CREATE TABLE $t_1 () INHERITS ($t)", "other tables inherit from the table"),
        (f"{PARTITIONED}; CREATE UNLOGGED TABLE $t_3 PARTITION OF $t DEFAULT", "_3, which is unlogged or foreign"),
    ],
)
def test_tables_some_of_whose_rows_have_no_changes_are_refused(
    make: Callable[..., Table], prepare: str, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        make(prepare).source().schema()


@pytest.mark.parametrize("statement", ["ALTER TABLE $t ADD r float DEFAULT random()", "VACUUM FULL $t"])
def test_a_table_that_is_rewritten_before_its_copy_is_copied_by_the_next_attempt(
    make: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """S9.1: the state of the slot does not have the rows of a table that was rewritten since."""
    table = make(PLAIN)
    run_simple = change_feed.run_simple

    def rewriting(connection: Any, text: str, closed: Any) -> Any:
        result = run_simple(connection, text, closed)
        if text.startswith("CREATE_REPLICATION_SLOT"):
            table.run(statement)
        return result

    monkeypatch.setattr(change_feed, "run_simple", rewriting)
    error = table.read().failure()
    assert isinstance(error, OutageError) and "the table cannot be copied now" in str(error)
    monkeypatch.undo()
    assert len(table.read(run_id="r2").rows(2)) == 2


def test_a_position_of_an_earlier_version_begins_to_compare_at_its_first_start(make: Callable[..., Table]) -> None:
    table = make(PLAIN)
    (split,) = stopped(streaming(table))
    del split.position["definition"]
    reading = table.read([split], run_id="r2")
    reading.until(lambda: reading.position["definition"] is not None)
    table.run("ALTER TABLE $t ALTER v TYPE text USING upper(v)")
    reading.snapshot()
    assert "column 'v' was altered" in str(reading.failure())
