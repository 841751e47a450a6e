"""Lines of JSON beside `out`, each tenth of which is none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate import Files, Parquet, Pipeline, count


def build(args: Mapping[str, Any]) -> Pipeline:
    """Read twice: with dead letters, and skipping in front of an exchange."""
    out = Path(str(args["out"]))
    files = out.parent / "lines"
    p = Pipeline()
    lines = p.read(Files(files, on_bad_record="dead_letter"), uid="letters")
    lines.write(Parquet(str(out / "good")), uid="good")
    lines.side_output("bad_records").write(Parquet(str(out / "letters")), uid="rejected")
    skipping = p.read(Files(files, on_bad_record="skip"), uid="skipping").group_by("n")
    counted = skipping.agg(c=count(), output="final", uid="counts")
    counted.write(Parquet(str(out / "counts")), uid="out")
    return p
