"""What a fork's pipeline must be like (S7.4)."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from builders.jobs import submission

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.discard import Discard
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.text_sinks import Csv
from tidegate.connectors.interface import Sink
from tidegate.connectors.postgres.postgres_sink import Postgres
from tidegate.coordinator.recovery.fork_check import check_fork
from tidegate.errors import PipelineError
from tidegate.jobs.history.sink_identity import SinkIdentity, is_same_place, recorded_identity
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.plan.job_graph import JobGraph
from tidegate.testing.collect_sink import CollectSink

SCHEMA = pa.schema([("v", pa.int64())])
FORK = RestoreFrom("savepoint", "j/checkpoints/1", fork_of="j")


def graph(sink: Sink, rows: int | None = 5) -> JobGraph:
    p = Pipeline()
    p.read(DataGen(lambda n: {"v": n}, SCHEMA, rows=rows), uid="numbers").write(sink, uid="out")
    return p.build()


def spec(restore: RestoreFrom | None = FORK) -> Spec:
    return submission(job_id="backfill", restore=restore)


def test_an_unbounded_source_is_refused_by_its_name() -> None:
    """S7.4: a fork works off a part of the input beside its original, and ends."""
    unbounded = graph(CollectSink("a"), rows=None)
    with pytest.raises(
        PipelineError, match=r"these sources are unbounded: 'numbers' \(DataGen\(unbounded\)\)"
    ) as caught:
        check_fork(unbounded, spec(), {})
    assert "fork of j" in str(caught.value)
    for other in (None, RestoreFrom("savepoint", "j/checkpoints/1")):
        check_fork(unbounded, spec(other), {"out": CollectSink("a").describe()})


def test_the_live_sink_is_refused_by_its_name() -> None:
    """S7.4: it touches nothing of its original, and that includes its place."""
    live = {"daily": CollectSink("a").describe()}
    with pytest.raises(PipelineError, match="sink 'out' of the fork writes to the same place as sink 'daily'"):
        check_fork(graph(CollectSink("a")), spec(), live)
    check_fork(graph(CollectSink("b")), spec(), live)


def test_the_live_place_is_refused_by_any_name_and_its_folders_too(tmp_path: Path) -> None:
    """S7.4: a link, and a partition of the live table, whose readers would see the fork's rows."""
    live = {"out": Parquet(tmp_path / "live").describe()}
    (tmp_path / "live").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "live")
    for other in (tmp_path / "link", f"file://{tmp_path}/link", tmp_path / "link" / "v=1", tmp_path):
        with pytest.raises(PipelineError, match="to the same place as sink 'out' of the original job"):
            check_fork(graph(Parquet(other)), spec(), live, os.path.realpath)
    check_fork(graph(Parquet(tmp_path / "live2")), spec(), live, os.path.realpath)


def test_a_sink_that_commits_nothing_may_be_shared() -> None:
    check_fork(graph(Discard()), spec(), {"out": Discard().describe()})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Parquet("/out"), Parquet("/out"), True),
        (Parquet("/out"), Parquet("/out/"), True),
        (Parquet("/out"), Parquet("/out", partition_by="v"), True),
        (Parquet("/out"), Csv("/out"), True),
        (Parquet("/out"), Delta("/out"), True),
        (Parquet("/out"), Parquet("/out2"), False),
        (Parquet("s3://b/o"), Parquet("s3://c/o"), False),
        (Parquet("s3://b/o"), Parquet("s3a://b//o/"), True),
        (Parquet("/out"), Parquet("file:///out/"), True),
        (Parquet("/out"), Parquet("//out"), True),
        (Parquet("/out", partition_by="v"), Parquet("/out/v=1"), True),
        (Parquet("s3://b/o"), Delta("s3://b/o/backfill"), True),
        (Parquet("s3://b"), Delta("s3://b/o"), True),
        (Parquet("s3://b/o"), Parquet("/b/o"), False),
        (Parquet("s3://b/o"), Parquet("s3://b/o-backfill"), False),
    ],
    ids=lambda value: value.describe() if isinstance(value, Sink) else None,
)
def test_the_place_of_a_sink_is_not_its_format_or_partitioning(one: Sink, other: Sink, same: bool) -> None:
    assert is_same_place(one.identity(), other.identity()) is same
    assert is_same_place(other.identity(), recorded_identity(one.describe())) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Postgres('host/db', 'flights')", "Postgres('host/db', 'flights', key=['day'])", True),
        ("Postgres('ann@host/db', 'flights')", "Postgres('bob@host/db', 'flights')", True),
        ("Postgres('host/db', 'flights')", "Postgres('host/db', 'other')", False),
        ("Postgres('host/db', 'flights')", "Postgres('ann@HOST:5432/db', 'flights')", True),
        ("Postgres('localhost/db', 'flights')", "Postgres('127.0.0.1:5432/db', 'flights')", True),
        ("Postgres('host/db', 'flights')", "Postgres('host:5433/db', 'flights')", False),
        ("Postgres('host/db', 'flights')", "Postgres('host/DB', 'flights')", False),
        ("MySink", "MySink", True),
        ("CollectSink('a')", "CollectSink('ab')", False),
        ("MySink", "Another", False),
        ("MySink to table t", "MySink to table t", True),
        ("A()", "B()", False),
        ("A(x)", "B(x)", False),
    ],
)
def test_what_names_no_place_is_the_same_when_the_texts_are(one: str, other: str, same: bool) -> None:
    assert is_same_place(recorded_identity(one), recorded_identity(other)) is same


@pytest.mark.parametrize(
    ("sink", "identity"),
    [
        (Parquet("/out"), SinkIdentity("Parquet", ("/out",))),
        (Csv("s3://b/it's", partition_by=["v"]), SinkIdentity("Csv", ("s3://b/it's",), {"partition_by": ["v"]})),
        (Delta("/out", partition_by="v"), SinkIdentity("Delta", ("/out",), {"partition_by": ["v"]})),
        (
            Postgres("host=h dbname=d user=u", "t", mode="upsert", key="v"),
            SinkIdentity("Postgres", ("u@h/d", "public.t"), {"key": ["v"]}),
        ),
        (CollectSink("a"), SinkIdentity("CollectSink", ("a",))),
        (Discard(), SinkIdentity("Discard")),
    ],
)
def test_the_identity_of_a_sink_is_read_back_from_its_text(sink: Sink, identity: SinkIdentity) -> None:
    assert sink.identity() == identity
    assert recorded_identity(sink.describe()) == identity


class _Line(Discard):
    def describe(self) -> str:
        return "Line('/out/', mode=fast)"


class _Remark(Discard):
    def describe(self) -> str:
        return "Remark to table t"


def test_a_sink_that_only_describes_itself_has_the_identity_that_its_text_names() -> None:
    assert _Line().identity() == SinkIdentity("Line", ("/out/",), {"mode": "fast"})
    assert _Line().identity().plain_place == ("/out",)
    assert _Remark().identity() == SinkIdentity("Remark to table t")
    assert _Remark().describe() == str(_Remark().identity()) == "Remark to table t"
