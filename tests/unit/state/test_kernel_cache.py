"""Where compiled kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba

import tidegate
from tidegate.private_cache import private_cache_directory
from tidegate.spark.kernel_preload import preload_kernels
from tidegate.state.keys.key_hash import _targets
from tidegate.state.keys.key_index_kernels import add_bytes, add_fixed
from tidegate.state.numba_kernels import CACHE_VARIABLE


def test_the_cache_is_private_to_its_user(tmp_path: Path) -> None:
    directory = private_cache_directory(tmp_path / "new", "kernels", "digest")
    assert directory == tmp_path / "new" / "tidegate" / "kernels" / "digest"
    assert all(level.stat().st_mode & 0o077 == 0 for level in (directory, directory.parent, directory.parent.parent))
    assert private_cache_directory(tmp_path / "new", "kernels", "digest") == directory


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "tidegate").mkdir()
    (tmp_path / "tidegate").chmod(0o777)
    assert private_cache_directory(tmp_path, "kernels", "digest") is None


def test_no_cache_can_be_made_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert private_cache_directory(tmp_path / "file", "kernels", "digest") is None


def test_every_kernel_is_compiled_before_it_is_called() -> None:
    preload_kernels()
    kernels: tuple[Any, ...] = (_targets, add_fixed, add_bytes)
    for made in kernels:
        assert len(made.compiled().signatures) == 1
    assert os.environ[CACHE_VARIABLE] == numba.config.CACHE_DIR


def test_every_module_with_kernels_is_compiled_before_the_first_record() -> None:
    """A module that is missing in the list costs seconds at the first record of some job."""
    runtime = Path(str(tidegate.__file__)).parent
    with_kernels = {
        ".".join(path.relative_to(runtime.parent).with_suffix("").parts)
        for path in runtime.rglob("*.py")
        if "@kernel(" in path.read_text(encoding="utf-8") and path.stem != "compiler"
    }
    code = "import sys; from tidegate.spark import kernel_preload as k; k.preload_kernels(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(with_kernels) > 10
    assert with_kernels - set(loaded) == set()


def test_a_driver_neither_compiles_kernels_nor_imports_numba_for_a_pipeline() -> None:
    """It would cost a second of CPU at every start of a job."""
    code = (
        "import sys, pyarrow as pa, tidegate as t; import tidegate.spark.driver\n"
        "s = pa.schema([('k', pa.string()), ('v', pa.int64()), ('ts', pa.timestamp('us'))])\n"
        "p = t.Pipeline(); r = p.read(t.DataGen(lambda n: {}, s), uid='r').with_watermark('ts', '0 s').group_by('k')\n"
        "w = r.window(t.tumbling('1 s')).agg(n=t.count(), a=t.sum('v'), b=t.mean('v'), uid='w')\n"
        "w.write(t.Discard(), uid='o')\n"
        "p.build()\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tidegate.state.aggregates.numbers" in loaded
    assert {"numba", "tidegate.spark.slot_entry", "tidegate.spark.batch.stage_task"} & set(loaded) == set()
