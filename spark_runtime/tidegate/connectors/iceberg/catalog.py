"""Catalogs of Iceberg tables: properties with references to secrets, tables by name, errors without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from tidegate.connectors.storage import absolute_url
from tidegate.errors import MissingExtraError, OptionError, OutageError, PipelineError
from tidegate.extras import installation
from tidegate.jobs.secrets import MASK, check_no_plain_secrets, is_reference, resolve_secrets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

MAX_CAUSE_CHARACTERS = 500
"""Most characters shown of an error of a catalog or its storage."""
MIN_SECRET_CHARACTERS = 4
"""Shorter values are not masked in errors: they would also hide parts of ordinary words."""
SQLITE = "sqlite:///"
"""Start of the address of a SQLite catalog, before the path."""
MAIN = "main"
"""The branch that readers read by default."""


def require_pyiceberg(where: str) -> None:
    """Raise MissingExtraError with the name of the extra if `pyiceberg` is not installed."""
    try:
        import pyiceberg.catalog  # noqa: F401
    except ImportError as e:
        raise MissingExtraError(
            "Iceberg sources and sinks need the package pyiceberg",
            where=where,
            cause=str(e).splitlines()[0],
            remedy=f"Run `{installation('iceberg')}` on the machines of the driver and the slots",
        ) from e


@dataclass(frozen=True)
class IcebergCatalog:
    """A catalog as pyiceberg opens it. No I/O before `opened`.

    Attributes:
        properties: pyiceberg's properties of the catalog, such as `type`, `uri` and `warehouse`. `name` is the name of
            the catalog; default: "default". Secrets are references.
        owner: class of the source or sink, for messages.

    Raises:
        OptionError: there is no property, or a property holds a secret in plain text.
    """

    properties: Mapping[str, Any]
    owner: str = field(default="Iceberg", compare=False)

    def __post_init__(self) -> None:
        where = f"{self.owner}(catalog=)"
        if not self.properties:
            remedy = 'Write properties of the catalog, such as {"type": "rest", "uri": "https://catalog:8181"}'
            raise OptionError("catalog is empty", where=where, remedy=remedy)
        check_no_plain_secrets(self.properties, where=where)
        for name, value in self.properties.items():
            if isinstance(value, str) and "://" in value and urlsplit(value).password:
                raise OptionError(
                    f"{name!r} holds a password in plain text",
                    where=where,
                    cause="every reader of the job directory can read pipelines and arguments",
                    remedy="Pass a reference to the whole value: secret:env/NAME or secret:file/PATH",
                )
        uri = str(self.properties.get("uri", ""))
        if uri.startswith(SQLITE) and not uri.startswith(f"{SQLITE}/"):
            raise OptionError(
                f"the path of the SQLite catalog is relative: {uri}",
                where=where,
                cause="each process of the job would open another file",
                remedy=f"Write an absolute path, with four slashes: {SQLITE}/shared/catalog.db",
            )
        warehouse = self.properties.get("warehouse")
        if isinstance(warehouse, str) and self.properties.get("type") in ("sql", "in-memory"):
            if not is_reference(warehouse):
                object.__setattr__(
                    self, "properties", {**self.properties, "warehouse": absolute_url(warehouse)}
                )  # frozen: a relative path means the same folder in all processes

    @property
    def place(self) -> str:
        """The catalog for messages and identities, without secrets."""
        given = self.properties.get("uri") or self.properties.get("glue.id") or self.properties.get("type")
        text = str(given or self.properties.get("name", "default"))
        parts = urlsplit(text) if "://" in text else None
        if parts is None or not parts.username:
            return text
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    @contextmanager
    def opened(self) -> Iterator[Catalog]:
        """Open the catalog while the context is active.

        Raises:
            MissingExtraError: a package is missing.
            OptionError: a secret's reference cannot be resolved.
            OutageError: the catalog does not answer.
            PipelineError: a property is wrong.
        """
        catalog = self.open()
        try:
            yield catalog
        finally:
            catalog.close()

    def open(self) -> Catalog:
        """Return the open catalog; the caller closes it. Raises as `opened` does."""
        require_pyiceberg(self.place)
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError

        properties = {key: value for key, value in resolve_secrets(self.properties).items() if value is not None}
        name = str(properties.pop("name", "default"))
        try:
            with self.answering("the Iceberg catalog cannot be opened"):
                return load_catalog(name, **properties)
        except (NotInstalledError, ImportError) as e:
            raise MissingExtraError(
                "the Iceberg catalog needs a package that is not installed",
                where=self.place,
                cause=self.error_text(e),
                remedy="Install the package on the machines of the driver and the slots",
            ) from None
        except ValueError as e:
            raise PipelineError(
                "the Iceberg catalog cannot be opened",
                where=self.place,
                cause=self.error_text(e),
                remedy=f"Check the properties in {self.owner}(catalog=)",
            ) from None

    def find(self, catalog: Catalog, table: str) -> Table | None:
        """Return a table as it is now; None if it does not exist.

        Raises:
            OutageError: the catalog or its storage does not answer.
            PipelineError: the catalog refuses access, or the table's metadata cannot be read.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            with self.answering("the Iceberg table cannot be loaded", table):
                return catalog.load_table(table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FileNotFoundError as e:
            raise PipelineError(
                "the metadata of the Iceberg table is missing",
                where=f"{self.place}, table {table}",
                cause=self.error_text(e),
                remedy="Check that the warehouse is mounted at the same path on all machines",
            ) from None

    @contextmanager
    def answering(self, what: str, table: str = "") -> Iterator[None]:
        """Raise OutageError in place of an error that says that the catalog or its storage did not answer.

        Raise PipelineError in place of a refusal.

        Args:
            what: what failed.
        """
        from pyiceberg.exceptions import ForbiddenError, OAuthError, UnauthorizedError

        where = f"{self.place}, table {table}" if table else self.place
        try:
            yield
        except (UnauthorizedError, ForbiddenError, OAuthError, PermissionError) as e:
            raise PipelineError(
                f"{what}: access is refused",
                where=where,
                cause=self.error_text(e),
                remedy=f"Check the credentials in {self.owner}(catalog=), and the rights of their user",
            ) from None
        except Exception as e:
            if not is_outage(e):
                raise
            raise OutageError(
                what,
                where=where,
                cause=self.error_text(e),
                remedy="Check that the catalog and its storage can be reached from this machine",
            ) from None

    def load(self, catalog: Catalog, table: str) -> Table:
        """Return a table as it is now. Raises as `find` does, and PipelineError if the table does not exist."""
        found = self.find(catalog, table)
        if found is None:
            raise PipelineError(
                "the Iceberg table does not exist",
                where=f"{self.place}, table {table}",
                remedy="Check the name, or create the table",
            )
        return found

    def error_text(self, error: Exception) -> str:
        """Return the error's text on one line, without secrets."""
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in self._secrets():
            text = text.replace(secret, MASK)
        return text[:MAX_CAUSE_CHARACTERS]

    def _secrets(self) -> list[str]:
        references = {name: value for name, value in self.properties.items() if is_reference(value)}
        try:
            values = [str(value) for value in resolve_secrets(references).values()]
        except OptionError:
            return []
        passwords = [urlsplit(value).password or "" for value in values if "://" in value]
        return [value for value in (*values, *passwords) if len(value) >= MIN_SECRET_CHARACTERS]


def is_outage(error: Exception) -> bool:
    """Return whether a catalog or its storage did not answer, so that a later attempt may succeed."""
    from pyiceberg.exceptions import BadRequestError, RESTError

    if isinstance(error, RESTError):
        return not isinstance(error, BadRequestError)
    if isinstance(error, OSError):  # also errors of `requests`, Arrow and fsspec
        return not isinstance(error, FileNotFoundError)
    try:
        from sqlalchemy.exc import DBAPIError
    except ImportError:
        return False
    return isinstance(error, DBAPIError)


def table_filesystem(table: Table) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a table's location, with the credentials of its catalog, and the path in it.

    pyiceberg's own interface to files can neither list nor copy them.
    """
    location = table.location()
    if is_local_location(location):
        return LocalFileSystem(), str(LocalFileSystem._strip_protocol(location)).rstrip("/")
    from pyiceberg.io.fsspec import FsspecFileIO

    parts = urlsplit(location)
    try:
        filesystem = FsspecFileIO(dict(table.io.properties)).get_fs(parts.scheme, parts.hostname)
    except (ImportError, ValueError) as e:
        raise MissingExtraError(
            "the file system of the Iceberg table cannot be opened",
            where=location,
            cause=str(e),
            remedy=f"Run `{installation('s3')}` on the machines of the driver and the slots for tables on S3; "
            "install the fsspec package of the protocol for other tables",
        ) from e
    # Listings must show files that other processes have just written or removed.
    filesystem.dircache.use_listings_cache = False
    return filesystem, str(filesystem._strip_protocol(location)).rstrip("/")


def is_local_location(location: str) -> bool:
    """Return whether files at this location are on a file system that is mounted here."""
    return "://" not in location or location.startswith("file:")
