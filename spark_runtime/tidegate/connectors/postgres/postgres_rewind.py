"""Rewind of the Postgres sink: take back the changes of its transactions since a checkpoint (S9.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.rewind_records import RECORDS_TABLE, RewindRecords
from tidegate.connectors.postgres.staging_tables import (
    DEFER_CONSTRAINTS,
    OF_SINK,
    REWIND_COLUMN,
    XID_COLUMN,
    Staging,
    joined,
    names_of,
    same_key,
)
from tidegate.connectors.postgres.target_table import FIND_TABLE, TargetTable, columns_of
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import SinkConflictError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

TABLE_LOCK_TIMEOUT_S = 60
"""Longest wait, in seconds, for other programs that write to the target. Then the rewind fails, and is repeated."""

_BETWEEN = f"{OF_SINK} AND checkpoint_id > %(after)s AND checkpoint_id < %(before)s"
_REWOUND = f"""
SELECT record, target, former, xid::text, written FROM {{schema}}.rewind_records JOIN {{schema}}.writers USING (writer)
WHERE {_BETWEEN} ORDER BY record
"""
_UNMARK = """
UPDATE {schema}.writers w SET committed = w.committed - u.numbers FROM (
    SELECT writer, range_agg(int8range(number, number, '[]')) AS numbers FROM {schema}.rewind_records
    WHERE record = ANY (%(rewound)s) GROUP BY writer
) AS u WHERE u.writer = w.writer
"""
# A writer with a transaction that stays. Its row in `writers` stays, too.
_KEPT = f"""
SELECT writer FROM {{schema}}.rewind_records JOIN {{schema}}.writers USING (writer)
WHERE {OF_SINK} AND checkpoint_id <= %(after)s ORDER BY record DESC LIMIT 1
"""
_RECORD = """
INSERT INTO {schema}.rewind_records (record, writer, number, checkpoint_id, target, former, xid, written) VALUES
(%(record)s, %(writer)s, %(number)s, %(after)s, %(target)s, %(former)s, pg_current_xact_id()::xid, %(written)s)
"""
_FORMER = f"SELECT * FROM {{schema}}.{{former}} WHERE {REWIND_COLUMN} = ANY (%(rewound)s)"
_OURS = "ANY (%(xids)s::xid[])"
# The version of each key before all rewound transactions. If one of them wrote it, the key did not exist.
_BEFORE = f"""
SELECT * FROM (SELECT DISTINCT ON ({{key}}) * FROM ({_FORMER}) AS f ORDER BY {{key}}, {REWIND_COLUMN}) AS oldest
WHERE NOT {XID_COLUMN} = {_OURS}
"""
# Columns that accept no value in an update -> whether they accept none in an insert either.
_COMPUTED = """
SELECT a.attname::text, a.attgenerated <> '' FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND (a.attgenerated <> '' OR a.attidentity = 'a')
"""


@dataclass(frozen=True)
class _Plan:
    """The transactions to take back.

    Attributes:
        rewound: numbers of the transactions in `rewind_records`.
        xids: ids of the database transactions that committed them, as texts.
        former: table with the rows that they have replaced; "": they have replaced none.
    """

    rewound: Sequence[int]
    xids: Sequence[str]
    former: str

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of the statements."""
        return {"rewound": list(self.rewound), "xids": list(self.xids)}


