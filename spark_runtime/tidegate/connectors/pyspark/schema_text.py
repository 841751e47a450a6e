"""Schemas of PySpark as text, such as `id BIGINT, tags ARRAY<STRING>`, parsed without a JVM.

PySpark's own parser calls the JVM, and slots have none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import types as t

from tidegate.errors import PipelineError

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)*)`|'((?:[^'\\]|\\.)*)'|([A-Za-z_]\w*|\d+)|([<>(),:]))")
_SIMPLE: dict[str, Callable[[], t.DataType]] = {
    "boolean": t.BooleanType,
    "tinyint": t.ByteType,
    "byte": t.ByteType,
    "smallint": t.ShortType,
    "short": t.ShortType,
    "int": t.IntegerType,
    "integer": t.IntegerType,
    "bigint": t.LongType,
    "long": t.LongType,
    "float": t.FloatType,
    "real": t.FloatType,
    "double": t.DoubleType,
    "string": t.StringType,
    "binary": t.BinaryType,
    "date": t.DateType,
    "timestamp": t.TimestampType,
    "timestamp_ltz": t.TimestampType,
    "timestamp_ntz": t.TimestampNTZType,
}
_SIZED = ("char", "varchar", "character")
_DECIMALS = ("decimal", "dec", "numeric")
_DEFAULT_PRECISION = 10


def parse_schema(text: str, where: str) -> t.StructType:
    """Return the schema that a text describes: columns with their types, or one `STRUCT<...>`.

    Args:
        where: name of the data source, for the error.

    Raises:
        PipelineError: the text is no schema, or has a type that is not supported, such as an interval.
    """
    parser = _Parser(text, where)
    fields = parser.fields(end="")
    if not fields:
        parser.fail("it has no column")
    return t.StructType(fields)


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text.strip(), where
        self._at = 0
        # `STRUCT<a: INT>` is the same schema as `a INT`.
        if re.match(r"(?i)struct\s*<", self._text):
            self._take("struct")
            self._take("<")
            self._text = self._text[: self._at] + re.sub(r">\s*$", "", self._text[self._at :], count=1)

    def fields(self, end: str) -> list[t.StructField]:
        """Parse columns `name [:] type [NOT NULL] [COMMENT 'text']`, separated by commas, up to `end`."""
        found: list[t.StructField] = []
        while self._peek() not in (end, ""):
            if found:
                self._take(",")
            name = self._next()
            if self._peek() == ":":
                self._next()
            kind = self._type()
            nullable = True
            if self._peek() == "not":
                self._take("not")
                self._take("null")
                nullable = False
            if self._peek() == "comment":
                self._next()
                self._next()
            found.append(t.StructField(name, kind, nullable))
        return found

    def _type(self) -> t.DataType:
        name = self._next().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _DECIMALS:
            sizes = self._sizes()
            return t.DecimalType(sizes[0] if sizes else _DEFAULT_PRECISION, sizes[1] if len(sizes) > 1 else 0)
        if name in _SIZED:
            self._sizes()
            return t.StringType()
        made: t.DataType
        if name == "array":
            self._take("<")
            made = t.ArrayType(self._type())
        elif name == "map":
            self._take("<")
            key = self._type()
            self._take(",")
            made = t.MapType(key, self._type())
        elif name == "struct":
            self._take("<")
            made = t.StructType(self.fields(end=">"))
        else:
            self.fail(f"the type {name!r} is not supported")
        self._take(">")
        return made

    def _sizes(self) -> list[int]:
        if self._peek() != "(":
            return []
        self._take("(")
        sizes = [self._number()]
        while self._peek() == ",":
            self._take(",")
            sizes.append(self._number())
        self._take(")")
        return sizes

    def _number(self) -> int:
        token = self._next()
        return int(token) if token.isdigit() else self.fail(f"a number is expected, not {token!r}")

    def _peek(self) -> str:
        """Return the next token in lower case without taking it; "" at the end."""
        before = self._at
        token = self._next(required=False)
        self._at = before
        return token.lower()

    def _take(self, wanted: str) -> None:
        before = self._at
        if self._next(required=False).lower() != wanted:
            self._at = before
            self.fail(f"{wanted!r} is expected")

    def _next(self, *, required: bool = True) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            if required or self._text[self._at :].strip():
                self.fail("a name or a type is expected")
            return ""
        self._at = match.end()
        quoted, *others = match.groups()
        if quoted is not None:
            return quoted.replace("``", "`")
        return next(token for token in others if token is not None)

    def fail(self, why: str) -> NoReturn:
        """Raise the error for a text that is no schema."""
        raise PipelineError(
            f"the schema of {self._where} cannot be parsed",
            where=f"{self._text!r}, character {self._at}",
            cause=why,
            remedy="Pass schema= as a StructType or a pyarrow schema",
        )


def as_struct(schema: Any, where: str) -> t.StructType:
    """Return a text, a StructType or a pyarrow schema as a StructType. Raises PipelineError."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    if isinstance(schema, t.StructType):
        return schema
    if isinstance(schema, pa.Schema):
        struct: t.StructType = from_arrow_schema(schema)
        return struct
    if isinstance(schema, str):
        return parse_schema(schema, where)
    raise PipelineError(
        f"the schema of {where} is a {type(schema).__name__}",
        remedy="Return a StructType or a text such as 'id BIGINT, name STRING' from schema(), or pass schema=",
    )
