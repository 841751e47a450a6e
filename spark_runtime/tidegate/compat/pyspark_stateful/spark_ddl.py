"""Parses schemas in Spark's DDL, such as "count INT, tags ARRAY<STRING>", without a JVM, because slots have none."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import types as st

from tidegate.errors import PipelineError

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")
_SIMPLE: dict[str, Callable[[], st.DataType]] = {
    "boolean": st.BooleanType,
    "tinyint": st.ByteType,
    "byte": st.ByteType,
    "smallint": st.ShortType,
    "short": st.ShortType,
    "int": st.IntegerType,
    "integer": st.IntegerType,
    "bigint": st.LongType,
    "long": st.LongType,
    "float": st.FloatType,
    "real": st.FloatType,
    "double": st.DoubleType,
    "date": st.DateType,
    "timestamp": st.TimestampType,
    "timestamp_ltz": st.TimestampType,
    "timestamp_ntz": st.TimestampNTZType,
    "string": st.StringType,
    "binary": st.BinaryType,
}
_DECIMALS = ("decimal", "dec", "numeric")


def schema_of(schema: object, what: str, where: str) -> st.StructType:
    """Return the StructType, or parse DDL to one.

    Args:
        what: for errors, such as "outputStructType".

    Raises:
        PipelineError: it is neither, has no columns or a duplicate column, or contains an unknown type.
    """
    if isinstance(schema, str):
        schema = _Reader(schema, what, where).columns()
    if not isinstance(schema, st.StructType) or not schema.fields:
        given = f"{schema!r}" if isinstance(schema, st.StructType) else f"a {type(schema).__name__}"
        raise PipelineError(
            f"{what} is {given}, but must be a schema with columns",
            where=where,
            remedy='Pass a StructType, or DDL such as "count INT, name STRING"',
        )
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise PipelineError(
            f"{what} has two columns named {twice!r}", where=where, remedy="Use a different name for every column"
        )
    return schema


class _Reader:
    """Parses one text from left to right."""

    def __init__(self, text: str, what: str, where: str) -> None:
        self._text, self._what, self._where = text, what, where
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(f"{text[at:].strip()[:20]!r} is not valid at this place")
            self._tokens.append(found.group().strip())
            at = found.end()
        self._at = 0

    def columns(self) -> st.StructType:
        """Parse the whole text: names and types, separated by commas."""
        fields = self._fields("")
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at]!r} is not valid at this place")
        return st.StructType(fields)

    def _fields(self, end: str) -> list[st.StructField]:
        fields: list[st.StructField] = []
        while self._peek() != end:
            name = self._next()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not re.fullmatch(r"\w+", name):
                raise self._wrong(f"a column name is needed instead of {name!r}")
            if self._peek() == ":":
                self._next()
            type_, nullable = self._type(), True
            if self._peek() == "not":
                self._next()
                self._expect("null")
                nullable = False
            if self._peek() == "comment":
                self._next()
                self._next()
            fields.append(st.StructField(name, type_, nullable))
            if self._peek() != ",":
                break
            self._next()
        return fields

    def _type(self) -> st.DataType:
        word = self._next().lower()
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in _DECIMALS:
            sizes = self._numbers()
            return st.DecimalType(*sizes) if sizes else st.DecimalType()
        if word in ("varchar", "char", "character"):
            self._numbers()
            return st.StringType()
        if word == "array":
            self._expect("<")
            inner = self._type()
            self._expect(">")
            return st.ArrayType(inner)
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return st.MapType(key, value)
        if word == "struct":
            self._expect("<")
            fields = self._fields(">")
            self._expect(">")
            return st.StructType(fields)
        if word == "interval":
            return self._interval()
        raise self._wrong(f"{word!r} is not a known type" if word else "a type is missing at the end")

    def _interval(self) -> st.DataType:
        units = ("day", "hour", "minute", "second")
        first = last = self._next().lower()
        if self._peek() == "to":
            self._next()
            last = self._next().lower()
        if first not in units or last not in units or units.index(first) > units.index(last):
            raise self._wrong(f"'interval {first}' is not a known type")
        return st.DayTimeIntervalType(units.index(first), units.index(last))

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if self._peek() == "(":
            while self._next() != ")":
                word = self._next()
                if not word.isdecimal():
                    raise self._wrong(f"a number is needed instead of {word!r}")
                numbers.append(int(word))
                if self._peek() not in (",", ")"):
                    raise self._wrong("a parenthesis is not closed")
        return numbers

    def _peek(self) -> str:
        return self._tokens[self._at].lower() if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ""
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        found = self._next()
        if found.lower() != token:
            raise self._wrong(f"{token!r} is needed instead of {found!r}")

    def _wrong(self, cause: str) -> PipelineError:
        return PipelineError(
            f"{self._what} {self._text!r} cannot be parsed",
            where=self._where,
            cause=cause,
            remedy='Write columns as in "count INT, tags ARRAY<STRING>", or pass a StructType',
        )