class PostgresRewind:
    """Commits of one sink, in one job and lineage, between snapshot `after` and checkpoint `before`, both excluded.

    Methods run in the caller's database transaction.
    """

    def __init__(
        self, staging: Staging, target: TargetTable, ctx: SinkContext, place: str, after: int, before: int
    ) -> None:
        self._staging = staging
        self._records = RewindRecords(staging)
        self._target = target
        self._ctx = ctx
        self._place = place
        self._after = after
        self._between = {**names_of(ctx), "after": after, "before": before}

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Check that the rewind is possible. Changes nothing.

        Raises:
            SinkConflictError: transactions were committed without rewind records, or another program has changed rows.
        """
        if not self._staging.lacks(connection, "writers"):
            self._plan(connection)

    def take_back(self, connection: psycopg.Connection[Any]) -> None:
        """Take the transactions back, and remove their commit markers and rewind records. Idempotent.

        Raises:
            SinkConflictError: as `check`.
        """
        if self._staging.lacks(connection, "writers"):
            return
        # Before the table's lock, as in a commit: no transaction of a zombie may be half-way.
        self._staging.lock(connection, self._ctx, alone=True)
        if not self._rewound(connection):
            return
        connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{TABLE_LOCK_TIMEOUT_S}s"])
        # Other writers wait, so that what is compared stays as it is; readers do not.
        connection.execute(self._sql("LOCK TABLE {target} IN SHARE ROW EXCLUSIVE MODE"))
        # A restored row may take the unique value that another row gives up.
        connection.execute(DEFER_CONSTRAINTS)
        plan = self._plan(connection)
        if plan is not None:
            restored = self._restore(connection, plan)
            if restored:
                self._record(connection, plan, restored)
            connection.execute(self._sql(_UNMARK), plan.values)
            if plan.former:
                query = f"DELETE FROM {{schema}}.{{former}} WHERE {REWIND_COLUMN} = ANY (%(rewound)s)"
                connection.execute(self._sql(query, plan), plan.values)
            connection.execute(
                self._sql("DELETE FROM {schema}.rewind_records WHERE record = ANY (%(rewound)s)"), plan.values
            )

    def _sql(self, text: str, plan: _Plan | None = None, **parts: Composed) -> Composed:
        from psycopg import sql

        return self._staging.statement(
            text,
            **parts,
            target=sql.Identifier(self._target.schema, self._target.table),
            former=sql.Identifier(plan.former if plan is not None else ""),
            key=joined(self._target.key),
            same=same_key("t", "f", self._target.key),
        )

    def _rewound(self, connection: psycopg.Connection[Any]) -> list[Any]:
        if self._staging.lacks(connection, RECORDS_TABLE):
            return []
        return connection.execute(self._sql(_REWOUND), self._between).fetchall()

    def _plan(self, connection: psycopg.Connection[Any]) -> _Plan | None:
        query = f"SELECT max(kept_until) FROM {{schema}}.writers WHERE {OF_SINK}"
        row = connection.execute(self._sql(query), self._between).fetchone()
        kept_until = row[0] if row else None
        if kept_until is not None and kept_until > self._after:
            raise self._refused(
                "commits of checkpoints after it have no rewind records: the sink had rewind=False, or `tidegate gc` "
                f"has deleted them. The newest is of checkpoint {kept_until}"
            )
        rewound = self._rewound(connection)
        if not rewound:
            return None
        if targets := sorted({row[1] for row in rewound} - {self._target.name}):
            raise self._refused(f"the sink wrote to the table {targets[0]} then")
        columns = columns_of(connection, self._target)
        if not columns:
            raise self._refused("the table does not exist any more")
        former = {row[2] for row in rewound} - {""}
        if former - {self._records.former_name(self._target, list(columns.values()))}:
            raise self._refused("the columns of the table were changed since, so that its former rows do not fit")
        plan = _Plan([row[0] for row in rewound], sorted({row[3] for row in rewound}), former.pop() if former else "")
        written: Counter[str] = Counter()
        for _, _, _, xid, rows in rewound:
            written[xid] += rows
        self._check_rows(connection, plan, written)
        return plan

    def _check_rows(self, connection: psycopg.Connection[Any], plan: _Plan, written: Counter[str]) -> None:
        """Check that each version of a row that the transactions wrote is in the target, or was replaced by them."""
        there = [f"SELECT xmin::text, count(*) FROM {{target}} WHERE xmin = {_OURS} GROUP BY 1"]
        if plan.former:
            query = f"SELECT {XID_COLUMN}::text, count(*) FROM ({_FORMER}) AS f WHERE {XID_COLUMN} = {_OURS}"
            there.append(f"{query} GROUP BY 1")
        found: Counter[str] = Counter()
        for query in there:
            for xid, count in connection.execute(self._sql(query, plan), plan.values):
                found[xid] += count
        missing, strange = (written - found).total(), (found - written).total()
        changed = f"another program has changed or deleted {missing} of the rows, or has written all rows again"
        if missing or strange:
            raise self._refused(changed if missing else f"triggers have written {strange} more rows")
        if plan.former and (foreign := self._foreign(connection, plan)):
            raise self._refused(
                f"another program has changed {foreign} of the rows, or has inserted rows with keys that the sink had "
                "deleted"
            )

    def _foreign(self, connection: psycopg.Connection[Any], plan: _Plan) -> int:
        """Return the number of changes of other programs between the rewound ones, or after them, in the same keys."""
        between = (
            f"SELECT count(*) FROM (SELECT {XID_COLUMN}, row_number() OVER (PARTITION BY {{key}} ORDER BY"
            f" {REWIND_COLUMN}) AS n FROM ({_FORMER}) AS f) AS versions WHERE n > 1 AND NOT {XID_COLUMN} = {_OURS}"
        )
        after = (
            f"SELECT count(*) FROM {{target}} AS t JOIN (SELECT DISTINCT {{key}} FROM ({_FORMER}) AS f) AS f"
            f" ON {{same}} WHERE NOT t.xmin = {_OURS}"
        )
        total = 0
        for query in (between, after):
            row = connection.execute(self._sql(query, plan), plan.values).fetchone()
            total += row[0] if row else 0
        return total

    def _restore(self, connection: psycopg.Connection[Any], plan: _Plan) -> int:
        """Delete the rows whose key did not exist, and restore the others. Return how many were restored."""
        from psycopg import sql

        delete = f"DELETE FROM {{target}} AS t WHERE t.xmin = {_OURS}"
        if not plan.former:
            connection.execute(self._sql(delete), plan.values)
            return 0
        row = connection.execute(FIND_TABLE, [self._target.schema, self._target.table]).fetchone()
        assert row is not None
        computed = dict(connection.execute(_COMPUTED, [row[0]]).fetchall())
        columns = list(columns_of(connection, self._target))
        # First, because a restored row may take the unique value of an inserted one. A row that was deleted and
        # inserted again has another identity, which an update cannot set.
        identities = [name for name, is_generated in computed.items() if not is_generated]
        same = [sql.SQL("f.{0} = t.{0}").format(sql.Identifier(name)) for name in (*self._target.key, *identities)]
        delete += f" AND NOT EXISTS (SELECT FROM ({_BEFORE}) AS f WHERE {{restorable}})"
        connection.execute(self._sql(delete, plan, restorable=sql.SQL(" AND ").join(same)), plan.values)
        # An update, and no new row: rows of other tables may refer to it. A table may have no other column than the
        # key; its row must get the id of this database transaction, too.
        updated = [name for name in columns if name not in self._target.key and name not in computed]
        assigned = [sql.SQL("{0} = f.{0}").format(sql.Identifier(name)) for name in updated or self._target.key]
        update = f"UPDATE {{target}} AS t SET {{new}} FROM ({_BEFORE}) AS f WHERE {{same}}"
        new = sql.SQL(", ").join(assigned)
        restored = connection.execute(self._sql(update, plan, new=new), plan.values).rowcount
        insert = (
            f"INSERT INTO {{target}} ({{names}}) OVERRIDING SYSTEM VALUE SELECT {{names}} FROM ({_BEFORE}) AS f"
            " WHERE NOT EXISTS (SELECT FROM {target} AS t WHERE {same})"
        )
        names = joined([name for name in columns if not computed.get(name)])
        return restored + connection.execute(self._sql(insert, plan, names=names), plan.values).rowcount

    def _record(self, connection: psycopg.Connection[Any], plan: _Plan, restored: int) -> None:
        """Record the rewind itself as a transaction that replaced restored versions of rows by the same versions.

        A rewind to an even earlier snapshot finds by it the rows that kept transactions wrote: they have another `xmin`
        now. That rewind takes this one back as well.
        """
        row = connection.execute(self._sql(_KEPT), self._between).fetchone()
        if row is None:
            return
        number = self._records.next_number(connection)
        values = {**plan.values, "record": number, "after": self._after, "target": self._target.name}
        values |= {"writer": row[0], "number": -number, "former": plan.former, "written": restored}
        connection.execute(self._sql(_RECORD), values)
        names = joined(list(columns_of(connection, self._target)))
        save = (
            f"INSERT INTO {{schema}}.{{former}} ({REWIND_COLUMN}, {XID_COLUMN}, {{names}})"
            f" SELECT %(record)s, {XID_COLUMN}, {{names}} FROM ({_BEFORE}) AS f"
        )
        connection.execute(self._sql(save, plan, names=names), values)

    def _refused(self, cause: str) -> SinkConflictError:
        return SinkConflictError(
            f"the Postgres sink cannot rewind to checkpoint {self._after}",
            where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, {self._place}, table {self._target.name}",
            cause=cause,
            remedy="Restore with on_committed_after=accept_duplicates, and remove duplicate rows yourself",
        )
