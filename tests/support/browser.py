"""Debian's Chromium without a window, driven by Playwright; tests that need it are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="no Chromium on this machine: make chromium installs it (Debian, as root), make setup Playwright",
)
PATIENCE_MS = 240_000


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page of the browser, with all that it complained about and asked the network for."""

    def __init__(self, browser: Any, **how: Any) -> None:
        self.page = browser.new_page(**how)
        self.page.set_default_timeout(PATIENCE_MS)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda message: self.problems.append(f"{message.type}: {message.text}")
        )
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def open(self, url: str) -> Any:
        self.page.goto(url, timeout=PATIENCE_MS)
        # A chart is drawn when it comes near the sight, which on a phone may be further down.
        self.page.locator(".chart.large").first.scroll_into_view_if_needed()
        self.page.wait_for_selector(".chart.large canvas")
        return self.page
