"""Sources that Spark reads: a DataFrame, a table, or files of any format that Spark can read."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from tidegate.connectors.interface import Boundedness, Source, SourceContext, SourceReader, Split
from tidegate.connectors.spark.materialised_splits import MaterialisedReader, unavailable_files
from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.secrets import check_no_plain_secrets, resolve_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkSource(Source):
    """A bounded DataFrame. Only the driver can create it.

    In batch mode its rows go to the next stage. In streaming mode the driver writes them to the job directory once for
    each submission, and readers read them there, because Spark may return them in another order the next time (S4.2).
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Create the source.

        Args:
            schema: schema of the records. It is required, because slots build the pipeline, too, and cannot call Spark.
                Columns are matched by name; columns of the DataFrame that it lacks are left out.

        Raises:
            OptionError: not a schema.
        """
        if not isinstance(schema, pa.Schema):
            raise OptionError(
                f"{type(self).__name__} needs the schema of its records, got {schema!r}",
                where="schema",
                remedy='Pass schema=pa.schema([("id", pa.int64()), ...])',
            )
        self._schema = schema
        self._used: tuple[str, ...] | None = None

    @property
    def boundedness(self) -> Boundedness:
        """Return `bounded`."""
        return "bounded"

    def schema(self) -> pa.Schema:
        """Return the declared schema."""
        return self._schema

    @abstractmethod
    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a DataFrame. Called in the driver."""

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Raise: the driver reads files in place of the DataFrame, so only a job without Spark calls this.

        Raises:
            TidegateError: always.
        """
        raise TidegateError(
            f"{self.describe()} can only be read by a job on Spark",
            cause="this process has no Spark session",
            remedy="Submit the job to Spark, or use Files(...) instead",
        )

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader of the files that the driver wrote."""
        return MaterialisedReader(self._schema, self._used)

    def reading_only(self, columns: Sequence[str]) -> Self:
        """Return the same source; its readers read only these columns of the files that the driver wrote."""
        other = copy.copy(self)
        other._used = tuple(columns)
        return other

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return the splits whose rows are missing in the job directory."""
        return unavailable_files(self._schema, splits)


class SparkFrame(SparkSource):
    """A DataFrame that a function makes from a Spark session::

        p.read(SparkFrame(lambda spark: spark.table("sales").where("amount > 0"), schema=SALES), uid="sales")

    Args:
        make: function that receives the session and returns a DataFrame; called once for each submission, in the
            driver. It may use all of Spark except streams.
        schema: schema of the records; see `SparkSource`.

    Raises:
        OptionError: not a function, or not a schema.
    """

    def __init__(self, make: Callable[[SparkSession], DataFrame], *, schema: pa.Schema) -> None:
        super().__init__(schema)
        if not callable(make):
            raise OptionError(
                f"SparkFrame needs a function that receives the session, got a {type(make).__name__}",
                where="make",
                cause="a DataFrame belongs to one session, but processes without a session build the pipeline, too",
                remedy='Write SparkFrame(lambda spark: spark.table("..."), schema=...)',
            )
        self._make = make

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the function's result."""
        return self._make(session)

    def describe(self) -> str:
        """Describe the source by the function's name."""
        return f"SparkFrame({getattr(self._make, '__qualname__', type(self._make).__name__)})"


class SparkTable(SparkSource):
    """A table or view of Spark's catalog, or files in any format that Spark can read::

        p.read(SparkTable("sales.orders", schema=ORDERS), uid="orders")
        p.read(SparkTable(format="orc", path="/data/orders", schema=ORDERS), uid="orders")

    Args:
        table: name in the catalog; None: use `format`.
        format: format for Spark's `spark.read.format(...)`.
        path: path, for formats that have one.
        options: options of the reader; values may be references to secrets.
        schema: schema of the records; see `SparkSource`.

    Raises:
        OptionError: both or neither of `table` and `format`, a secret in plain text, or not a schema.
    """

    def __init__(
        self,
        table: str | None = None,
        *,
        schema: pa.Schema,
        format: str | None = None,
        path: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(schema)
        if (table is None) == (format is None):
            raise OptionError(
                "SparkTable needs either a table or a format",
                where="table, format",
                remedy='Write SparkTable("db.table", ...) or SparkTable(format="orc", path="...", ...)',
            )
        check_no_plain_secrets(options, where="options")
        self._table, self._format, self._path = table, format, path
        self._options = dict(options or {})

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the table, or the reader's DataFrame."""
        reader = session.read.options(**resolve_secrets(self._options))
        if self._table is not None:
            return reader.table(self._table)
        assert self._format is not None, "a table or a format"
        return reader.format(self._format).load(self._path)

    def describe(self) -> str:
        """Describe the source by its table, or by format and path."""
        name = self._table or ", ".join(filter(None, [self._format, self._path]))
        return f"SparkTable({name})"
