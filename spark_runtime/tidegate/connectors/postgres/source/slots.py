"""Replication slots and publications of a source (S9.2).

A slot belongs to one source of one lineage of a job, and is named after them. The server keeps the WAL from the
position that was last confirmed to the slot, and sends nothing before it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.interface import SourceContext
from tidegate.connectors.leftovers import Leftover
from tidegate.connectors.postgres.source.handover import lsn_of, lsn_text
from tidegate.connectors.postgres.source.source_errors import raise_alone
from tidegate.connectors.postgres.source.source_table import SourceTable, TableName
from tidegate.errors import FencedError, PipelineError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

logger = logging.getLogger("tidegate.connectors")

MOST_NAME_BYTES = 63
"""Longest name in PostgreSQL."""
MOST_JOB_BYTES = 30
"""Part of a slot's name for the job and the source, for people."""
PLUGIN = "pgoutput"

_SLOT = """
SELECT s.plugin, s.database = current_database(), s.active_pid, a.application_name, s.confirmed_flush_lsn::text,
    coalesce(s.wal_status, 'lost') = 'lost'
FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s
"""
_OTHERS = """
SELECT slot_name::text FROM pg_replication_slots
WHERE starts_with(slot_name::text, %s) AND slot_name <> %s AND active_pid IS NULL ORDER BY 1
"""
_KEPT_WAL = """
SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint FROM pg_replication_slots
WHERE slot_name = %s
"""
_NEEDS_PUBLICATION = """
SELECT count(*) FROM pg_replication_slots
WHERE starts_with(slot_name::text, 'tidegate_') AND plugin = %s AND database = current_database() AND slot_name <> %s
"""
_PUBLICATION = (
    "SELECT pubinsert AND pubupdate AND pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = %s"
)
_PUBLISHED = """
WITH RECURSIVE tree(oid) AS (
    SELECT %s::oid UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
)
SELECT n.nspname || '.' || c.relname, to_jsonb(t) FROM tree JOIN pg_class c ON c.oid = tree.oid
JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_publication_tables t
    ON t.pubname = %s AND t.schemaname = n.nspname AND t.tablename = c.relname
WHERE c.relkind <> 'p' ORDER BY 1
"""
MOST_PARTITIONS_NAMED = 5
"""Most partitions that a message names: a table may have thousands."""


@dataclass(frozen=True)
class SlotOwner:
    """A reader, as the server knows it.

    Attributes:
        slot: name of its slot.
        prefix: begin of the names of the slots of this job and source in all lineages.
    """

    slot: str
    prefix: str
    generation: int
    run_id: str

    @classmethod
    def of(cls, ctx: SourceContext) -> SlotOwner:
        """Return the owner for a place in a job."""
        plain = re.sub("[^a-z0-9]+", "_", f"{ctx.job_id}_{ctx.uid}".lower()).strip("_")[:MOST_JOB_BYTES]
        # The digest of job and source keeps apart what the plain part cuts off or replaces.
        source, lineage = _digest(ctx.job_id, ctx.uid), _digest(ctx.lineage)
        prefix = f"tidegate_{plain}_{source}_"
        return cls(f"{prefix}{lineage}", prefix, ctx.generation, ctx.run_id)

    @property
    def application(self) -> str:
        """Name of the reader's connections. It fences readers of earlier runs, see `takes_from`."""
        return f"{self._session} {self.generation} {self.run_id}"[:MOST_NAME_BYTES]

    @property
    def _session(self) -> str:
        return f"tidegate {_digest(self.slot)}"

    def takes_from(self, application: str) -> bool | None:
        """Return whether the connection that uses the slot belongs to an earlier run of this reader, or is its own.

        Returns:
            False: it belongs to a later run. None: it is not of a reader of this slot.
        """
        found = re.fullmatch(rf"{self._session} (\d+) ?(.*)", application)
        return None if found is None else (int(found[1]), found[2]) <= (self.generation, self.run_id)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Slot:
    """A replication slot, from the catalog.

    Attributes:
        fits: it is a slot of this database with the plugin that the source reads.
        active_pid: process of the server that reads it; None: nobody does.
        application: name of that connection.
        confirmed_lsn: where the server begins to send at the earliest.
        lost: the server has removed WAL that the slot needs.
    """

    name: str
    fits: bool
    active_pid: int | None
    application: str
    confirmed_lsn: int
    lost: bool

    def problem(self, lsn: int) -> str | None:
        """Return why the changes from `lsn` on cannot be read; None: they can."""
        if not self.fits:
            return f"the slot {self.name!r} is not a slot of this database with the plugin {PLUGIN}"
        if self.lost:
            return f"the server has removed WAL that the slot {self.name!r} needs (max_slot_wal_keep_size)"
        if self.confirmed_lsn > lsn:
            return (
                f"the slot {self.name!r} begins at {lsn_text(self.confirmed_lsn)}, after the position {lsn_text(lsn)}: "
                "a later checkpoint has released these changes, or the slot was created again"
            )
        return None


