"""Instructions of the programs by which kernels read and write Avro.

Compiled kernels contain these numbers. `tidegate.state.numba_kernels` compiles them again if this file changes, because
it names that module.

A program is an int64 array. An instruction is `WIDTH` words of it::

    op       what to read or write
    store    how to store what was read, or where to find what is written
    out      number of the output, or of the input of an encoder; -1: none, the value is skipped
    null     how the union around the value is written
    a, b     operands
    next     the instruction that follows; also the one that follows a null
    domain   numbers the values of `out`: 0 is the records, others are the elements of one list

Values of `op`::

    END         the record is complete
    JUMP        continue at `next`
    ERROR       refuse the record for the reason `a`
    UNION       read the number of one of `b` branches, and continue at entry a + branch of the tables
    VALID       mark a record or a member of a union as valid, and continue with the words after this instruction
    LIST_BEGIN  begin a list, whose body is at `a`, and whose elements are the domain `b`
    LIST_NEXT   end of the body of a list, with the same operands
    INT         a number of 32 bits
    LONG        a number of 64 bits
    SIZED       a length, and as many bytes
    FIXED       `a` bytes

Values of `store`::

    INT32       a number in 4 bytes
    INT64       a number in 8 bytes, multiplied by `b`
    FLOAT32     a number as a float of 4 bytes
    FLOAT64     a number as a float of 8 bytes
    SYMBOL      entry a + number of the tables, one of `b` symbols, in 4 bytes
    RANGE       the place of the bytes in the data in 8 bytes, and their length in the next output
    COPY        the bytes
    BOOLEAN     a byte that is 0 or 1
    WIDENED     a float of 4 bytes as one of 8 bytes
    DECIMAL     a big-endian number in `b` bytes, little endian

Values of `null`::

    PLAIN       no union, and the column has no nulls
    NULL_FIRST  a union of null and the type
    NULL_SECOND a union of the type and null
    ALWAYS      no union, but the column can have nulls
"""

from __future__ import annotations

WIDTH = 8

END, JUMP, ERROR, UNION, VALID, LIST_BEGIN, LIST_NEXT, INT, LONG, SIZED, FIXED = range(11)
FIRST_VALUE = INT
"""This op and the ones after it read or write one value."""
NOTHING, INT32, INT64, FLOAT32, FLOAT64, SYMBOL, RANGE, COPY, BOOLEAN, WIDENED, DECIMAL = range(11)
PLAIN, NULL_FIRST, NULL_SECOND, ALWAYS = range(4)

TRUNCATED, BAD_NUMBER, BAD_BRANCH, BAD_BOOLEAN, BAD_SYMBOL, BAD_LENGTH = range(1, 7)
BAD_DECIMAL, TRAILING, TOO_MANY, UNRESOLVED, NULL_REFUSED, OVERFLOW, BAD_TIME = range(7, 14)
REASONS = {
    TRUNCATED: "the record ends before its last field",
    BAD_NUMBER: "an integer is longer than its type",
    BAD_BRANCH: "the number of a branch is not in its union",
    BAD_BOOLEAN: "a boolean is neither 0 nor 1",
    BAD_SYMBOL: "an enum has a symbol that the schema does not declare, and no default",
    BAD_LENGTH: "a length is negative, or reaches beyond the end of the record",
    BAD_DECIMAL: "a decimal has no bytes, or too many digits",
    TRAILING: "bytes follow the last field of the record",
    TOO_MANY: "a list has more elements than the record can hold",
    UNRESOLVED: "a union has a type that the reader's schema does not accept",
    NULL_REFUSED: "a field is null that the reader's schema does not allow to be null",
    BAD_TIME: "a time of day is not within a day",
    OVERFLOW: "a time does not fit the unit of the reader's schema",
}
"""Reasons for which a record is refused."""
