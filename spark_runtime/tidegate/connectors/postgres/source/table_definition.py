"""Definitions of a table in the catalog, which show statements whose effect is not in the stream of its changes.

Such statements attach, detach or drop a partition, replace a column by another one of the same name, compute new values
with `ALTER TABLE ... ALTER COLUMN ... TYPE ... USING`, or rename a value of an enum. Two definitions of a table, read
at different times, show whether one of them has run in between, also while no job reads the stream (ADR 0049).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

# xmin of a catalog row is the transaction that wrote it. It stays when the row is frozen (PostgreSQL 9.4 and newer).
# pg_inherits is read itself, since pg_partition_tree() waits while VACUUM FULL or CLUSTER works on a partition.
_DEFINITION = """
WITH RECURSIVE tree(oid, attached) AS (
    SELECT %(oid)s::oid, 0::bigint
    UNION ALL
    SELECT i.inhrelid, i.xmin::text::bigint FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
)
SELECT
    (SELECT jsonb_object_agg(a.attname, jsonb_build_array(
            a.attnum, a.xmin::text::bigint, a.atthasmissing, coalesce(d.oid::bigint, 0)))
     FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (%(columns)s)),
    (SELECT coalesce(jsonb_object_agg(tree.oid, jsonb_build_array(tree.attached, c.relfilenode::bigint)), '{}')
     FROM tree JOIN pg_class c ON c.oid = tree.oid),
    (SELECT coalesce(jsonb_object_agg(e.oid, e.enumlabel), '{}') FROM pg_enum e
     WHERE e.enumtypid IN (SELECT a.atttypid FROM pg_attribute a
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (%(columns)s))),
    (SELECT p.oid::bigint FROM pg_publication p WHERE p.pubname = %(publication)s),
    (SELECT r.oid::bigint FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
     WHERE p.pubname = %(publication)s AND r.prrelid = %(oid)s)