def find_slot(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    """Return a slot; None: it does not exist."""
    row = connection.execute(_SLOT, [name]).fetchone()
    if row is None:
        return None
    plugin, here, pid, application, confirmed, lost = row
    return Slot(name, bool(plugin == PLUGIN and here), pid, application or "", lsn_of(confirmed or "0/0"), bool(lost))


def slot_problem(connection: psycopg.Connection[Any], name: str, lsn: int) -> str | None:
    """Return why changes cannot be read with a slot; None: they can."""
    found = find_slot(connection, name)
    return f"the slot {name!r} does not exist any more" if found is None else found.problem(lsn)


def free_slot(connection: psycopg.Connection[Any], owner: SlotOwner, slot: Slot, where: str) -> bool:
    """End the connection of an earlier run that still uses a slot. Return whether nobody uses it now.

    Raises:
        FencedError: a later run uses the slot (S9.2).
    """
    if slot.active_pid is None:
        return True
    takes = owner.takes_from(slot.application)
    if takes is False:
        raise FencedError(
            "a newer run of the job reads the replication slot",
            where=f"{where}, slot {slot.name}",
            remedy="Do nothing: this process belongs to an earlier run",
        )
    if takes:
        connection.execute("SELECT pg_terminate_backend(%s)", [slot.active_pid])
    return False


def report_other_slots(connection: psycopg.Connection[Any], owner: SlotOwner) -> None:
    """Log slots of earlier lineages of this source. Nobody reads them, but the server keeps WAL for them."""
    names = [name for (name,) in connection.execute(_OTHERS, [owner.prefix, owner.slot])]
    if names:
        drops = "; ".join(f"SELECT pg_drop_replication_slot('{name}')" for name in names)
        logger.warning(
            "the server keeps WAL for replication slots of earlier starts of this job, and its disk will fill. If you"
            " will not restore their snapshots, run: %s",
            drops,
        )


def release_slot(
    connection: psycopg.Connection[Any], owner: SlotOwner, publication: str | None, *, dry_run: bool
) -> list[Leftover]:
    """Drop the slot of a lineage that is over, unless somebody reads it.

    Args:
        publication: publication that tidegate has created. It is dropped with the last slot of tidegate in the
            database: it does not show which other jobs use it. None: leave the publication.
    """
    from psycopg import errors, sql

    found = find_slot(connection, owner.slot)
    if found is None or not found.fits or found.active_pid is not None:
        return []
    row = connection.execute(_KEPT_WAL, [owner.slot]).fetchone()
    if not dry_run:
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [owner.slot])
        except (errors.ObjectInUse, errors.UndefinedObject):
            return []  # a zombie has begun to read it, or another collection has dropped it
    dropped = [Leftover(f"replication slot {owner.slot}", "ended", 1, row[0] if row else 0)]
    others = connection.execute(_NEEDS_PUBLICATION, [PLUGIN, owner.slot]).fetchone()
    is_unused = publication is not None and others == (0,)
    if not is_unused or connection.execute(_PUBLICATION, [publication]).fetchone() is None:
        return dropped
    if not dry_run:
        try:
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(str(publication))))
        except errors.InsufficientPrivilege:
            return dropped  # its owner created it
    return [*dropped, Leftover(f"publication {publication}", "ended", 1, 0)]


