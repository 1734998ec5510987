"""`make notebooks` gives outputs that are the code's; `make test` loses no stage."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

import notebooks
import pdf

MEASURED = {"tags": ["nbval-ignore-output"]}
CLOCK = "import time\ntime.perf_counter_ns()"


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def path(tmp_path) -> Path:
    """A notebook with a fixed cell and a cell that measures, not yet executed."""
    cells = [
        new_markdown_cell("# A", id="title"),
        new_code_cell("print(1 + 1)", id="sum"),
        new_code_cell(CLOCK, id="clock", metadata=MEASURED),
    ]
    notebook = new_notebook(cells=cells)
    notebook.metadata["language_info"] = {"name": "python", "version": "3.0"}
    notebook.metadata["widgets"] = {"state": {}}
    nbformat.write(notebook, tmp_path / "01_a.ipynb")
    return tmp_path / "01_a.ipynb"


def measured(path: Path) -> str:
    cell = nbformat.read(path, as_version=4).cells[2]
    return cell.outputs[0]["data"]["text/plain"]


def test_executed_outputs_are_stable_and_measured_ones_stay_until_asked(path, monkeypatch):
    monkeypatch.delenv("MEASURE", raising=False)
    assert notebooks.main([str(path)]) == 0
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[1].outputs[0].text == "2\n"
    assert [cell.execution_count for cell in notebook.cells[1:]] == [1, 2]
    assert notebook.metadata.language_info == {"name": "python"}
    assert "widgets" not in notebook.metadata

    git(path.parent, "init", "-q")
    git(path.parent, "add", path.name)
    git(path.parent, "commit", "-q", "-m", "first")
    before = path.read_bytes()
    assert notebooks.main([str(path)]) == 0
    assert path.read_bytes() == before

    monkeypatch.setenv("MEASURE", "1")
    old = measured(path)
    assert notebooks.main([str(path)]) == 0
    assert measured(path) != old


def test_a_measuring_cell_whose_source_changed_is_measured_again():
    old = new_code_cell(CLOCK, id="clock", metadata=MEASURED)
    old.outputs = [new_output("stream", text="1 s")]
    changed = new_code_cell(CLOCK + " / 1e9", id="clock", metadata=MEASURED)
    unmarked = new_code_cell(CLOCK, id="clock")
    for cell in (changed, unmarked):
        notebooks.keep_measured(new_notebook(cells=[cell]), {"clock": old})
        assert cell.outputs == []


def test_a_cell_that_raises_fails_loudly_and_leaves_the_file_alone(path, capsys):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source = "raise ValueError('loud')"
    nbformat.write(notebook, path)
    before = path.read_bytes()
    assert notebooks.main([str(path)]) == 1
    assert "loud" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_normalising_drops_what_differs_from_run_to_run():
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "ab12"}, "text/html": "x"}
    metadata = {"execution": {"iopub.status.busy": "1"}, "tags": ["a"]}
    cell = new_code_cell("x", metadata=metadata, execution_count=3)
    cell.outputs = [new_output("execute_result", view, execution_count=9)]
    notebooks.normalise(new_notebook(cells=[cell]))
    assert cell.metadata == {"tags": ["a"]}
    assert cell.outputs[0]["data"] == {"text/html": "x"}
    assert cell.outputs[0].execution_count == 3


STAGES = {"ruff": ["lint"], "mypy": ["types"], "pytest": ["unit", "notebooks", "browser"]}


@pytest.mark.parametrize("broken", [None, "ruff", "mypy", "pytest", "make"])
def test_every_stage_runs_and_any_that_fails_fails_the_whole(tmp_path, broken):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("ruff", "mypy", "pytest", "make"):
        stand_in = tmp_path / ".venv/bin" / name
        status = 1 if name == broken else 0
        stand_in.write_text(f"#!/bin/sh\necho {name} [$KVLIB_GPT2]\nexit {status}\n")
        stand_in.chmod(0o755)
    script = Path(notebooks.__file__).parent / "test.sh"
    environment = {**os.environ, "KVLIB_GPT2": "gpt2"}
    done = subprocess.run(
        ["sh", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert bool(done.returncode) == bool(broken), done.stdout + done.stderr
    verdicts = dict(line.split()[:2] for line in done.stdout.splitlines()[-6:])
    failed = {stage for stage, verdict in verdicts.items() if verdict == "FAILED"}
    assert failed == set(STAGES.get(broken, ["book"] if broken else []))
    assert len(verdicts) == 6 and "pytest []" in done.stdout


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('<img src="data:image/webp;base64,AA+/1=">', '<img src="data:image/webp;base64,Bq==">'),
        ("<f at 0x7f10aabbccdd>", "<f at 0x7f99aabbccdd>"),
    ],
)
def test_the_sanitiser_blanks_pictures_and_addresses(one, other):
    assert sanitised(one) == sanitised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("73728 bytes", "73729 bytes"), ("tensor([0.1235])", "tensor([0.1234])"), ("0x7f", "0x7e")],
)
def test_the_sanitiser_never_blanks_a_number(one, other):
    assert sanitised(one) != sanitised(other)


def sanitised(text: str) -> str:
    patterns = (Path(__file__).parent / "nbval_sanitize.cfg").read_text()
    for pattern, replacement in get_sanitize_patterns(patterns):
        text = re.sub(pattern, replacement, text)
    return text


def test_a_page_is_printed_with_its_contents_and_no_tex(tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium on PATH, so nothing can be printed")
    (tmp_path / "a.html").write_text("<title>A</title><h1>A</h1><h2>B</h2><p>Text.")
    pdf.print_page(tmp_path / "a.html", tmp_path / "a.pdf", browser)
    printed = (tmp_path / "a.pdf").read_bytes()
    assert printed.startswith(b"%PDF-") and b"/Outlines" in printed
