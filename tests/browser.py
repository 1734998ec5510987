"""A Chromium for the tests that read pages: found, never downloaded, and cut off the network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
# Every host name but this machine's fails to resolve, as on a machine with no network.
CUT = ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The installed Chromium. Without one the test is skipped, and fails where CI is set."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        reason = "no Chromium on PATH, so no page can be read; install Debian's `chromium`"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET + CUT)
        yield browser
        browser.close()
