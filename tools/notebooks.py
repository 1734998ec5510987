"""Run the notebooks top to bottom, in place, so that what is committed is what the code gives.

    python tools/notebooks.py [NOTEBOOK ...]      all of notebooks/ where none is named

Cells tagged `nbval-ignore-output` depend on the machine. They keep their committed outputs as long
as their source is the committed one, so that a diff shows what changed and not who ran it;
MEASURE=1 takes new ones.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent.parent / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # a random id, dead without its kernel
KEPT_METADATA = ("tags", "mystnb", "jupyter")


def execute(notebook, folder: Path) -> None:
    """Run every cell in a fresh kernel started in `folder`; CellExecutionError if one raises."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    ).execute()


def committed(path: Path) -> dict:
    """Id of each code cell -> that cell in the last commit of `path`; empty where there is none."""
    command = ["git", "show", f"HEAD:./{path.name}"]
    try:
        shown = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    except FileNotFoundError:  # no git: this copy was downloaded as an archive
        return {}
    if shown.returncode:
        return {}
    cells = nbformat.reads(shown.stdout, as_version=4).cells
    return {cell.id: cell for cell in cells if cell.cell_type == "code"}


def keep_measured(notebook, old: dict) -> None:
    """Give each machine-dependent cell its outputs in `old`, where its source is still the same."""
    for cell in notebook.cells:
        before = old.get(cell.id)
        if "nbval-ignore-output" not in cell.metadata.get("tags", []) or before is None:
            continue
        if before.source == cell.source and before.outputs:
            cell.outputs = before.outputs


def normalise(notebook) -> None:
    """Drop all that differs from run to run or from editor to editor, and means nothing."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        for key in set(cell.metadata) - set(KEPT_METADATA):
            del cell.metadata[key]
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)
            if "execution_count" in output:
                output.execution_count = cell.execution_count


def run(path: Path, measure: bool) -> None:
    """Execute the notebook at `path` and write it back; where a cell raises it stays as it was."""
    notebook = nbformat.read(path, as_version=4)
    execute(notebook, path.parent)
    if not measure:
        keep_measured(notebook, committed(path))
    normalise(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def main(names: list[str]) -> int:
    """0 where every notebook ran; 1, and the failing cell's traceback, where one did not."""
    os.environ.pop("KVLIB_GPT2", None)  # committed outputs come from the seeded weights
    os.environ["HF_HUB_OFFLINE"] = "1"  # and need no network
    failed = 0
    for path in [Path(name).resolve() for name in names] or sorted(FOLDER.glob("*.ipynb")):
        began = time.perf_counter()
        try:
            run(path, measure=bool(os.environ.get("MEASURE")))
            print(f"{path.name}: {time.perf_counter() - began:.0f} s", flush=True)
        except CellExecutionError as error:
            print(f"{path.name} was left as it was, for a cell raised:\n{error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
