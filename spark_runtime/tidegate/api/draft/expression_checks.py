"""Checks expressions when the pipeline is built, on a row of nulls, so that errors do not wait for data."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.api.draft.column_checks import missing_column, nearest
from tidegate.change_rows import only_role
from tidegate.errors import PipelineError

_NOT_FOUND = re.compile(r"^No match for FieldRef\.(?P<reference>.*) in ", re.MULTILINE)
_NARROW_DECIMAL = re.compile(r"Precision is not great enough for the result. It should be at least (?P<precision>\d+)")
_DECIMAL = re.compile(r"to_type=(?P<kind>decimal\d+)\((?P<precision>\d+), (?P<scale>-?\d+)\)")
_CALLED = re.compile(r"(\w+)\(")
MAX_DECIMAL128 = 38
"""Digits."""
_NAME = re.compile(r"Name\((?P<name>.*?)\)(?= FieldRef|\)?$)")


def require_expression(value: object, where: str) -> pc.Expression:
    """Return `value` if it is an expression. Raises PipelineError otherwise."""
    if isinstance(value, pc.Expression):
        return value
    got = f"{value!r}" if isinstance(value, str | int | float | bool | None) else type(value).__name__
    remedy = f"Write pc.field({value!r}) for the column" if isinstance(value, str) else f"Write pc.scalar({got})"
    if not isinstance(value, str | int | float):
        remedy = "Build it from pyarrow.compute: pc.field, pc.scalar and functions of them"
    raise PipelineError(
        f"an expression of pyarrow.compute is needed, but the value is {got}", where=where, remedy=remedy
    )


def result_fields(columns: Sequence[tuple[str, pc.Expression]], schema: pa.Schema, where: str) -> tuple[pa.Field, ...]:
    """Return name and type of each expression over `schema`. An unchanged column keeps its null constraint.

    Raises:
        PipelineError: a column is missing, types do not fit, or an aggregate is used instead of a value per row.
    """
    fields = []
    for name, expression in columns:
        source = passed_column(expression, schema)
        if source is not None:
            fields.append(only_role(schema.field(source).with_name(name)))
        else:
            fields.append(pa.field(name, _result_type(name, expression, schema, where)))
    return tuple(fields)


def require_boolean(expression: pc.Expression, schema: pa.Schema, where: str) -> None:
    """Raise PipelineError if the expression cannot be a filter over `schema`."""
    ((_, type_),) = ((f.name, f.type) for f in result_fields((("filter", expression),), schema, where))
    if not pt.is_boolean(type_):
        raise PipelineError(
            f"a filter must return true or false, but {expression} returns {type_}",
            where=where,
            remedy='Compare it with a value, as in pc.field("delay") > 0, or use .is_valid()',
        )


def passed_column(expression: pc.Expression, schema: pa.Schema) -> str | None:
    """Return the column's name if the expression is only a column, else None."""
    text = str(expression)
    # The text alone proves nothing: a literal such as `true` prints like a column of this name.
    if text in schema.names and expression.equals(pc.field(text)):
        return text
    return None


def _result_type(name: str, expression: pc.Expression, schema: pa.Schema, where: str) -> pa.DataType:
    # Here, because it imports pandas, which drivers of pipelines without expressions do not need.
    import pyarrow.acero as acero

    row = pa.table([pa.nulls(1, f.type) for f in schema], names=schema.names)
    try:
        made = acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(row)),
                acero.Declaration("project", acero.ProjectNodeOptions([expression], [name])),
            ]
        ).to_table(use_threads=False)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise _explained(str(error), expression, schema, where) from error
    type_ = made.schema.field(0).type
    if pt.is_null(type_):
        raise PipelineError(
            f"the result of {expression} has no type",
            where=where,
            cause="every value is an untyped null",
            remedy="Cast the null to a type: pc.scalar(None).cast(pa.string())",
        )
    return type_


def _explained(message: str, expression: pc.Expression, schema: pa.Schema, where: str) -> PipelineError:
    found = _NOT_FOUND.search(message)
    if found is not None:
        names = [m["name"] for m in _NAME.finditer(found["reference"])]
        if names and names[0] not in schema.names:
            return missing_column(schema, names[0], where)
        if len(names) > 1:
            return _missing_member(names, schema, where)
        return PipelineError(
            f"the expression {expression} refers to a column that does not exist",
            where=where,
            cause=f"the columns are {', '.join(schema.names)}",
            remedy="Refer to one of these columns by name, as in pc.field('delay')",
        )
    needed = _NARROW_DECIMAL.search(message)
    if needed is not None:
        return _too_narrow(int(needed["precision"]), expression, where)
    if "non-scalar" in message:
        vector = next((name for name in _CALLED.findall(str(expression)) if _kind(name) == "vector"), None)
        if vector is not None:
            return PipelineError(
                f"the expression {expression} does not return one value for each row",
                where=where,
                cause=f"{vector} works on a whole column, and may return more or fewer values than there are rows",
                remedy=f"Call {vector} in a function of record batches: .map_in_arrow(function, schema=...)"
                + (", with pc.list_parent_indices for the other columns" if vector == "list_flatten" else ""),
            )
        return PipelineError(
            f"the expression {expression} is an aggregate, but one value for each row is needed",
            where=where,
            remedy="Aggregate with .group_by(...).window(...).agg(...)",
        )
    return PipelineError(
        f"the expression {expression} does not fit the types of the columns",
        where=where,
        cause=message.splitlines()[0],
        remedy="Cast to types that fit, as in pc.field('delay').cast(pa.float64())",
    )


def _kind(function: str) -> str:
    try:
        return str(pc.get_function(function).kind)
    except KeyError:
        return ""


def _too_narrow(needed: int, expression: pc.Expression, where: str) -> PipelineError:
    """Return the error for integers cast to a decimal that is too narrow for their type."""
    target = next((m for m in _DECIMAL.finditer(str(expression)) if int(m["precision"]) < needed), None)
    if target is None:
        return PipelineError(
            f"the decimal type in {expression} has too few digits for the integers",
            where=where,
            remedy=f"Cast to a decimal with at least {needed} digits",
        )
    kind, precision, scale = target["kind"], target["precision"], target["scale"]
    wide = "decimal128" if needed <= MAX_DECIMAL128 else "decimal256"
    return PipelineError(
        f"the integers in {expression} may not fit {kind}({precision}, {scale})",
        where=where,
        cause=f"the largest integer of their type needs {needed} digits, {scale} of them after the point",
        remedy=f"Use {needed} digits; or, if your values are smaller, cast twice: "
        f".cast(pa.{wide}({needed}, {scale})).cast(pa.{kind}({precision}, {scale})). Then a larger value fails the job",
    )


def _missing_member(names: Sequence[str], schema: pa.Schema, where: str) -> PipelineError:
    type_ = schema.field(names[0]).type
    path = names[0]
    for name in names[1:]:
        members = [type_.field(i).name for i in range(type_.num_fields)] if pt.is_struct(type_) else []
        if name not in members:
            near = nearest(name, members)
            return PipelineError(
                f"column {path!r} has no member {name!r}" + (f", did you mean {near!r}?" if near else ""),
                where=where,
                cause=f"the type of {path!r} is {type_}",
                remedy=f"Use one of {', '.join(members)}"
                if members
                else "Refer to a column of type struct, which has members",
            )
        type_, path = type_.field(name).type, f"{path}.{name}"
    return missing_column(schema, names[0], where)
