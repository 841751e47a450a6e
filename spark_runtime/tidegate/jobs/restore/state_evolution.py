"""Whether the columns of a state in a snapshot can become those that a pipeline declares, and how (S5.5). Pure; types
are Arrow's as text, so that a preflight needs no pyarrow.

What works: a new nullable column, which the old rows have null in; a number, decimal or time that becomes wider without
loss; a column renamed by an explicit mapping. Key columns (`key:`, `map:`) keep their number and order, and become only
as wide as leaves their canonical bytes the same, or their key groups would be others (S5.1).
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
    """A column of a state; `type` is Arrow's as text."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Evolution:
    """From old columns to new ones.

    Attributes:
        sources: for each new column the name of the old one; None: its rows are null.
        changes: what changes, in words; empty: nothing.
        refused: what cannot be, in words; empty: it can.
        dropped: old columns that are left behind.
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
    """How `old` becomes `new`.

    Args:
        renamed: old name -> new name, as the user knows them, without the prefix of a state's column. One that has been
            applied, or that concerns another state, is passed over.
        fills: whether a new nullable column may be filled with null.
        drops: whether a value column that is gone may be left behind.
    """
    before = {column.name: column for column in old}
    becomes, refused = _renames(before, renamed or {})
    origin = {target: source for source, target in becomes.items()}
    wanted = {column.name for column in new}
    changes = [f"{source!r} is now {target!r}" for source, target in becomes.items() if target in wanted]
    gone = [name for name in before if becomes.get(name, name) not in wanted]
    dropped = [name for name in gone if drops and name.startswith(VALUE_PREFIX)]
    changes += [f"{name!r} is no longer there, and dropped" for name in dropped]
    refused += [f"{name!r} is no longer there" for name in gone if name not in dropped]
    sources: list[str | None] = []
    for column in new:
        source = origin.get(column.name, column.name)
        found = before.get(source)
        sources.append(source if found is not None else None)
        if found is None:
            reason = _cannot_be_filled(column, fills, keyed=KEY_GROUP_COLUMN in wanted)
            (refused if reason else changes).append(reason or f"{column.name!r} is new, null in what is restored")
        elif found.type != column.type:
            may = is_wider_key(found.type, column.type) if is_key(column.name) else is_wider(found.type, column.type)
            text = f"{column.name!r} was {found.type}, now {column.type}"
            (changes if may else refused).append(text)
    keys = [becomes.get(column.name, column.name) for column in old if is_key(column.name)]
    if not refused and keys != [column.name for column in new if is_key(column.name)]:
        refused.append("its key columns have another order")
    return Evolution(tuple(sources), tuple(changes), tuple(refused), tuple(dropped))


def is_key(name: str) -> bool:
    """Whether a state's column is one of its keys."""
    return name == KEY_GROUP_COLUMN or name.startswith(KEY_PREFIXES)


def is_wider(old: str, new: str) -> bool:
    """Whether every value of type `old` is one of type `new`; with times of a finer unit every one in its range."""
    if is_wider_key(old, new):
        return True
    return old in _EXACT_IN.get(new, ())


def is_wider_key(old: str, new: str) -> bool:
    """Like `is_wider`, and the canonical bytes of keys stay the same (S5.1)."""
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
    """Old column -> new column, and what of it cannot be."""
    becomes: dict[str, str] = {}
    refused: list[str] = []
    for name in before:
        prefix, colon, base = name.partition(":")
        target = renamed.get(name)
        # `key:`, `map:`, `value:`, or the name of an aggregate, which any package may register: so there is no list.
        if target is None and colon and prefix.isidentifier() and base in renamed:
            target = f"{prefix}:{renamed[base]}"
        if target is None:
            continue
        if target in before:
            refused.append(f"{name!r} is to become {target!r}, and the snapshot has both")
        elif target in becomes.values():
            refused.append(f"two columns are to become {target!r}")
        else:
            becomes[name] = target
    return becomes, refused


def _cannot_be_filled(column: StateColumn, fills: bool, keyed: bool) -> str:
    if keyed and column.name == TTL_COLUMN:  # with null every row would be over
        return f"its TTL is new ({column.name!r}), and when its rows were used last is not known"
    if is_key(column.name):
        return f"{column.name!r} is new"
    if not column.nullable:
        return f"{column.name!r} is new and not nullable"
    return "" if fills else f"{column.name!r} is new"
