"""Sources that Spark reads: a DataFrame, a table, or files of any format Spark has a reader for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.interface import Boundedness, Source, SourceContext, SourceReader, Split
from tidegate.connectors.spark.materialised_splits import MaterialisedReader, unavailable_files
from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.secrets import check_no_plain_secrets, resolve_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkSource(Source):
    """A bounded DataFrame, which the driver alone makes.

    In batch its rows go on to the next stage. In streaming they are written to the job directory once for each
    submission, since Spark may give them in another order when it is asked again, and read from there (S4.2).
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Args: schema: of the records: slots, which build the pipeline too, cannot ask Spark for it. Columns are
        taken by name; those of the DataFrame that are not in it are left out.

        Raises:
            OptionError: not a schema.
        """
        if not isinstance(schema, pa.Schema):
            raise OptionError(
                f"{type(self).__name__} needs the schema of its records, got {schema!r}",
                where="schema",
                remedy='Give schema=pa.schema([("id", pa.int64()), ...])',
            )
        self._schema = schema

    @property
    def boundedness(self) -> Boundedness:
        """Bounded."""
        return "bounded"

    def schema(self) -> pa.Schema:
        """As it was given."""
        return self._schema

    @abstractmethod
    def frame(self, session: SparkSession) -> DataFrame:
        """The rows; in the driver."""

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Only behind a driver, which puts files into the place of the DataFrame.

        Raises:
            TidegateError: always.
        """
        raise TidegateError(
            f"{self.describe()} can be read by a job on Spark only",
            cause="there is no Spark session here",
            remedy="Submit the job, or read Files(...) in its place",
        )

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Of what the driver wrote."""
        return MaterialisedReader(self._schema)

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Those whose rows are not in the job directory any more."""
        return unavailable_files(self._schema, splits)


class SparkFrame(SparkSource):
    """What a function makes of a Spark session::

        p.read(SparkFrame(lambda spark: spark.table("sales").where("amount > 0"), schema=SALES), uid="sales")

    Args:
        make: gets the session, gives a DataFrame; called once for each submission, in the driver. It may use
            everything of Spark but streams.
        schema: of the records; see `SparkSource`.

    Raises:
        OptionError: not a function, or not a schema.
    """

    def __init__(self, make: Callable[[SparkSession], DataFrame], *, schema: pa.Schema) -> None:
        super().__init__(schema)
        if not callable(make):
            raise OptionError(
                f"SparkFrame needs a function of the session, got a {type(make).__name__}",
                where="make",
                cause="a DataFrame belongs to one session, and the pipeline is built where there is none, too",
                remedy='Write SparkFrame(lambda spark: spark.table("..."), schema=...)',
            )
        self._make = make

    def frame(self, session: SparkSession) -> DataFrame:
        """What the function gives."""
        return self._make(session)

    def describe(self) -> str:
        """The function's name."""
        return f"SparkFrame({getattr(self._make, '__qualname__', type(self._make).__name__)})"


class SparkTable(SparkSource):
    """A table or view of Spark's catalog, or files, by any reader Spark has::

        p.read(SparkTable("sales.orders", schema=ORDERS), uid="orders")
        p.read(SparkTable(format="orc", path="/data/orders", schema=ORDERS), uid="orders")

    Args:
        table: name in the catalog; None: `format` is given.
        format: of Spark's `spark.read.format(...)`.
        path: for formats that have one.
        options: of the reader; values may be references to secrets.
        schema: of the records; see `SparkSource`.

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
        """The table, or what the reader gives."""
        reader = session.read.options(**resolve_secrets(self._options))
        if self._table is not None:
            return reader.table(self._table)
        assert self._format is not None, "a table or a format"
        return reader.format(self._format).load(self._path)

    def describe(self) -> str:
        """The table, or format and path."""
        name = self._table or ", ".join(filter(None, [self._format, self._path]))
        return f"SparkTable({name})"
