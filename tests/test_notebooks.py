"""The anatomy of every notebook: what a reader may rely on finding, and where."""

import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
MEASURED = "nbval-ignore-output"


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def tags(cell) -> list:
    return cell.metadata.get("tags", [])


def code_cells(cells) -> list:
    return [cell for cell in cells if cell.cell_type == "code"]


def prose(cells) -> str:
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def headings(cell) -> list[str]:
    """The second-level headings in a markdown cell."""
    return re.findall(r"^## (.+)$", cell.source, re.M) if cell.cell_type == "markdown" else []


def section(cells, title: str) -> list:
    """The cells from the second-level heading that begins with `title` to the next one."""
    starts = [i for i, cell in enumerate(cells) if headings(cell)]
    for start, end in pairwise([*starts, len(cells)]):
        if headings(cells[start])[0].startswith(title):
            return cells[start:end]
    return []


def pictures(cell) -> bool:
    """Does this cell's output hold a picture that needs an alt text of its own?"""
    return any(
        kind.startswith("image/")
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
    )


def test_the_book_has_every_notebook(path):
    assert f"notebooks/{path.stem}\n" in (FOLDER.parent / "_toc.yml").read_text()


def test_name_and_title(path, notebook):
    number = re.fullmatch(r"(\d\d)_[a-z0-9_]+", path.stem)
    assert number, "a notebook is called NN_topic.ipynb"
    title = notebook.cells[0].source
    assert title.startswith(f"# {number[1]} "), "the first cell is '# NN Title' and the question"
    question = "\n".join(title.splitlines()[1:])
    assert question.count("?") == 1, "the title is followed by one question"
    assert len(re.findall(r"^# ", prose(notebook.cells), re.M)) == 1, "only one first-level heading"


def test_the_second_cell_says_what_the_reader_will_be_able_to_do(notebook):
    text = notebook.cells[1].source
    assert text.startswith("**After this chapter you can**")
    assert 3 <= len(re.findall(r"^[-*] ", text, re.M)) <= 4, "three or four abilities"
    for word in ("prerequisite", "running time", "cores"):
        assert word in text.lower(), f"the second cell says nothing of {word}"


def test_the_first_code_cell_imports_and_names_the_machine(notebook):
    first = code_cells(notebook.cells)[0]
    assert "import" in first.source and "machine.line(" in first.source
    assert MEASURED in tags(first) and first.outputs


def test_a_prediction_stands_before_the_first_measurement(notebook):
    cells = notebook.cells
    assert code_cells(section(cells, "Prediction")), "a section '## Prediction' with its arithmetic"
    prediction = next(i for i, c in enumerate(cells) if any_starts(headings(c), "Prediction"))
    measured = [i for i, cell in enumerate(cells) if MEASURED in tags(cell)]
    assert all(i > prediction for i in measured[1:]), "measured before it was predicted"


def any_starts(texts, start: str) -> bool:
    return any(text.startswith(start) for text in texts)


def test_a_figure_comes_before_the_explorer_that_moves_it(notebook):
    cells = notebook.cells
    explorers = [i for i, cell in enumerate(cells) if "explore(" in code_of(cell)]
    assert explorers, "no interactive figure"
    assert any(pictures(cell) for cell in cells[: explorers[0]]), "no figure before the explorer"


def code_of(cell) -> str:
    return cell.source if cell.cell_type == "code" else ""


def test_three_exercises_each_with_stub_check_and_hidden_solution(notebook):
    cells = section(notebook.cells, "Exercises")
    for kind in ("predict", "modify", "explain"):
        assert kind in prose(cells).lower(), f"no exercise asks to {kind}"
    code = code_cells(cells)
    solutions = [cell for cell in code if "hide-cell" in tags(cell)]
    checks = [c for c in code if "exercise.check(" in c.source and "hide-cell" not in tags(c)]
    assert len(solutions) == len(checks) == 3
    for check in checks:
        stub = code[code.index(check) - 1]
        assert "None" in stub.source, f"{check.id} has no stub that runs as it stands before it"
        assert "Not answered yet" in text_of(check), f"{check.id}: commit the stub untouched"
    for solution in solutions:
        assert re.search(r"^assert exercise\.check\(", solution.source, re.M), solution.id
        assert solution.metadata.get("jupyter", {}).get("source_hidden") is True, solution.id
        above = cells[cells.index(solution) - 1]
        assert "solution" in above.source.lower(), f"{solution.id} is not announced as a solution"


