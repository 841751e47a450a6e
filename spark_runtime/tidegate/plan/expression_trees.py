"""Reads expressions of pyarrow.compute as trees.

Arrow exposes the parts of an expression only in its serialised form: the schema's metadata list the nodes in order, and
a row holds the values. That form is internal to Arrow. A tree is therefore returned only if the expression built from
it equals the original one; otherwise the result is None, and never a wrong tree.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
NULL_MATCHING = {0: False, 1: True}
"""Arrow's number of MATCH and SKIP for `is_in` -> `skip_nulls`."""
_STRICT = ("int_overflow", "time_truncate", "time_overflow", "decimal_truncate", "float_truncate", "invalid_utf8")


@dataclass(frozen=True)
class ColumnRef:
    """A reference to the column of this name."""

    name: str


@dataclass(frozen=True)
class Literal:
    """One value, with its type."""

    value: pa.Scalar


@dataclass(frozen=True)
class Call:
    """A call of an Arrow function. Attributes: options: its options by name, null if it has none."""

    function: str
    arguments: tuple[Tree, ...]
    options: pa.StructScalar | None = None


Tree: TypeAlias = ColumnRef | Literal | Call


def read_expression(expression: pc.Expression) -> Tree | None:
    """Return the tree of an expression; None: it has a part that cannot be read, such as a reference into a struct."""
    try:
        values, parts = _serialised(expression)
        tokens = iter(parts)
        tree = _tree(next(tokens), tokens, values)
        made = _expression(tree)
    except (pa.ArrowException, LookupError, ValueError, TypeError, AttributeError, StopIteration):
        return None
    return tree if made.equals(expression) else None


def conjuncts(tree: Tree) -> tuple[Tree, ...]:
    """Return the conditions that must all be true for the tree to be true."""
    if isinstance(tree, Call) and tree.function == "and_kleene":
        return tuple(part for argument in tree.arguments for part in conjuncts(argument))
    return (tree,)


def columns_of(tree: Tree) -> frozenset[str]:
    """Return the names of the tree's columns."""
    if isinstance(tree, ColumnRef):
        return frozenset([tree.name])
    return frozenset().union(*map(columns_of, tree.arguments)) if isinstance(tree, Call) else frozenset()


def columns_read(expression: pc.Expression, schema: pa.Schema) -> frozenset[str] | None:
    """Return the columns that an expression reads, also if its tree cannot be read; None: unknown.

    The columns are known if the expression is valid with these columns only.
    """
    # Here, because it imports pandas: the driver of a pipeline without expressions needs 24 MiB less.
    import pyarrow.acero as acero

    try:
        _, parts = _serialised(expression)
        names = {name.decode() for kind, name in parts if kind == b"field_ref"}
        fields = [field for field in schema if field.name in names]
        rows = pa.table([pa.nulls(0, field.type) for field in fields], names=[field.name for field in fields])
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
        project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
        acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    except (pa.ArrowException, LookupError, ValueError, TypeError):
        return None
    return frozenset(field.name for field in fields)


def _serialised(expression: pc.Expression) -> tuple[pa.RecordBatch, list[tuple[bytes, bytes]]]:
    """Return one row of values, and the nodes in order as (kind, content)."""
    # Pickling is the only access in Python to this form of an expression.
    with pa.ipc.open_file(expression.__reduce__()[1][0]) as reader:
        values = reader.get_batch(0)
    return values, list(_metadata(values.schema))


class _CSchema(ctypes.Structure):
    """Start of the ArrowSchema struct of Arrow's C data interface, which is stable."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> Iterator[tuple[bytes, bytes]]:
    """Yield all pairs in order, including duplicate keys, which the dict `schema.metadata` does not contain."""
    # The capsule owns the memory that is read below. It must stay referenced until the last read.
    capsule = schema.__arrow_c_schema__()
    pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    place = _CSchema.from_address(pointer(capsule, b"arrow_schema")).metadata
    if place is None:
        return

    def taken(size: int) -> bytes:
        nonlocal place
        assert place is not None
        found = ctypes.string_at(place, size)
        place += size
        return found

    def number() -> int:
        # The C data interface stores these numbers as int32, in native byte order and not aligned.
        return int(struct.unpack("=i", taken(4))[0])

    for _ in range(number()):
        key = taken(number())
        yield key, taken(number())


def _tree(token: tuple[bytes, bytes], tokens: Iterator[tuple[bytes, bytes]], values: pa.RecordBatch) -> Tree:
    kind, what = token
    if kind == b"field_ref":
        return ColumnRef(what.decode())
    if kind == b"literal":
        return Literal(values.column(int(what))[0])
    if kind != b"call":
        raise ValueError(f"the expression has a part of the unknown kind {kind!r}")
    arguments: list[Tree] = []
    options: pa.StructScalar | None = None
    while (token := next(tokens))[0] != b"end":
        if token[0] == b"options":
            options = values.column(int(token[1]))[0]
        else:
            arguments.append(_tree(token, tokens, values))
    return Call(what.decode(), tuple(arguments), options)


def _expression(tree: Tree) -> pc.Expression:
    """Return the expression of a tree. Raises an error that `read_expression` handles if it cannot be built."""
    if isinstance(tree, ColumnRef):
        return pc.field(tree.name)
    if isinstance(tree, Literal):
        return pc.scalar(tree.value)
    arguments = [_expression(argument) for argument in tree.arguments]
    options = tree.options
    if tree.function == "cast" and options is not None:
        return arguments[0].cast(options=pc.CastOptions(target_type(tree), **_cast_rules(options)))
    function: Any = getattr(pc, tree.function)
    if options is None:
        return function(*arguments)
    if tree.function == "is_in":
        skip_nulls = NULL_MATCHING[options["null_matching_behavior"].as_py()]
        return function(*arguments, value_set=options["value_set"].values, skip_nulls=skip_nulls)
    if tree.function == "is_null":
        return function(*arguments, nan_is_null=options["nan_is_null"].as_py())
    raise ValueError(f"the options of the function {tree.function} cannot be read")


def target_type(cast: Call) -> pa.DataType:
    """Return the target type of a call of `cast`."""
    assert cast.options is not None, "a cast has no options"
    return cast.options["to_type"].type


def is_strict(cast: Call) -> bool:
    """Return whether a cast changes no value and fails instead."""
    return cast.options is not None and not any(_cast_rules(cast.options).values())


def _cast_rules(options: pa.StructScalar) -> dict[str, bool]:
    return {f"allow_{rule}": options[f"allow_{rule}"].as_py() for rule in _STRICT}
