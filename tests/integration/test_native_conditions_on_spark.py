"""What Spark decides in place of Arrow it decides alike: random conditions over awkward values on real Spark (S8.2)."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate import Discard, Pipeline, SparkFrame
from tidegate.plan.expression_trees import read_expression
from tidegate.plan.pushdown_conditions import Condition, Field, condition_of
from tidegate.spark.batch.pushdown_columns import column_of, plan_columns, select_columns

UTC = dt.UTC
NAN, INF = float("nan"), float("inf")
INSTANTS = [
    dt.datetime(*day, tzinfo=UTC) for day in ((1582, 10, 10), (1900, 1, 1), (1969, 12, 31, 23, 59, 59, 999_999))
]
INSTANTS += [dt.datetime(2024, 3, 10, 7, 30, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]
TEXTS = ["", "a", "A", "a ", "ab", "b", "é", "e\u0301", "\ufb01", "\U0001f600", "\uffff", "a\x00b", "'\"\\`$\n%"]
FLOATS = [NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 5e-324, 1e308, 16777217.0, 0.1]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 127]),
    "i16": (pa.int16(), [-(2**15), 0, 300, 2**15 - 1]),
    "i32": (pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]),
    "j64": (pa.int64(), [-(2**63), 0, 2**53, 2**63 - 1]),
    "f32": (pa.float32(), [NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 1e-45, 0.10000000149011612]),
    "f64": (pa.float64(), FLOATS),
    "g64": (pa.float64(), FLOATS),
    "s": (pa.string(), TEXTS),
    "t": (pa.large_string(), TEXTS),
    "b": (pa.binary(), [b"", b"\x00", b"a", b"\xff", b"\xff\x00", b"\x80"]),
    "day": (pa.date32(), [dt.date(1582, 10, 4), dt.date(1900, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), INSTANTS),
    "local": (pa.timestamp("us"), [at.replace(tzinfo=None) for at in INSTANTS]),
    "d": (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50"), Decimal("9999999.99")]),
    "wide": (pa.decimal128(38, 10), [Decimal("-1E-10"), Decimal(0), Decimal(10) ** 27, Decimal("1.5")]),
    "yes": (pa.bool_(), [True, False]),
    "no": (pa.bool_(), [True, False]),
}
"""Of each column its type, and the values that it and its literals have."""
SCHEMA = pa.schema([("id", pa.int32()), *((name, kind) for name, (kind, _) in VALUES.items())])
GROUP_ROWS = 20
SCOPE = {name: Field(name) for name in SCHEMA.names}
KINDS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
ODD_LITERALS = [3, 3.5, 1e300, 2**40, -1, "a", True, Decimal("1.5"), Decimal("1.555"), dt.date(2020, 1, 1), None, b"a"]


def awkward_rows() -> pa.Table:
    """Every value of every column, sorted by turns by one column, so that a reader skips row groups."""
    chance = random.Random(7)
    n = 240
    columns = {name: [chance.choice([None, *values]) for _ in range(n)] for name, (_, values) in VALUES.items()}
    for name, (_, values) in VALUES.items():
        columns[name][: len(values)] = values
    arrays = [pa.nulls(n, pa.int32()), *(pa.array(columns[name], kind) for name, (kind, _) in VALUES.items())]
    rows = pa.table(arrays, schema=SCHEMA)
    unlike = [one_number_and_nan(rows, name, number) for name in ("f32", "f64") for number in (1.5, -1.5)]
    rows = pa.concat_tables([*(rows.sort_by(name) for name in VALUES), *unlike])
    return rows.set_column(0, "id", pa.array(range(rows.num_rows), pa.int32()))


def one_number_and_nan(rows: pa.Table, name: str, number: float) -> pa.Table:
    """A row group of which the statistics tell of no value but the number."""
    few = rows.slice(0, GROUP_ROWS)
    values = pa.array([number, NAN] * (GROUP_ROWS // 2), rows[name].type)
    return few.set_column(rows.schema.get_field_index(name), name, values)


ROWS = awkward_rows()


def comparisons(name: str) -> st.SearchStrategy[pc.Expression]:
    """Of a column with a value, which may be of another type, or with a column of its type."""
    kind, values = VALUES[name]
    own = st.sampled_from(values).map(lambda value: pc.scalar(pa.scalar(value, kind)))
    others = [pc.field(other) for other, (of, _) in VALUES.items() if of == kind]
    odd = st.sampled_from(ODD_LITERALS).map(lambda value: pc.scalar(pa.scalar(value)))
    right = st.one_of(own, own, st.sampled_from(others), odd)

    def compared(function: str, right: pc.Expression, is_turned: bool) -> pc.Expression:
        sides = [right, pc.field(name)] if is_turned else [pc.field(name), right]
        made: pc.Expression = getattr(pc, function)(*sides)
        return made

    return st.builds(compared, st.sampled_from(KINDS), right, st.booleans())


def members(name: str) -> st.SearchStrategy[pc.Expression]:
    """A look-up of a column among values, and null."""
    kind, values = VALUES[name]
    some = st.lists(st.sampled_from([None, *values]), min_size=1, max_size=4)
    return st.builds(
        lambda chosen, skips: pc.is_in(pc.field(name), value_set=pa.array(chosen, kind), skip_nulls=skips),
        some,
        st.booleans(),
    )


LEAVES = st.one_of(
    st.sampled_from(list(VALUES)).flatmap(comparisons),
    st.sampled_from(list(VALUES)).flatmap(members),
    st.builds(
        lambda name, valid: pc.field(name).is_valid() if valid else pc.field(name).is_null(),
        st.sampled_from(list(VALUES)),
        st.booleans(),
    ),
    st.sampled_from([pc.field("yes"), pc.field("no")]),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)


AWKWARD = [
    pc.field("f64") > 1.5,
    pc.field("f64") < 1.5,
    ~(pc.field("f64") < 1.5),
    pc.field("f64") != 1.5,
    pc.field("f64") == 0.0,
    pc.field("f64") >= -0.0,
    pc.field("f32") >= 1.5,
    pc.field("f64") == NAN,
    pc.field("f64") > pc.field("g64"),
    pc.field("i64") == 2.0**53,
    pc.field("i64") == pc.field("j64"),
    ~(pc.field("i32") > 0),
    pc.field("s").isin(["a", None]),
    ~pc.is_in(pc.field("s"), value_set=pa.array(["a", None]), skip_nulls=True),
    (pc.field("s") == "a") | (pc.field("yes") & ~pc.field("no")),
    pc.field("t") > "a",
    pc.field("b") < pc.scalar(b"\x80"),
    pc.field("at") <= pc.scalar(INSTANTS[-2]),
    pc.field("local") <= pc.scalar(INSTANTS[-2].replace(tzinfo=None)),
    pc.field("day") > pc.scalar(dt.date(1970, 1, 1)),
    pc.field("wide") == pc.scalar(Decimal("1.5")),
    pc.field("d").is_null(),
]


def known(expressions: list[pc.Expression], *, decides: bool) -> list[tuple[pc.Expression, Condition]]:
    """Those that Spark may be asked for."""
    trees = [(expression, read_expression(expression)) for expression in expressions]
    found = [(e, condition_of(t, SCOPE, SCHEMA, decides=decides)) for e, t in trees if t is not None]
    return [(expression, condition) for expression, condition in found if condition is not None]


def arrow_value(rows: pa.Table, expression: pc.Expression) -> list[bool | None]:
    """Of every row."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
    made = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    values: list[bool | None] = made["value"].to_pylist()
    return values


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """In this process, in a zone that has gaps."""
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.sql.session.timeZone", "America/New_York").getOrCreate()
    yield session
    session.stop()


