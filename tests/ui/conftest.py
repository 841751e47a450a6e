"""A real browser, and what it is pointed at: the page over scripted jobs, or a real `airflow standalone`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REPOSITORY = Path(__file__).resolve().parents[2]
# Before the test modules are imported: the starting of Airflow, and the scripted jobs of the unit tests.
sys.path += [str(REPOSITORY / folder) for folder in ("tools", "tests/unit/airflow")]

WAIT_MS = 60_000
"""Longest wait for something to appear; the machine may be busy."""
SIZES = {"desktop": (1360, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. Of one file: as long as Playwright is there its event loop runs in this thread, and no other test of
    the same process could run one of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        driven = playwright.chromium.launch(executable_path=chromium.program(), args=list(chromium.FLAGS))
        yield driven
        driven.close()


@pytest.fixture
def open_as(browser: Browser) -> Iterator[Callable[..., Page]]:
    """`open_as(url, token, size=, scheme=)`: a page of somebody's own; an error of our scripts, or a dialog that a
    script opens, fails the test."""
    contexts, errors = [], []

    def open_as(url: str, token: str | None, *, size: str = "desktop", scheme: Any = "light") -> Page:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        if token is not None:
            host = "/".join(url.split("/")[:3])
            context.add_cookies([{"name": "_token", "value": token, "url": host}])
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)) if is_ours(error) else None)
        page.on("dialog", lambda dialog: (errors.append(f"a script said {dialog.message}"), dialog.dismiss()))
        page.goto(url)
        return page

    def is_ours(error: Any) -> bool:
        """Not one of the pages that Airflow shows around it."""
        return "/tidegate/static/" in (error.stack or "")

    yield open_as
    for context in contexts:
        context.close()
    assert errors == []
