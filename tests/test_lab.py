"""JupyterLab itself: started, a notebook run in it, a slider moved by keyboard, the picture new."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser import chromium

ROOT = Path(__file__).parent.parent
NOTEBOOK = next(iter(sorted((ROOT / "notebooks").glob("01_*.ipynb"))), None)
TOKEN = "course"
LIMIT_MS = 240_000  # a chapter is run in it, on a machine that may be busy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def lab(tmp_path):
    """Address of a JupyterLab that serves a copy of the notebooks."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    home = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "RUNTIME")}
    home["JUPYTERLAB_SETTINGS_DIR"] = write_settings(tmp_path / "settings")
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", f"--IdentityProvider.token={TOKEN}"]
    command += [f"--ServerApp.root_dir={tmp_path / 'notebooks'}", "--LabApp.news_url=None"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    environment = os.environ | home | {"PYTHONPATH": str(ROOT)}
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/api?token={TOKEN}", server, tmp_path / "log")
        yield address
    finally:
        server.terminate()
        server.wait(30)


def write_settings(folder: Path) -> str:
    """The folder of JupyterLab settings, where no pop-up asks and every cell is rendered."""
    for name, text in {
        "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
        "notebook-extension/tracker": '{"windowingMode": "none"}',
    }.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return str(folder)


def wait_for(address: str, server: subprocess.Popen, log: Path, limit_s: float = 90) -> None:
    """Return once `address` answers; fail with the server's log where it never does."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"JupyterLab did not answer within {limit_s} s:\n{log.read_text()[-2000:]}")


@pytest.mark.skipif(NOTEBOOK is None, reason="there is no chapter 01 yet")
def test_a_slider_moved_by_keyboard_draws_a_new_picture(lab):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1200})
        page.set_default_timeout(LIMIT_MS)
        page.goto(f"{lab}/lab/tree/{NOTEBOOK.name}?token={TOKEN}&reset")
        page.get_by_text("| Idle").wait_for()  # the kernel is there; before, Run would ask for one
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        move_first_slider(page)


def move_first_slider(page) -> None:
    """Fail where the picture stays as it was, or an error appears, under a slider moved by key."""
    handle = page.locator(".noUi-handle").first
    handle.wait_for()
    picture = page.locator(".jp-OutputArea-output", has=handle).locator("img")
    before = picture.get_attribute("src")
    value = handle.get_attribute("aria-valuenow")
    handle.press("ArrowRight")
    if handle.get_attribute("aria-valuenow") == value:  # it starts at its end
        handle.press("ArrowLeft")
    expect(picture).not_to_have_attribute("src", before, timeout=LIMIT_MS)
    assert page.locator("[data-mime-type*=error], [data-mime-type*=stderr]").count() == 0
