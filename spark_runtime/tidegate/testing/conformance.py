"""Base of the conformance suites: a test class that lacks a method of its suite is refused."""

from __future__ import annotations

from typing import Any


class Conformance:
    """A suite. Its abstract methods create what is tested.

    pytest skips an abstract class without a message, so a forgotten method would look like success.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise TypeError for a class that pytest collects, named `Test...`, and that lacks methods of its suite."""
        super().__init_subclass__(**options)
        required = {name: base for base in cls.__mro__ for name, it in vars(base).items() if _is_abstract(it)}
        missing = [name for name in required if _is_abstract(getattr(cls, name))]
        if missing and cls.__name__.startswith("Test"):
            raise TypeError(
                f"no test of {cls.__name__} would run, because it lacks {', '.join(missing)}, which {_suite(cls)} "
                f"needs. Implement {'them' if len(missing) > 1 else 'it'}, or choose a name that does not begin with "
                "Test if the class is a base of others"
            )


def _is_abstract(member: object) -> bool:
    return bool(getattr(member, "__isabstractmethod__", False))


def _suite(cls: type) -> str:
    return next(base.__name__ for base in cls.__mro__ if Conformance in base.__bases__)