def kept_in(spark: SparkSession, form: str, folder: Path) -> DataFrame:
    """The rows in files of small row groups, with statistics and dictionaries that a reader goes by."""
    path = str(folder / "rows.parquet")
    pq.write_table(ROWS, path, row_group_size=GROUP_ROWS, write_page_index=True)
    rows = spark.read.parquet(path)
    return rows.cache() if form == "memory" else rows


@pytest.mark.parametrize(
    ("form", "examples"),
    [
        ("parquet", 1),
        pytest.param("parquet", 40, marks=pytest.mark.slow),
        pytest.param("memory", 15, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
@pytest.mark.gate
def test_spark_gives_what_arrow_gives_for_every_condition_that_it_is_asked_for(
    spark: SparkSession, form: str, examples: int, tmp_path: Path
) -> None:
    """S8.2: true, false and null of each row; and the rows for which it is true, also where a reader skips some."""
    frame = kept_in(spark, form, tmp_path)
    rows = frame.toArrow().cast(SCHEMA).sort_by("id")
    assert rows.num_rows == ROWS.num_rows
    seen: set[str] = set()

    phases = (Phase.explicit, Phase.generate)  # what fails is named; to make it smaller takes minutes of Spark

    @settings(
        max_examples=examples, deadline=None, database=None, phases=phases, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(CONDITIONS, min_size=30, max_size=30))
    @example(AWKWARD)
    def alike(expressions: list[pc.Expression]) -> None:
        seen.update(type(condition).__name__ for _, condition in known(expressions, decides=False))
        check(frame, rows, expressions)

    alike()
    assert seen >= {"Comparison", "IsIn", "IsNull", "Not", "BooleanJunction"}


def check(frame: DataFrame, rows: pa.Table, expressions: list[pc.Expression]) -> None:
    """Of each its value in every row, and the rows for which it is true. Args: rows: of the frame, sorted by id."""
    values = known(expressions, decides=False)
    columns = [column_of(condition, frame).alias(f"v{n}") for n, (_, condition) in enumerate(values)]
    found = frame.select("id", *columns).toArrow().sort_by("id")
    for n, (expression, condition) in enumerate(values):
        assert found[f"v{n}"].to_pylist() == arrow_value(rows, expression), f"{expression}: {condition}"
    filters = known(expressions, decides=True)
    ids = ids_where(frame, [condition for _, condition in filters])
    for n, (expression, condition) in enumerate(filters):
        expected = [i for i, is_true in enumerate(arrow_value(rows, expression)) if is_true]
        assert ids[n] == expected, f"where {expression}: {condition}"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "memory"])
def test_every_column_compared_with_every_value_of_its_own_is_alike(
    spark: SparkSession, form: str, tmp_path: Path
) -> None:
    """S8.2: and not so."""
    frame = kept_in(spark, form, tmp_path)
    rows = frame.toArrow().cast(SCHEMA).sort_by("id")
    every = [
        getattr(pc, function)(pc.field(name), pc.scalar(pa.scalar(value, kind)))
        for name, (kind, values) in VALUES.items()
        for value in values
        for function in KINDS
    ]
    for start in range(0, len(every), 30):
        some = every[start : start + 30]
        check(frame, rows, [*some, *(~expression for expression in some)])


def ids_where(frame: DataFrame, conditions: list[Condition]) -> list[list[int]]:
    """Ids of the rows for which each is true, of all in one job of Spark."""
    kept = [frame.where(column_of(c, frame)).select(F.lit(n).alias("n"), "id") for n, c in enumerate(conditions)]
    found: list[list[int]] = [[] for _ in conditions]
    for n, row in reduce(DataFrame.union, kept).collect() if kept else ():
        found[n].append(row)
    return [sorted(ids) for ids in found]


def test_a_column_that_is_not_what_was_declared_is_not_compared_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Text that Spark compares in another way, and numbers of another type; nor is a reader of text asked for less."""
    spark.range(3).selectExpr("id", "cast(id as string) s").write.csv(str(tmp_path / "csv"))
    declared = pa.schema([("n", pa.int64()), ("s", pa.string())])
    frames = {
        "plain": "id n, cast(id as string) s",
        "narrow": "cast(id as int) n, cast(id as string) s",
        "collated": "id n, cast(id as string) collate UNICODE_CI s",
    }
    shown = {name: asked(spark.range(3).selectExpr(*columns.split(", ")), declared) for name, columns in frames.items()}
    spark.range(3).selectExpr("id n", "cast(id as string) s").write.orc(str(tmp_path / "orc"))
    wide = declared.append(pa.field("t", pa.string()))
    shown["orc"] = asked(spark.read.orc(str(tmp_path / "orc")), declared)
    shown["text"] = asked(spark.read.csv(str(tmp_path / "csv"), schema="n long, s string, t string"), wide)
    assert shown == {
        "plain": "n where n > 1 and s == a, which is all of rows.filter, rows.project",
        "narrow": "n, s where s == a",
        "collated": "n, s where n > 1",
        "orc": "n, s",
        "text": "n, s, t",
    }


def test_columns_go_by_number_whatever_their_names_are(spark: SparkSession) -> None:
    """A first column `id`, or `target`, is not the number of a subtask."""
    frame = spark.range(3).selectExpr("id", "'x' target", "id as `a.b`", "id as ```c`")
    names = ["id", "target", "a.b", "`c"]
    declared = pa.schema([(name, pa.string() if name == "target" else pa.int64()) for name in names])
    p = Pipeline()
    rows = p.read(SparkFrame(lambda spark: frame, schema=declared), uid="rows")
    rows.filter((pc.field("a.b") > 0) & (pc.field("`c") > 1)).write(Discard(), uid="out")
    graph = p.build()
    found = select_columns(frame, plan_columns(frame, graph, graph.by_uid("rows")))
    assert found.columns == ["c0", "c1", "c2", "c3"]
    assert [tuple(row) for row in found.collect()] == [(2, "x", 2, 2)]


def asked(frame: DataFrame, declared: pa.Schema) -> str:
    """What a pipeline with a filter of both columns asks of it."""
    p = Pipeline()
    rows = p.read(SparkFrame(lambda spark: frame, schema=declared), uid="rows")
    rows.filter((pc.field("n") > 1) & (pc.field("s") == "a")).select("n").write(Discard(), uid="out")
    graph = p.build()
    return plan_columns(frame, graph, graph.by_uid("rows")).describe(graph)
