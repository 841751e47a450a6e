"""Finding Chromium, for the tests that drive a real browser."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Programs that will do, on PATH."""
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu")


def program() -> str | None:
    """Its path; None when it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)
