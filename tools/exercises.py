"""Write book/exercises.md: every exercise of every chapter, with its difficulty and a link to it.

    python tools/exercises.py

An exercise is a third-level heading under `## Exercises` that begins with its kind. Its difficulty,
1 to 3, is the tag `difficulty-N` of the cell that the heading stands in; 2 where there is none.
"""

import re
from pathlib import Path
from typing import NamedTuple

import nbformat

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "book" / "exercises.md"
KINDS = ("Predict", "Modify", "Explain")
LEVELS = {1: "a first step", 2: "a second look", 3: "a small program"}
HEAD = """# All exercises

Every chapter ends with three: one to predict a number, one to modify a program, one to explain what
happens. Each has a cell for your answer, a check that says what a wrong answer usually comes from,
and a solution that runs. In JupyterLab (`make lab`) you can answer them; here in the book checks
and solutions are folded away until you open them.
"""
LEGEND = """
## By difficulty

The number of dots says what an exercise asks for: one, a line of arithmetic or the choice of an
answer; two, a second look at what the chapter showed, or a few lines of code; three, a small
program.
"""


class Exercise(NamedTuple):
    """One exercise: where it is, what it is called, and its difficulty from 1 to 3."""

    notebook: str
    chapter: str
    title: str
    difficulty: int

    @property
    def link(self) -> str:
        """The exercise's title, leading to its heading in the chapter."""
        return heading_link(self.title, self.notebook, self.title)


def heading_link(text: str, notebook: str, heading: str) -> str:
    """`text` as a link from a page of the book to a heading of a notebook."""
    return f"[{text}](../notebooks/{notebook}#{heading.replace(' ', '-')})"


def exercises(path: Path) -> list[Exercise]:
    """The exercises of one notebook, in order."""
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"]
    chapter = cells[0].source.splitlines()[0].removeprefix("# ")
    found, inside = [], False
    for cell in cells:
        for level, title in re.findall(r"^(##+) (.+)$", cell.source, re.M):
            if level == "##":
                inside = title == "Exercises"
            elif inside and title.startswith(KINDS):
                tags = " ".join(cell.metadata.get("tags", []))
                level = re.search(r"difficulty-([123])", tags)
                found.append(Exercise(path.name, chapter, title, int(level[1]) if level else 2))
    return found


def dots(difficulty: int) -> str:
    """Filled and empty dots, of three."""
    return "●" * difficulty + "○" * (3 - difficulty)


def page(found: list[Exercise]) -> str:
    """The page, in Markdown."""
    lines = [HEAD, "## By chapter", ""]
    for chapter in dict.fromkeys(exercise.chapter for exercise in found):
        own = [exercise for exercise in found if exercise.chapter == chapter]
        lines += [f"### {chapter}", "", "| exercise | difficulty |", "|---|---|"]
        lines += [f"| {e.link} | {dots(e.difficulty)} {e.difficulty} of 3 |" for e in own] + [""]
    lines.append(LEGEND.strip())
    for level, name in LEVELS.items():
        lines += ["", f"### {dots(level)} {name.capitalize()}", ""]
        lines += [f"- {e.chapter[:2]}: {e.link}" for e in found if e.difficulty == level]
    return "\n".join(lines) + "\n"


def read() -> list[Exercise]:
    """All exercises, in the order of the chapters."""
    return [e for path in sorted((ROOT / "notebooks").glob("*.ipynb")) for e in exercises(path)]


if __name__ == "__main__":
    PAGE.write_text(page(read()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