"""
# CREATE TABLE ... PARTITION OF writes the columns together with the system columns, in one command. ATTACH and DETACH
# write each column again.
_ADDED = """
SELECT c.oid::bigint, c.oid::regclass::text, c.relkind = 'p' OR EXISTS (
    SELECT FROM pg_attribute a JOIN pg_attribute s ON s.attrelid = a.attrelid AND s.attname = 'ctid'
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.xmin::text = s.xmin::text AND a.cmin::text = s.cmin::text
) OR pg_relation_size(c.oid) = 0
FROM pg_class c WHERE c.oid = ANY (%s) ORDER BY 1
"""
_NAMES = "SELECT c.oid::bigint, c.oid::regclass::text FROM pg_class c WHERE c.oid = ANY (%s) ORDER BY 1"


@dataclass(frozen=True)
class ColumnVersion:
    """A column of the table.

    Attributes:
        number: `attnum`, which no other column of the table ever has.
        written_by: transaction that last wrote the column's row in the catalog.
        has_missing: rows from before the column was added have its default value only in the catalog. VACUUM FULL and
            CLUSTER write it to the rows, and then write the column's row in the catalog.
        default_oid: the column's default; 0: none. A change of the type creates it again.
    """

    number: int
    written_by: int
    has_missing: bool
    default_oid: int

    def has_new_values(self, later: ColumnVersion) -> bool:
        """Return whether the values may have changed if the table was rewritten until `later`."""
        moved_default = self.has_missing and not later.has_missing and 0 < self.default_oid == later.default_oid
        return self.written_by != later.written_by and not moved_default


@dataclass(frozen=True)
class PartVersion:
    """The table itself, or one of its partitions at any level.

    Attributes:
        attached_by: transaction that made it a partition; 0: the table itself.
        file: number of its file. TRUNCATE, VACUUM FULL, CLUSTER and some forms of ALTER TABLE write a new file.
    """

    attached_by: int
    file: int


@dataclass(frozen=True)
class TableDefinition:
    """A table, as the catalog describes it at one time.

    Attributes:
        columns: those that are read, by name.
        parts: by oid; empty: the table does not exist.
        labels: labels of the enums of these columns, by their oid.
        publication: oids of the publication and of its entry for the table; 0: there is none.
    """

    columns: Mapping[str, ColumnVersion]
    parts: Mapping[int, PartVersion]
    labels: Mapping[int, str]
    publication: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the document for a position."""
        return {
            "columns": {n: [c.number, c.written_by, c.has_missing, c.default_oid] for n, c in self.columns.items()},
            "parts": {str(oid): [part.attached_by, part.file] for oid, part in self.parts.items()},
            "labels": {str(oid): label for oid, label in self.labels.items()},
            "publication": list(self.publication),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableDefinition:
        """Inverse of `to_json`."""
        of_publication, of_table = document["publication"]
        return cls(
            {name: ColumnVersion(*column) for name, column in document["columns"].items()},
            {int(oid): PartVersion(*part) for oid, part in document["parts"].items()},
            {int(oid): label for oid, label in document["labels"].items()},
            (of_publication, of_table),
        )

    def has_same_files(self, other: TableDefinition) -> bool:
        """Return whether no part was rewritten, added or removed in between."""
        return self.parts == other.parts


def read_definition(
    connection: psycopg.Connection[Any], oid: int, columns: Sequence[str], publication: str
) -> TableDefinition:
    """Return the definition of a table in the state of the database that the connection sees."""
    given = {"oid": oid, "columns": list(columns), "publication": publication}
    row = connection.execute(_DEFINITION, given).fetchone()
    assert row is not None, "the query returns one row"
    found, parts, labels, of_publication, of_table = row
    document = {"columns": found or {}, "parts": parts, "labels": labels}
    return TableDefinition.from_json(document | {"publication": [of_publication or 0, of_table or 0]})


def hidden_changes(connection: psycopg.Connection[Any], old: TableDefinition, new: TableDefinition) -> list[str]:
    """Return what has changed rows between two definitions without changes in the stream; empty: nothing.

    A column that is missing in `new` is not reported here: the next change reports it (`ServerTable.places`).
    """
    return [
        *_of_columns(old, new),
        *_of_parts(connection, old, new),
        *(
            f"the value {label!r} of an enum is now {new.labels.get(oid, '')!r}"
            for oid, label in old.labels.items()
            if new.labels.get(oid) != label and new.labels
        ),
        *_of_publication(old, new),
    ]


def _of_columns(old: TableDefinition, new: TableDefinition) -> list[str]:
    rewritten = any(oid in new.parts and new.parts[oid].file != part.file for oid, part in old.parts.items())
    found = []
    for name, column in old.columns.items():
        later = new.columns.get(name)
        if later is not None and later.number != column.number:
            found.append(f"column {name!r} is another column than before, with the same name")
        elif later is not None and rewritten and column.has_new_values(later):
            found.append(
                f"column {name!r} was altered and the table was rewritten, so that its values may have changed, as by "
                "ALTER COLUMN ... TYPE ... USING"
            )
    return found


def _of_parts(connection: psycopg.Connection[Any], old: TableDefinition, new: TableDefinition) -> list[str]:
    # The regular checks report that the table itself was dropped.
    removed = [oid for oid, part in old.parts.items() if part.attached_by and oid not in new.parts]
    moved = [
        oid for oid, part in old.parts.items() if oid in new.parts and new.parts[oid].attached_by != part.attached_by
    ]
    added = [oid for oid in new.parts if oid not in old.parts]
    found = []
    if removed:
        names = dict(connection.execute(_NAMES, [removed]).fetchall())
        found += [
            f"the partition {names[oid]} was detached" if oid in names else f"a partition (oid {oid}) was dropped"
            for oid in removed
        ]
    if moved:
        found += [
            f"the partition {name} was detached, and attached again" for _, name in connection.execute(_NAMES, [moved])
        ]
    if added:
        found += [
            f"the table {name}, which is not empty, was attached as a partition"
            for _, name, is_harmless in connection.execute(_ADDED, [added])
            if not is_harmless
        ]
    return found


def _of_publication(old: TableDefinition, new: TableDefinition) -> list[str]:
    # Without a publication the regular checks fail, with a better message.
    before, after = old.publication, new.publication
    if not after[0] or before == after:
        return []
    if before[0] != after[0]:
        return ["the publication was dropped and created again, so that changes between are missing"]
    is_other = before[1] and after[1]
    return ["the table has left the publication and was added again"] if is_other else []