def text_of(cell) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def test_the_summary_has_three_bullets_that_point_back_and_a_link_onward(path, notebook):
    last = [title for cell in notebook.cells for title in headings(cell)][-1]
    assert last == "Summary"
    text = prose(section(notebook.cells, "Summary"))
    bullets = re.findall(r"^[-*] (.+(?:\n  .+)*)", text, re.M)
    assert len(bullets) == 3
    assert all("](#" in bullet for bullet in bullets), "a bullet points at no cell that earned it"
    later = [other.name for other in PATHS if other > path]
    onward = f"]({later[0]})" if later else "Next"
    assert onward in text.split(bullets[-1])[-1], "no link to the next chapter"


def test_cells_are_few_short_and_introduced(notebook):
    code = code_cells(notebook.cells)
    assert len(code) <= 30
    for cell in code:
        assert cell.source.strip(), f"{cell.id} is empty"
        most = 30 if "hide-input" in tags(cell) else 15 + (cell is code[0])  # folded; imports
        assert len(cell.source.splitlines()) <= most, f"{cell.id} is too long"
    for above, cell in pairwise(notebook.cells):
        check = "exercise.check(" in code_of(cell) and "None" in code_of(above)
        introduced = above.cell_type == "markdown" or check
        assert cell.cell_type != "code" or introduced, f"no sentence before {cell.id}"


def test_every_picture_has_an_alt_text(notebook):
    for cell in code_cells(notebook.cells):
        if pictures(cell):
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(alt) >= 20, f"{cell.id}: say in mystnb.image.alt what the figure shows"
        for output in cell.outputs:
            for image in re.findall(r"<img [^>]*>", output.get("data", {}).get("text/html", "")):
                assert re.search(r'alt="[^"]{10,}"', image), f"{cell.id}: a picture without alt"


def test_each_measuring_cell_is_followed_by_what_holds_on_any_machine(notebook):
    cells = notebook.cells
    measured = [i for i, cell in enumerate(cells) if MEASURED in tags(cell)]
    for start in measured[1:]:  # the first is the imports, which name the machine
        following = []
        for cell in cells[start + 1 :]:
            if headings(cell):
                break
            following.append(code_of(cell))
        asserted = re.search(r"^\s*assert ", "\n".join(following), re.M)
        assert asserted, f"{cells[start].id} is measured and nothing is asserted of it"


def test_executed_in_order_without_errors_or_warnings(notebook):
    code = code_cells(notebook.cells)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error" or "raises-exception" in tags(cell), cell.id
            assert output.get("name") != "stderr", f"{cell.id} writes a warning: {output.text}"


def test_nothing_in_the_file_depends_on_who_saved_it(notebook):
    assert notebook.metadata == {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags", "mystnb", "jupyter"}, cell.id
        assert re.fullmatch(r"[a-z][a-z0-9-]*", cell.id), f"{cell.id}: give the cell a plain name"
        assert not re.fullmatch(r"[0-9a-f]{8}", cell.id), f"{cell.id} is a random id; name the cell"
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            assert "application/vnd.jupyter.widget-view+json" not in data, cell.id
            text = output.get("text", "") + data.get("text/plain", "")
            assert not re.search(r"0x[0-9a-f]{6}|/(home|root|tmp|Users)/", text), cell.id


def test_no_set_up_and_no_magic(notebook):
    for cell in code_cells(notebook.cells):
        for pattern in (r"^\s*[!%]", r"import \*", r"\bsys\.path\b", r"\bwarnings\.", r"# NBVAL"):
            assert not re.search(pattern, cell.source, re.M), f"{cell.id}: {pattern}"
        assert not {"nbval-skip", "remove-cell"} & set(tags(cell)), cell.id
        assert not cell.source.rstrip().endswith(";"), f"{cell.id}: nbval shows what ';' hides"


def test_the_lines_that_a_cache_takes_are_as_many_as_the_chapter_says():
    cells = nbformat.read(FOLDER / "03_the_kv_cache.ipynb", as_version=4).cells
    marked = sum(line.count("# NEW") for c in code_cells(cells) for line in c.source.splitlines())
    assert marked == 15 and prose(cells).count("fifteen") == 3
