"""S5.5: which columns of a state may become which."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.jobs.restore.state_evolution import StateColumn, evolution, is_wider, is_wider_key


def columns(*named: str) -> tuple[StateColumn, ...]:
    """ "name type", with a "!" behind it not nullable."""
    split = [text.rstrip("!").split(" ", 1) + [text.endswith("!")] for text in named]
    return tuple(StateColumn(str(name), str(type_), not required) for name, type_, required in split)


OLD = columns("__key_group uint16", "key:k int32", "value:a int32", "value:b string")


def test_a_new_nullable_column_is_null_in_what_is_restored() -> None:
    found = evolution(OLD, (*OLD[:3], *columns("value:new double"), OLD[3]))
    assert found.sources == ("__key_group", "key:k", "value:a", None, "value:b")
    assert (found.changes, found.refused) == (("column 'value:new' is new, and null in restored rows",), ())


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ((*OLD, *columns("value:new double!")), "column 'value:new' is new and not nullable"),
        ((*OLD, *columns("key:new int32")), "key column 'key:new' is new"),
        (OLD[:3], "column 'value:b' is no longer declared"),
        ((*OLD[:2], *columns("value:a int16", "value:b string")), "column 'value:a' was int32, now int16"),
        (
            (*OLD[:2], *columns("value:a int32", "value:b large_string")),
            "column 'value:b' was string, now large_string",
        ),
        ((OLD[0], *columns("key:k double"), *OLD[2:]), "column 'key:k' was int32, now double"),
    ],
)
def test_anything_else_is_refused_by_name(new: tuple[StateColumn, ...], told: str) -> None:
    assert evolution(OLD, new).refused == (told,)


def test_what_may_not_be_filled_is_refused_though_it_is_nullable() -> None:
    """A window's new aggregate would lack the rows that came before."""
    assert evolution(OLD, (*OLD, *columns("sum:total int64")), fills=False).refused == ("column 'sum:total' is new",)


def test_a_rename_needs_its_mapping() -> None:
    new = columns("__key_group uint16", "key:k int32", "value:c int64", "value:b string")
    assert evolution(OLD, new).refused == ("column 'value:a' is no longer declared",)
    found = evolution(OLD, new, {"a": "c"})
    assert (found.sources[2], found.refused) == ("value:a", ())
    assert found.changes == ("column 'value:a' is renamed to 'value:c'", "column 'value:c' was int32, now int64")


@pytest.mark.parametrize(
    "prefixes", [("sum",), ("var_count", "var_mean", "var_squares"), ("top_n", "top_n_by"), ("median",)]
)
def test_a_rename_is_of_every_column_of_an_aggregate_whoever_registered_it(prefixes: tuple[str, ...]) -> None:
    old, new = (columns("key:k int32", *(f"{prefix}:{name} double" for prefix in prefixes)) for name in ("v", "w"))
    found = evolution(old, new, {"v": "w"}, fills=False)
    assert found.refused == () and found.sources[1:] == tuple(f"{prefix}:v" for prefix in prefixes)


def test_a_rename_that_was_applied_already_is_passed_over() -> None:
    assert evolution(OLD, OLD, {"before": "a"}).changes == ()


@pytest.mark.parametrize(
    ("renamed", "told"),
    [({"a": "b"}, "the snapshot has both columns"), ({"a": "c", "b": "c"}, "two columns are renamed to 'value:c'")],
)
def test_an_ambiguous_rename_is_refused(renamed: dict[str, str], told: str) -> None:
    assert told in "; ".join(evolution(OLD, OLD, renamed).refused)


def test_key_columns_keep_their_order_and_others_are_taken_by_name() -> None:
    """The key's bytes, and with them its key group, depend on the order (S5.1)."""
    two = columns("key:a int32", "key:b int32", "value:c int32", "value:d int32")
    assert evolution(two, (two[1], two[0], *two[2:])).refused == ("the key columns have another order",)
    assert evolution(two, (*two[:2], two[3], two[2])).refused == ()


TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")),
    *(pa.duration("s"), pa.duration("ns"), pa.decimal128(5, 2), pa.decimal128(7, 2), pa.decimal128(7, 3)),
    *(pa.decimal256(7, 2), pa.decimal256(40, 2)),
]
EXTREMES = {
    pa.int8(): (-128, 127),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.uint8(): (0, 255),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.float16(): (65504.0, 6e-8),
    pa.float32(): (3.4028234663852886e38, 1.401298464324817e-45),
    pa.time32("s"): (0, 86399),
    pa.time32("ms"): (0, 86_399_999),
    pa.time64("us"): (0, 86_399_999_999),
}


@pytest.mark.parametrize("old", TYPES, ids=str)
def test_what_is_called_wider_holds_every_value_of_the_old_type(old: pa.DataType) -> None:
    """Against Arrow's own casts, forth and back."""
    for new in TYPES:
        if not is_wider(str(old), str(new)):
            continue
        assert old != new
        extremes = [None, *EXTREMES.get(old, (1, 2))]
        values = pa.array(extremes, pa.float32()).cast(old) if old == pa.float16() else pa.array(extremes, old)
        assert values.cast(new).cast(old).equals(values), f"{old} -> {new}"


def test_widening_goes_one_way() -> None:
    for old in TYPES:
        for new in TYPES:
            assert not (is_wider(str(old), str(new)) and is_wider(str(new), str(old)))


def test_time_zones_and_scales_stay() -> None:
    assert is_wider("timestamp[s, tz=UTC]", "timestamp[us, tz=UTC]")
    assert not is_wider("timestamp[s]", "timestamp[us, tz=UTC]")
    assert is_wider("decimal128(5, 2)", "decimal256(40, 2)") and not is_wider("decimal128(5, 2)", "decimal128(9, 3)")


def test_a_key_becomes_no_number_of_another_kind() -> None:
    """Its canonical bytes would be others (S5.1)."""
    assert is_wider("int32", "double") and not is_wider_key("int32", "double")
    assert is_wider_key("int32", "int64") and is_wider_key("timestamp[s]", "timestamp[ns]")
