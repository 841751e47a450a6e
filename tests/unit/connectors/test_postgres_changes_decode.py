"""Decoding of logical replication and of PostgreSQL's texts; no server."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.change_rows import change_kind_field
from tidegate.connectors.interface import SourceContext
from tidegate.connectors.postgres.copy_columns import TargetColumn
from tidegate.connectors.postgres.source import change_batches as cb
from tidegate.connectors.postgres.source.change_assembler import ChangeAssembler
from tidegate.connectors.postgres.source.change_check import ChangeOptions
from tidegate.connectors.postgres.source.column_values import arrow_type, column_of
from tidegate.connectors.postgres.source.handover import (
    ChangePosition,
    DatabaseState,
    Piece,
    lsn_of,
    lsn_text,
)
from tidegate.connectors.postgres.source.pgoutput import Relation, row_messages
from tidegate.connectors.postgres.source.slots import Slot, SlotOwner
from tidegate.connectors.postgres.source.source_table import TableName
from tidegate.connectors.postgres.source.table_copy import parsed_rows
from tidegate.errors import DataError, PipelineError, SnapshotError

COLUMNS = 2
SCHEMA = pa.schema([change_kind_field(), pa.field("k", pa.string(), nullable=False), pa.field("v", pa.string())])
UNCHANGED = "\x00unchanged"
RELATION, PARTITION = 7, 8
texts = st.text(max_size=6)
rows = st.tuples(texts, st.none() | texts)


def tuple_of(values: Any) -> bytes:
    parts = [struct.pack("!H", len(values))]
    for value in values:
        if value is None or value == UNCHANGED:
            parts.append(b"n" if value is None else b"u")
        else:
            parts.append(b"t" + struct.pack("!I", len(value.encode())) + value.encode())
    return b"".join(parts)


def insert(new: Any) -> bytes:
    return b"I" + struct.pack("!I", RELATION) + b"N" + tuple_of(new)


def update(new: Any, old: Any = None, kind: bytes = b"") -> bytes:
    return b"U" + struct.pack("!I", RELATION) + (kind + tuple_of(old) if kind else b"") + b"N" + tuple_of(new)


def delete(old: Any, kind: bytes = b"K") -> bytes:
    return b"D" + struct.pack("!I", RELATION) + kind + tuple_of(old)


def begin(commit_lsn: int, xid: int = 1) -> bytes:
    return b"B" + struct.pack("!QQI", commit_lsn, 0, xid)


def commit(commit_lsn: int) -> bytes:
    return b"C" + struct.pack("!BQQQ", 0, commit_lsn, commit_lsn + 10, 0)


def relation(names: tuple[str, ...] = ("k", "v"), table: str = "t") -> bytes:
    columns = b"".join(bytes([name == "k"]) + name.encode() + b"\0" + struct.pack("!Ii", 25, -1) for name in names)
    head = b"R" + struct.pack("!I", RELATION) + b"public\0" + table.encode() + b"\0d"
    return head + struct.pack("!H", len(names)) + columns


changes = st.one_of(
    st.tuples(st.just("insert"), rows),
    st.tuples(st.just("update"), rows),
    st.tuples(st.just("move"), rows, texts),
    st.tuples(st.just("whole"), rows, rows),
    st.tuples(st.just("delete"), texts),
    st.tuples(st.just("delete_whole"), rows),
)


def message_of(change: Any) -> bytes:
    kind, *values = change
    if kind == "insert":
        return insert(values[0])
    if kind == "update":
        return update(values[0])
    if kind == "move":
        return update(values[0], (values[1], None), b"K")
    if kind == "whole":
        return update(values[0], values[1], b"O")
    return delete((values[0], None)) if kind == "delete" else delete(values[0], b"O")


def expected(change: Any) -> list[tuple[str, Any, Any]]:
    kind, *values = change
    if kind in ("insert", "update"):
        return [("insert" if kind == "insert" else "update_after", *values[0])]
    if kind == "move" or (kind == "whole" and values[0][0] != values[1][0]):
        old = (values[1], None) if kind == "move" else values[1]
        return [("delete", *old), ("insert", *values[0])]
    if kind == "whole":
        return [("update_before", *values[1]), ("update_after", *values[0])]
    return [("delete", *((values[0], None) if kind == "delete" else values[0]))]


def listed(batch: pa.RecordBatch | None) -> list[tuple[Any, ...]]:
    return [] if batch is None else [tuple(row.values()) for row in batch.to_pylist()]


@given(st.lists(changes, min_size=1, max_size=20))
def test_messages_of_every_shape_are_their_rows_in_order(given_changes: list[Any]) -> None:
    found = cb.with_old_values(row_messages([message_of(change) for change in given_changes], COLUMNS))
    batch = cb.change_batch(found, cb.rows_of(found, [0]), {"k": 0, "v": 1}, SCHEMA, "change_kind", "t")
    assert listed(batch) == [row for change in given_changes for row in expected(change)]


def test_an_unchanged_value_comes_from_the_old_row_and_is_missing_without_it() -> None:
    found = cb.with_old_values(
        row_messages([update(("a", UNCHANGED), ("a", "old"), b"O"), update(("b", UNCHANGED))], COLUMNS)
    )
    made = cb.rows_of(found, [0])
    assert cb.missing_values(found, made, [0, 1]).tolist() == [[False, False], [False, False], [False, True]]


def test_messages_with_another_number_of_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="another number of columns"):
        row_messages([insert(("a", "b", "c"))], COLUMNS)


class Access:
    """Without a server: two pieces, keys up to "m" and the others."""

    def is_part(self, found: Relation) -> bool:
        return found.oid in (RELATION, PARTITION)

    def places(self, found: Relation) -> dict[str, int]:
        return {column.name: place for place, column in enumerate(found.columns)}

    def pieces(self, keys: Any, pieces: Any) -> list[int]:
        assert len(pieces) == 2
        return [0 if (key or "") <= "m" else 1 for key in keys[0]]

    def fetch(self, keys: Any, columns: Any) -> list[tuple[int, tuple[str | None, ...]]]:
        return [(place, ("fetched",)) for place, key in enumerate(keys[0]) if key != "gone"]


def at(lsn: int = 1, **parts: Any) -> ChangePosition:
    return ChangePosition("s", lsn, table_oid=RELATION, **parts)


def assembler(position: ChangePosition, **options: Any) -> ChangeAssembler:
    table = TableName("public", "t")
    return ChangeAssembler(position, table, ["k"], SCHEMA, ChangeOptions(**options), Access(), "t", lambda *_: None)


def played(position: ChangePosition, messages: list[bytes], **options: Any) -> tuple[list[Any], ChangePosition]:
    made = assembler(position, **options)
    found = []
    for message in messages:
        arrived = made.add(message)
        found += listed(arrived.batch) if arrived else []
    arrived = made.flush()
    return found + (listed(arrived.batch) if arrived else []), made.position


def of_partition(message: bytes) -> bytes:
    """The same message, of a partition with another layout: it has the full replica identity."""
    head = message[:1] + struct.pack("!I", PARTITION)
    return head + (message[5:].replace(b"\0d", b"\0f", 1) if message[:1] == b"R" else message[5:])


@given(st.lists(st.lists(st.tuples(changes, st.booleans()), max_size=4), max_size=5), st.data())
def test_a_restore_after_any_message_gives_the_rest(transactions: list[list[Any]], data: st.DataObject) -> None:
    """S4.2: the server sends the transaction of the position again, from its begin. Also with changes of partitions."""
    described = [relation(), of_partition(relation())]
    stream: list[list[bytes]] = [
        [
            begin(100 * n),
            *described,
            *(of_partition(message_of(one)) if is_other else message_of(one) for one, is_other in found),
            commit(100 * n),
        ]
        for n, found in enumerate(transactions, 1)
    ]
    flat = [message for messages in stream for message in messages]
    whole, end = played(at(), flat)
    cut = data.draw(st.integers(0, len(flat)))
    before, position = played(at(), flat[:cut])
    position = ChangePosition.from_json(position.to_json())
    again = [m for n, messages in enumerate(stream, 1) if 100 * n >= position.lsn for m in messages]
    after, reached = played(position, again)
    assert before + after == whole
    assert (reached.lsn, reached.rows) == (end.lsn, end.rows)


def test_changes_of_partitions_make_one_batch_if_their_columns_are_equal() -> None:
    same = relation()[:1] + struct.pack("!I", PARTITION) + relation()[5:]
    other = insert(("b", "2"))[:1] + struct.pack("!I", PARTITION) + insert(("b", "2"))[5:]
    for described, batches in ((same, 1), (of_partition(relation()), 3)):
        made = assembler(at())
        found = [made.add(one) for one in (begin(9), relation(), described)]
        found += [made.add(one) for one in (insert(("a", "1")), other, insert(("c", "3")))] + [made.flush()]
        arrived = [one.batch for one in found if one is not None]
        assert len(arrived) == batches
        assert [row[1] for batch in arrived for row in listed(batch)] == ["a", "b", "c"]


def test_a_stream_that_lacks_the_transaction_of_the_position_fails() -> None:
    with pytest.raises(SnapshotError, match="is not sent again"):
        played(at(commit_lsn=100, index=2), [begin(200), relation(), insert(("a", "b"))])
    with pytest.raises(SnapshotError, match="fewer changes"):
        played(at(commit_lsn=100, index=2), [begin(100), relation(), insert(("a", "b")), commit(100)])


def test_changes_that_the_copy_contains_are_left_out_key_by_key() -> None:
    first, second = DatabaseState.of("10:10:"), DatabaseState.of("10:20:15")
    pieces = (Piece(("m",), first, 500), Piece(None, second, 600))
    position = at(begun=first, copied=pieces)
    messages = [
        *(begin(300, 12), relation(), insert(("a", "emitted")), insert(("z", "copied"))),
        *(
            update(("z", "to the copied part"), ("a", None), b"K"),
            update(("b", "back"), ("y", None), b"K"),
            commit(300),
        ),
        *(begin(310, 15), update(("z", "was running")), commit(310)),
        *(begin(700, 5), insert(("z", "after the hand-over")), commit(700)),
    ]
    found, end = played(position, messages)
    assert found == [
        ("insert", "a", "emitted"),
        ("delete", "a", None),
        ("insert", "b", "back"),
        ("update_after", "z", "was running"),
        ("insert", "z", "after the hand-over"),
    ]
    assert end.copied == () and end.begun is None


def test_updates_without_a_large_value_are_completed_or_left_out_or_refused() -> None:
    messages = [begin(9), relation(), update(("a", UNCHANGED)), update(("gone", UNCHANGED)), insert(("c", "d"))]
    found, _ = played(at(), messages, missing_values="fetch")
    assert found == [("update_after", "a", "fetched"), ("insert", "c", "d")]
    with pytest.raises(PipelineError, match="REPLICA IDENTITY FULL"):
        played(at(), messages)


@given(st.integers(0, 2**64 - 1))
def test_lsns_are_read_as_they_are_written(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn


@given(st.integers(2**31, 2**34), st.integers(-(2**31) + 1, 2**31 - 1))
def test_transaction_ids_of_32_bits_are_seen_over_epochs(following: int, distance: int) -> None:
    state = DatabaseState(0, following, frozenset([following - 3]))
    whole = following + distance
    assert state.sees(whole % 2**32) == (whole < following and whole != following - 3)


def test_a_state_contains_an_earlier_one_unless_a_transaction_is_hidden() -> None:
    earlier = DatabaseState.of("10:20:12,15")
    assert DatabaseState.of("12:30:12,25").contains(earlier)
    assert not DatabaseState.of("11:30:11").contains(earlier), "11 was committed, and waits for a standby"
    assert not DatabaseState.of("10:19:").contains(earlier)


TYPED = [
    (pa.int64(), ["-9223372036854775808", None], [-(2**63), None]),
    (pa.bool_(), ["t", "f", None], [True, False, None]),
    (pa.binary(), ["\\x", None, "\\x00ff"], [b"", None, b"\x00\xff"]),
    (pa.decimal128(10, 2), ["1.50", None], [Decimal("1.50"), None]),
    (pa.float32(), ["Infinity", "-0.5"], [float("inf"), -0.5]),
]


@pytest.mark.parametrize(("kind", "given_texts", "values"), TYPED)
def test_texts_become_values(kind: pa.DataType, given_texts: list[Any], values: list[Any]) -> None:
    array = pa.array(given_texts, pa.string())
    assert column_of(array, pa.field("c", kind), "t").to_pylist() == values
    assert column_of(array.slice(1), pa.field("c", kind), "t").to_pylist() == values[1:]


def test_intervals_and_times_become_microseconds() -> None:
    intervals = pa.array(["1 day -02:03:04.5", "-1 days +00:00:01", "00:00:00", "34:17:36.789", None, "2 days"])
    found = column_of(intervals, pa.field("c", pa.duration("us")), "t").cast(pa.int64()).to_pylist()
    day = 86_400_000_000
    assert found == [day - 7_384_500_000, 1_000_000 - day, 0, 123_456_789_000, None, 2 * day]
    times = column_of(pa.array(["00:00:01.5", None]), pa.field("c", pa.time64("us")), "t")
    assert times.cast(pa.int64()).to_pylist() == [1_500_000, None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.duration("us"), "1 mon"),
        (pa.timestamp("us"), "infinity"),
        (pa.date32(), "0044-03-15 BC"),
        (pa.decimal128(4, 2), "NaN"),
        (pa.decimal128(4, 2), "1234.5"),
    ],
)
def test_values_without_a_counterpart_are_refused_by_the_name_of_the_column(kind: pa.DataType, text: str) -> None:
    with pytest.raises(DataError, match="a value of column 'c' does not fit") as caught:
        column_of(pa.array([text]), pa.field("c", kind), "t")
    assert text not in str(caught.value)


@given(st.lists(st.tuples(st.text(max_size=5), st.none() | st.text(max_size=8)), min_size=1, max_size=10))
def test_rows_of_copy_are_read_as_they_are_written(given_rows: list[tuple[str, str | None]]) -> None:
    def field(text: str | None) -> str:
        return "" if text is None else '"' + text.replace('"', '""') + '"'

    data = "".join(f"{field(key)},{field(text)}\n" for key, text in given_rows).encode()
    found = parsed_rows(data, 1, pa.schema([("v", pa.string())]), "t")
    assert found.batch.column(0).to_pylist() == [text for _, text in given_rows]
    assert found.last == (given_rows[-1][0],)


@pytest.mark.parametrize(
    ("base", "category", "modifier", "kind"),
    [
        ("numeric", "N", ((10 << 16) | 2) + 4, pa.decimal128(10, 2)),
        ("numeric", "N", ((50 << 16) | 4) + 4, pa.decimal256(50, 4)),
        ("numeric", "N", -1, None),
        ("numeric", "N", ((2 << 16) | 0x7FE) + 4, None),
        ("uuid", "U", -1, pa.string()),
        ("bytea", "U", -1, pa.binary()),
        ("point", "G", -1, None),
        ("timestamptz", "D", -1, pa.timestamp("us", "UTC")),
    ],
)
def test_types_have_one_counterpart_or_none(base: str, category: str, modifier: int, kind: Any) -> None:
    column = TargetColumn("c", base, base, category, modifier, "", required=False, filled=False, always_filled=False)
    assert arrow_type(column) == kind


def test_slots_have_names_by_job_lineage_and_source() -> None:
    """S7.4: of a fork another one, and of all attempts of a fresh start the same one."""

    def owner(job: str = "Orders 2024", uid: str = "in", lineage: str = "l", run_id: str = "r1") -> SlotOwner:
        return SlotOwner.of(SourceContext(uid, 0, 1, lambda: None, job, lineage, 3, run_id))

    names = [one.slot for one in (owner(), owner("orders-2024"), owner(uid="x"), owner(lineage="m"))]
    assert len(set(names)) == 4 and owner(run_id="r2").slot == names[0]
    assert owner(lineage="m").prefix == owner().prefix
    longest = owner("j" * 200, "u" * 200)
    assert len(longest.slot) <= 63 and len(longest.application) <= 63
    assert owner(run_id="r2").takes_from(owner().application) is True
    assert owner().takes_from(owner(run_id="r2").application) is False
    assert owner().takes_from(owner(lineage="m").application) is None
    assert owner().takes_from("psql") is None


def test_a_slot_says_why_a_position_cannot_be_read() -> None:
    assert Slot("s", True, None, "", 100, False).problem(100) is None
    assert "after the position" in (Slot("s", True, None, "", 101, False).problem(100) or "")
    assert "removed WAL" in (Slot("s", True, None, "", 1, True).problem(100) or "")
    assert "not a slot of this database" in (Slot("s", False, None, "", 1, False).problem(100) or "")


def test_positions_survive_json() -> None:
    state = DatabaseState.of("10:20:12")
    position = ChangePosition("s", 2**33, 5, 6, state, (Piece(("a", "b"), state, 9), Piece(None, state, 10)), True, 11)
    assert ChangePosition.from_json(position.to_json()) == position
    assert position.handover_end == 10
