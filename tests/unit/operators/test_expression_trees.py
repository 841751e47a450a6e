"""Expressions of pyarrow are read as what they are, or not at all."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.plan import expression_trees as trees
from tidegate.plan.expression_trees import Call, ColumnRef, Literal, columns_of, columns_read, conjuncts

SCHEMA = pa.schema([("x", pa.int64()), ("end", pa.string()), ("s", pa.struct([("x", pa.int64())]))])
X, END = pc.field("x"), pc.field("end")


def test_a_tree_has_functions_columns_and_typed_values() -> None:
    tree = trees.read_expression((X + 1 > 3) & END.isin(["a", None]))
    assert isinstance(tree, Call)
    added, among = tree.arguments
    plus = Call("add_checked", (ColumnRef("x"), Literal(pa.scalar(1))))
    assert added == Call("greater", (plus, Literal(pa.scalar(3))))
    assert isinstance(among, Call) and among.options is not None
    assert among.options["value_set"].as_py() == ["a", None]
    assert conjuncts(tree) == (added, among)
    assert columns_of(tree) == {"x", "end"}


@pytest.mark.parametrize(
    "expression",
    [
        X,
        pc.scalar(1.5),
        pc.scalar(None) == X,
        pc.field("") == "",
        pc.field("end") == "literal",
        X.cast(pa.int32()) == 1,
        X.cast(pa.int32(), safe=False) == 1,
        X.is_null(nan_is_null=True) | ~X.is_valid(),
        X.isin([]),
        pc.is_in(X, value_set=pa.array([1, None]), skip_nulls=True),
        pc.field("at") < pc.scalar(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        pc.field("d") == Decimal("1.50"),
        pc.coalesce(X, pc.field("y"), 0) != X,
    ],
    ids=str,
)
def test_what_is_read_makes_the_same_expression_again(expression: pc.Expression) -> None:
    tree = trees.read_expression(expression)
    assert tree is not None
    assert trees._expression(tree).equals(expression)


@pytest.mark.parametrize(
    "expression",
    [pc.field("s", "x") > 1, pc.field(0) > 1, pc.starts_with(END, "a")],
    ids=["a member of a struct", "a column by number", "unknown options"],
)
def test_what_cannot_be_read_for_certain_is_none(expression: pc.Expression) -> None:
    assert trees.read_expression(expression) is None


def test_a_form_that_changed_is_noticed() -> None:
    """Of another version of Arrow, in which a node means something else."""
    values, told = trees._serialised(X > 3)
    turned = [(kind, b"less" if what == b"greater" else what) for kind, what in told]
    with mock.patch.object(trees, "_serialised", return_value=(values, turned)):
        assert trees.read_expression(X > 3) is None
    with mock.patch.object(trees, "_serialised", return_value=(values, told[:-1])):
        assert trees.read_expression(X > 3) is None


def test_columns_are_known_of_expressions_that_cannot_be_read_too() -> None:
    assert columns_read(pc.starts_with(END, "a") | (X > 1), SCHEMA) == {"x", "end"}
    assert columns_read(pc.field("s", "x") > 1, SCHEMA) == {"s", "x"}, "a member's name may be a column's, too"
    assert columns_read(pc.field(0) > 1, SCHEMA) is None
    assert columns_read(pc.scalar(1), SCHEMA) == frozenset()
    with mock.patch.object(trees, "_serialised", return_value=(None, [(b"field_ref", b"end")])):
        assert columns_read(X > 1, SCHEMA) is None, "a reference that was overlooked"


@pytest.mark.parametrize("name", ["x", "", "a.b", "`", "end", "é\n", "a\x00b"])
def test_names_of_any_characters_are_read(name: str) -> None:
    tree = trees.read_expression(pc.field(name) == 1)
    assert tree is None or columns_of(tree) == {name}
    if "\x00" not in name:
        assert tree is not None
