"""Names that users import from tidegate."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tidegate
from tidegate import formats


@pytest.mark.parametrize(("module", "homes"), [(tidegate, "tidegate"), (formats, "tidegate.connectors.formats")])
def test_type_checkers_see_the_names_that_there_are_at_run_time(module: ModuleType, homes: str) -> None:
    """One from the same module each, exported: strict type checkers pass over a name without `as`."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    (stubs,) = (node.body for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in stubs if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(stubs)
    seen = {alias.asname: f"{node.module}:{alias.name}" for node in imports for alias in node.names}
    assert seen == {name: f"{homes}.{home}:{name}" for name, home in module._HOMES.items()}


def test_formats_are_imported_when_they_are_first_used() -> None:
    code = (
        "import sys; from tidegate import formats; assert 'pyarrow' not in sys.modules\n"
        "formats.Json({'n': 'int64'}); assert 'tidegate.connectors.formats.avro_format' not in sys.modules\n"
        "assert formats.Avro('long').schema().names == ['value'] and 'numba' not in sys.modules\n"
        "assert not {'confluent_kafka', 'google.protobuf', 'fastavro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
