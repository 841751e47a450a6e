"""Names that users import from tidegate."""

from __future__ import annotations

import ast
from pathlib import Path

import tidegate


def test_type_checkers_see_the_names_that_there_are_at_run_time() -> None:
    """One from the same module each, exported: strict type checkers pass over a name without `as`."""
    tree = ast.parse(Path(str(tidegate.__file__)).read_text(encoding="utf-8"))
    (stubs,) = (node.body for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in stubs if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(stubs)
    seen = {alias.asname: f"{node.module}:{alias.name}" for node in imports for alias in node.names}
    assert seen == {name: f"tidegate.{home}:{name}" for name, home in tidegate._HOMES.items()}
