"""A real browser for tests of a page: Chromium without a window, with what a page says, asks for and throws."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
AXE = ROOT / "tests" / "browser"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--force-color-profile=srgb"),
)
PHONE = {"viewport": {"width": 360, "height": 780}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
DESK = {"viewport": {"width": 1280, "height": 900}}


@dataclass(kw_only=True)
class Seen:
    """One open page, and what it did since: messages of its console, addresses it asked for, errors it threw."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium; skips where it or Playwright is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (make extras)")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (make hosts): the page is not tried in a browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, **context: Any) -> Iterator[Seen]:
    """Open a file in a context of its own; `context` are the options of Browser.new_context, DESK by default."""
    made = browser.new_context(**{**DESK, "reduced_motion": "reduce", **context})
    page = made.new_page()
    page.set_default_timeout(30_000)  # of a machine with other work
    seen = Seen(page=page)
    page.on("console", lambda message: seen.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.thrown.append(f"{error}"))
    page.on("dialog", lambda dialog: (seen.thrown.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    made.on("request", lambda request: seen.asked.append(request.url))
    try:
        page.goto(path.as_uri(), wait_until="load")
        yield seen
    finally:
        made.close()


def axe_core() -> str:
    """Return the source of axe-core as package-lock.json pins it; installs it below build/ where it is missing."""
    home = ROOT / "build" / "browser"
    source, wanted = home / "node_modules" / "axe-core" / "axe.min.js", (AXE / "package-lock.json").read_text()
    lock = home / "package-lock.json"
    if not source.exists() or not lock.exists() or lock.read_text() != wanted:
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed (make hosts): accessibility is not checked")
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(AXE / name, home / name)
        quiet = {**os.environ, "NO_UPDATE_NOTIFIER": "1", "npm_config_fund": "false", "npm_config_audit": "false"}
        done = subprocess.run([npm, "ci", "--ignore-scripts"], cwd=home, env=quiet, capture_output=True, text=True)
        if done.returncode:
            lock.unlink(missing_ok=True)
            pytest.skip(f"axe-core cannot be installed: {done.stderr.strip()[-300:]}")
    return source.read_text(encoding="utf-8")


def violations(page: Any, source: str) -> list[str]:
    """Return what axe-core finds against WCAG 2 A, AA and good practice, one line per element."""
    page.evaluate(source)  # through the debugger: the page's policy lets no further script in
    found = page.evaluate(
        """async () => (await axe.run(document, {
            runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
            resultTypes: ["violations"],
        })).violations"""
    )
    return [
        f"{each['id']} ({each['impact']}): {node['target']}: {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]
