"""A staged console, and a real browser to look at it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tidegate.testing.live import HOST
from tidegate.testing.stage import Served, Stage

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


@pytest.fixture
def stage() -> Stage:
    return Stage(4)


@pytest.fixture
def served() -> Iterator[Served]:
    with Served(4) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: while it is open its event loop counts as running in this thread, which others' tests use."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "chromium is missing: make deps"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must stay silent and ask nobody but its own origin."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, locale="en-GB", color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(20_000)
    said: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert not [text for text in said if "ERR_" not in text], "lost connections apart, the page complains of nothing"
    assert all(url.startswith(f"http://{HOST}:") for url in asked), asked
