"""A user's class for PySpark's Python data source API, with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.errors import OptionError
from tidegate.jobs.secrets import check_no_plain_secrets, resolve_secrets

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


@dataclass(frozen=True)
class DataSourceClass:
    """A subclass of `pyspark.sql.datasource.DataSource`. No object of it is made before `create`.

    Attributes:
        source: the class.
        options: its options, texts. Values may be secret references, which `create` resolves.
        owner: class of the connector, for messages.

    Raises:
        OptionError: not such a class, or an option is no text or holds a secret in plain text.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    owner: str = "PySparkSource"

    def __post_init__(self) -> None:
        source: Any = self.source
        if not isinstance(source, type) or not any(b.__name__ == "DataSource" for b in source.__mro__):
            raise OptionError(
                f"{self.owner} needs a class, got {source!r}",
                where=f"{self.owner}(source=)",
                remedy="Pass a subclass of pyspark.sql.datasource.DataSource, not an object or a name",
            )
        for name, value in self.options.items():
            if not isinstance(value, str):
                cause = f"{name} is a {type(value).__name__}"
                raise OptionError(
                    "options of a data source are texts",
                    where=f"{self.owner}(options=)",
                    cause=cause,
                    remedy="Write the value as text, such as '10'",
                )
        check_no_plain_secrets(self.options, where=f"{self.owner}(options=)")

    @property
    def name(self) -> str:
        """Name of the class, without its module."""
        return self.source.__name__

    def create(self) -> Any:
        """Return a new object of the class. Its options ignore case, as in Spark."""
        from pyspark.sql.datasource import CaseInsensitiveDict

        return self.source(CaseInsensitiveDict(resolve_secrets(self.options)))

    def overrides(self, method: str) -> bool:
        """Return whether the class implements a method of `DataSource`."""
        from pyspark.sql.datasource import DataSource

        return getattr(self.source, method, None) is not getattr(DataSource, method)

    def where(self, method: str) -> str:
        """Return the class and a method of it, for errors."""
        return f"{self.source.__module__}.{self.source.__qualname__}, {method}"