def default_publication(table: TableName) -> str:
    """Return the name of the publication that the source creates for a table."""
    name = f"tidegate_{table.schema}_{table.table}"
    if len(name.encode()) <= MOST_NAME_BYTES:
        return name
    return f"tidegate_{_digest(table.schema, table.table)}"


def publication_statement(table: SourceTable, name: str | None) -> Composed:
    """Return the statement that creates the publication. Args: name: None: the source's own."""
    from psycopg import sql

    # A TRUNCATE of a partition is only published if partitions are published by themselves (ADR 0049).
    publication = sql.Identifier(name or default_publication(table.name))
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(publication, table.name.sql())


def ensure_publication(connection: psycopg.Connection[Any], table: SourceTable, name: str | None, where: str) -> str:
    """Return the name of the publication, and create it if the user names none.

    Raises:
        PipelineError: the user's publication does not exist, or the user may not create one.
    """
    from psycopg import errors

    publication = name or default_publication(table.name)
    if connection.execute(_PUBLICATION, [publication]).fetchone() is not None:
        return publication
    statement = publication_statement(table, name)
    text = statement.as_string(connection)
    if name is not None:
        what, remedy = f"the publication {name!r} does not exist", f"Run: {text}"
        raise PipelineError(what, where=where, remedy=remedy)
    try:
        connection.execute(statement)
    except errors.DuplicateObject:
        pass  # another job reads the table, too
    except errors.InsufficientPrivilege as error:
        refusal = PipelineError(
            f"the publication {publication!r} does not exist, and the database user may not create it",
            where=where,
            cause=error.diag.message_primary or "",
            remedy=f"Let the owner of the table run: {text}",
        )
        raise_alone(refusal)
    return publication


def publication_problems(
    connection: psycopg.Connection[Any],
    table: SourceTable,
    publication: str,
    columns: Sequence[str],
    *,
    needs_truncates: bool,
) -> list[str]:
    """Return why a publication does not publish all changes of the columns; empty if it does not exist yet."""
    row = connection.execute(_PUBLICATION, [publication]).fetchone()
    if row is None:
        return []
    changes, truncates, via_root = row
    name = f"the publication {publication!r}"
    problems = [] if changes else [f"{name} does not publish inserts, updates and deletes"]
    if needs_truncates and not truncates:
        problems.append(f'{name} does not publish TRUNCATE, which on_truncate="fail" needs')
    if table.kind == "p" and via_root:
        return [
            *problems,
            f"{name} publishes changes of partitions as changes of the whole table, and then no TRUNCATE of a "
            "partition; run ALTER PUBLICATION ... SET (publish_via_partition_root = false)",
        ]
    parts = connection.execute(_PUBLISHED, [table.oid, publication]).fetchall()
    absent = [part for part, published in parts if published is None]
    if parts and len(absent) == len(parts):
        return [*problems, f"{name} lacks the table; run ALTER PUBLICATION ... ADD TABLE"]
    if absent:
        problems.append(f"{name} lacks the partitions {_some(absent)}; run ALTER PUBLICATION ... ADD TABLE")
    # Older servers have no conditions and no lists of columns.
    filtered = [part for part, published in parts if published is not None and published.get("rowfilter")]
    if filtered:
        problems.append(f"{name} has a condition for rows of {_some(filtered)}")
    listed = [published["attnames"] for _, published in parts if published is not None and "attnames" in published]
    missing = [column for column in columns if any(column not in names for names in listed if names is not None)]
    if missing:
        problems.append(f"{name} leaves out the columns {', '.join(missing)}")
    return problems


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_PARTITIONS_NAMED
    return ", ".join(names[:MOST_PARTITIONS_NAMED]) + (f" and {more} more" if more > 0 else "")
