"""Loading of entry points: the launchers, connectors, operators and aggregates that other packages register.

The code of another package may raise anything. The user needs to know which package that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # slow to import; `import tidegate` does not need it


def load_entry_point(point: EntryPoint, what: str) -> Any:
    """Import the object of an entry point.

    Args:
        point: the entry point.
        what: the extension, for the error, such as "launcher 'nomad'".

    Raises:
        EnvironmentProblemError: the module cannot be imported, or lacks the object.
    """
    try:
        return point.load()
    except Exception as error:  # the module of another package may raise anything when it is imported
        raise broken_extension(point, what, "cannot be loaded", error) from error


def broken_extension(point: EntryPoint, what: str, problem: str, cause: Exception | str) -> EnvironmentProblemError:
    """Return the error for an extension of another package that does not work.

    Args:
        point: the entry point of the extension.
        what: the extension, such as "launcher 'nomad'".
        problem: what is wrong with it, such as "cannot be loaded".
        cause: the error that its code raised, or the difference from the interface.
    """
    package = point.dist.name if point.dist is not None else ""
    return EnvironmentProblemError(
        f"the {what} {problem}",
        where=f"{f'package {package}, ' if package else ''}entry point {point.name} = {point.value} of {point.group}",
        cause=f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else cause,
        remedy=f"Install what {package or 'its module'} needs, or a version of it that works with this tidegate"
        + (", or uninstall it" if package else ""),
    )
