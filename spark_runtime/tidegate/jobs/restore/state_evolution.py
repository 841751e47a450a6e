"""Compares the columns of a state in a snapshot with the columns that a pipeline declares (S5.5). Pure; Arrow types are
text, so that a preflight needs no pyarrow.

Accepted changes: a new nullable column, which is null in old rows; a number, decimal or time of a wider type without
loss; a column renamed by an explicit mapping. Key columns (`key:`, `map:`) keep their number and order. Their type may
change only if the canonical bytes stay the same: other bytes would give other key groups (S5.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KEY_GROUP_COLUMN = "__key_group"
KEY_PREFIXES = ("key:", "map:")
VALUE_PREFIX = "value:"
TTL_COLUMN = "ttl_ms"

_INTEGERS = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_FLOATS = ("halffloat", "float", "double")
# `float` holds whole numbers of up to 24 bits exactly, `double` of up to 53 bits.
_EXACT_IN = {
    "float": frozenset({"int8", "int16", "uint8", "uint16"}),
    "double": frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32"}),
}
_DATES = ("date32[day]", "date64[ms]")
_TIMES = ("time32[s]", "time32[ms]", "time64[us]", "time64[ns]")
_UNITS = ("s", "ms", "us", "ns")
_DECIMAL = re.compile(r"decimal(\d+)\((\d+), (-?\d+)\)")
_INSTANT = re.compile(r"(timestamp|duration)\[(s|ms|us|ns)(, tz=[^\]]+)?\]")


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A column of a state; `type` is an Arrow type as text."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Evolution:
    """The way from old columns to new columns.

    Attributes:
        sources: for each new column the name of the old one; None: the new column is null.
        changes: descriptions of accepted changes; empty: there are none.
        refused: descriptions of changes that are not possible; empty: all are possible.
        dropped: old columns that are dropped.
    """

    sources: tuple[str | None, ...]
    changes: tuple[str, ...]
    refused: tuple[str, ...]
    dropped: tuple[str, ...] = ()


def evolution(
    old: Sequence[StateColumn],
    new: Sequence[StateColumn],
    renamed: Mapping[str, str] | None = None,
    *,
    fills: bool = True,
    drops: bool = False,
) -> Evolution:
    """Compare old and new columns.

    Args:
        renamed: old name -> new name, as users write them, without the prefix of the state's column. A rename that was
            applied already, or that concerns another state, is ignored.
        fills: a new nullable column may be filled with null.
        drops: a value column that is no longer declared may be dropped.
    """
    before = {column.name: column for column in old}
    becomes, refused = _renames(before, renamed or {})
    origin = {target: source for source, target in becomes.items()}
    wanted = {column.name for column in new}
    changes = [f"column {source!r} is renamed to {target!r}" for source, target in becomes.items() if target in wanted]
    gone = [name for name in before if becomes.get(name, name) not in wanted]
    dropped = [name for name in gone if drops and name.startswith(VALUE_PREFIX)]
    changes += [f"column {name!r} is no longer declared, and is dropped" for name in dropped]
    refused += [f"column {name!r} is no longer declared" for name in gone if name not in dropped]
    sources: list[str | None] = []
    for column in new:
        source = origin.get(column.name, column.name)
        found = before.get(source)
        sources.append(source if found is not None else None)
        if found is None:
            reason = _cannot_be_filled(column, fills, keyed=KEY_GROUP_COLUMN in wanted)
            (refused if reason else changes).append(
                reason or f"column {column.name!r} is new, and null in restored rows"
            )
        elif found.type != column.type:
            may = is_wider_key(found.type, column.type) if is_key(column.name) else is_wider(found.type, column.type)
            text = f"column {column.name!r} was {found.type}, now {column.type}"
            (changes if may else refused).append(text)
    keys = [becomes.get(column.name, column.name) for column in old if is_key(column.name)]
    if not refused and keys != [column.name for column in new if is_key(column.name)]:
        refused.append("the key columns have another order")
    return Evolution(tuple(sources), tuple(changes), tuple(refused), tuple(dropped))


def is_key(name: str) -> bool:
    """Return whether a state's column is one of its keys."""
    return name == KEY_GROUP_COLUMN or name.startswith(KEY_PREFIXES)


def is_wider(old: str, new: str) -> bool:
    """Return whether type `new` holds every value of type `old`. With a finer time unit, every value in its range."""
    if is_wider_key(old, new):
        return True
    # Not for keys: the canonical bytes of whole numbers and of floats have different type tags (S5.1).
    return old in _EXACT_IN.get(new, ())


def is_wider_key(old: str, new: str) -> bool:
    """Return whether `is_wider` holds and the canonical bytes of keys stay the same (S5.1)."""
    for ladder in (_INTEGERS, _UNSIGNED, _FLOATS, _DATES, _TIMES):
        if old in ladder and new in ladder:
            return ladder.index(old) < ladder.index(new)
    was, now = _INSTANT.fullmatch(old), _INSTANT.fullmatch(new)
    if was and now:
        return was[1] == now[1] and was[3] == now[3] and _UNITS.index(was[2]) < _UNITS.index(now[2])
    was, now = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if was and now:
        return int(was[1]) <= int(now[1]) and int(was[2]) <= int(now[2]) and was[3] == now[3] and old != new
    return False


def _renames(before: Mapping[str, StateColumn], renamed: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the renamed columns, old -> new, and descriptions of renames that are not possible."""
    becomes: dict[str, str] = {}
    refused: list[str] = []
    for name in before:
        prefix, colon, base = name.partition(":")
        target = renamed.get(name)
        # The prefix is `key:`, `map:`, `value:`, or the name of an aggregate. Any package may register an aggregate, so
        # the prefixes cannot be listed here.
        if target is None and colon and prefix.isidentifier() and base in renamed:
            target = f"{prefix}:{renamed[base]}"
        if target is None:
            continue
        if target in before:
            refused.append(f"column {name!r} is renamed to {target!r}, but the snapshot has both columns")
        elif target in becomes.values():
            refused.append(f"two columns are renamed to {target!r}")
        else:
            becomes[name] = target
    return becomes, refused


def _cannot_be_filled(column: StateColumn, fills: bool, keyed: bool) -> str:
    if keyed and column.name == TTL_COLUMN:  # a row with null would expire at once
        return f"the TTL is new (column {column.name!r}), and the snapshot does not contain when rows were last used"
    if is_key(column.name):
        return f"key column {column.name!r} is new"
    if not column.nullable:
        return f"column {column.name!r} is new and not nullable"
    return "" if fills else f"column {column.name!r} is new"
