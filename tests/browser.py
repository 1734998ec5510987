"""A Chromium for the tests that read pages: found, never downloaded, and cut off the network."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
# Every host name but this machine's fails to resolve, as on a machine with no network.
CUT = ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"]

BUILT = Path(__file__).parent.parent / "book" / "_build" / "html"
BOOK = Path(os.environ.get("KVLIB_BOOK", BUILT))  # elsewhere where it was built elsewhere
START = "book/intro.html"
PAGES = sorted(
    str(path.relative_to(BOOK))
    for path in BOOK.rglob("*.html")
    if "_static" not in path.parts and path != BOOK / "index.html"  # which leads to START
) or [START]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


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


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served() -> Iterator[str]:
    """The address of the book's folder, served from this machine."""
    if not (BOOK / "index.html").exists():
        pytest.fail(f"{BOOK}/index.html is missing; run `make book`")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=BOOK))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


class Visit:
    """One open page, and everything that went wrong or outside while it loaded."""

    def __init__(self, browser, root: str, **options):
        self.context = browser.new_context(viewport=DESK, **options)
        self.context.set_default_timeout(120_000)  # the machine may be busy
        self.page = self.context.new_page()
        self.outside, self.wrong = [], []
        self.page.on("request", lambda request: self.note(request.url, root))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda m: m.type == "error" and self.wrong.append(m.text))
        self.page.on("requestfailed", lambda request: self.wrong.append(request.url))
        self.page.on("response", lambda r: r.status >= 400 and self.wrong.append(r.url))

    def note(self, address: str, root: str) -> None:
        if not address.startswith((root, "data:", "blob:")):
            self.outside.append(address)

    def open(self, address: str):
        self.page.goto(address, wait_until="load")
        self.page.evaluate("window.MathJax && MathJax.startup.promise.then(() => true)")
        return self
