"""Conditions that are left to Arrow, because Spark may decide otherwise, and those that are not (S8.2). That both agree
on the latter is tested on real Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.plan.expression_trees import read_expression
from tidegate.plan.pushdown_conditions import Condition, Field, condition_of, fields_of, text_of

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("n", pa.int64()),
        ("u", pa.uint8()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("c", pa.dictionary(pa.int8(), pa.string())),
        ("at", pa.timestamp("us", "UTC")),
        ("ns", pa.timestamp("ns", "UTC")),
        ("day", pa.date32()),
        ("d", pa.decimal128(9, 2)),
        ("yes", pa.bool_()),
    ]
)
SMALL, N, F, G, S, D, YES = (pc.field(name) for name in ("i", "n", "f", "g", "s", "d", "yes"))
AT = pc.scalar(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))


def condition(expression: pc.Expression, *, decides: bool = True) -> Condition | None:
    tree = read_expression(expression)
    assert tree is not None, "the test is of conditions, not of what can be read"
    return condition_of(tree, {name: Field(name) for name in SCHEMA.names}, SCHEMA, decides=decides)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (SMALL > 3, "i > 3"),
        (pc.less(pc.scalar(3), SMALL), "i > 3"),
        (pc.scalar(3) >= SMALL, "i <= 3"),
        (F <= 3, "f <= 3.0"),
        (G == 1.5, "g == 1.5"),
        (SMALL == SMALL, "i == i"),
        ((S == "a") & ~(N != 2) | YES, "((s == a and not n != 2) or yes)"),
        (N.isin([1, None]), "n in (1, null)"),
        (pc.field("c").is_null() | pc.field("u").is_valid(), "(c is null or u is not null)"),
        (pc.field("at") < AT, "at < 2020-01-01 00:00:00+00:00"),
        (Decimal("1.5") > D, "d < 1.50"),
        (pc.scalar(1.5).cast(pa.float32()) == G, "g == 1.5"),
    ],
)
def test_a_condition_is_told_in_the_columns_type(expression: pc.Expression, text: str) -> None:
    found = condition(expression)
    assert found is not None
    assert text_of(found) == text


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (SMALL + 1 > 3, "arithmetic"),
        (SMALL > 3.5, "no integer"),
        (SMALL > 3_000_000_000, "no int32"),
        (SMALL > N, "another type"),
        (F == G, "another type"),
        (F > F, "NaN on both sides"),
        (F == 0, "two zeros"),
        (F < -0.0, "two zeros"),
        (float("inf") > F, "not finite"),
        (F != 1.5, "statistics leave out NaN"),
        (~(F < 1.5), "NaN is let through"),
        ((F > 1.5) == YES, "a comparison of conditions"),
        (F == 2**53 + 1, "no double"),
        (G == 0.1, "no float"),
        (F.isin([1.5]), "floating point"),
        (pc.field("u") > 1, "unsigned"),
        (pc.field("c") == "a", "a dictionary"),
        (pc.field("ns") < AT, "nanoseconds"),
        (pc.field("at") < pc.scalar(pa.scalar(1, pa.timestamp("ns", "UTC"))), "nanoseconds"),
        (pc.field("at") < pc.scalar(dt.datetime(1890, 1, 1, tzinfo=dt.UTC)), "another calendar"),
        (pc.field("day") == dt.date(1582, 10, 10), "another calendar"),
        (Decimal("1.555") == D, "too many digits"),
        (D == 1, "not a decimal"),
        (pc.scalar(None) == SMALL, "null"),
        (SMALL.isin([1, 2.5]), "no integer"),
        (SMALL.isin([]), "no values"),
        (F.is_null(nan_is_null=True), "NaN for null"),
        (pc.and_(YES, SMALL > 1), "not SQL's and"),
        (pc.scalar(3.0).cast(pa.int32(), safe=False) == SMALL, "an unsafe cast"),
        (N.cast(pa.int32()) == 1, "a cast of a column"),
        (pc.scalar(True), "no column"),
    ],
    ids=str,
)
def test_what_spark_may_decide_otherwise_is_left_to_arrow(expression: pc.Expression, why: str) -> None:
    assert condition(expression) is None, why
    assert condition((S == "a") | expression) is None, why


def test_as_a_value_of_a_column_a_comparison_of_floats_is_left_to_arrow() -> None:
    assert condition(F > 1.5) is not None
    assert condition(F > 1.5, decides=False) is None


def test_a_test_for_null_looks_at_no_value() -> None:
    found = condition(S.is_null() | (N > 1) & YES)
    assert found is not None
    assert fields_of(found) == {"n", "yes"}
