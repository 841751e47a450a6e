"""Steps that the tests of this layer share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

LARGEST_BYTES = 150_000
"""Of a picture in the documents."""

if TYPE_CHECKING:
    from playwright.sync_api import Page


def shoot(page: Page, name: str) -> None:
    """Keep a picture for the documents, where that is asked for (`make test-ui SCREENSHOTS=docs/images`)."""
    folder = os.environ.get("TIDEGATE_SCREENSHOTS")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    taken = page.screenshot(path=f"{folder}/{name}.png", animations="disabled")
    assert len(taken) <= LARGEST_BYTES, f"picture {name} has {len(taken)} bytes: show less of the page"
