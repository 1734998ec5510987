"""Write book/api.md: the signature and docstring of every public name of kvlib, from its source.

    python tools/api.py

The source is parsed and not imported, so that the page is the same under every version of Python
and torch. Each name also links to the places in the chapters that use it; `functions` turns that
round, and the book ends each chapter with it.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

import kvlib
from exercises import heading_link

ROOT = Path(__file__).parent.parent
PAGE, PACKAGE = ROOT / "book" / "api.md", ROOT / "kvlib"
STOREYS = {
    "Show: numbers in, pictures out": "explore explore_array plots animate exercise",
    "Lab: examine any decoder": "parity judge bugs decoders timing memory allocator floor machine",
    "Engine: run a model": "generate step graph levers weights tokenizer train corpus look",
    "Model: arithmetic, cache and costs": "model caches config product costs shapes models bill",
}
PLUMBING = {"main", "add_arguments"}  # of the command line
WIDEST = 88
HEAD = """# The functions of `kvlib`

Generated from the source, storey by storey: a module imports from its own storey and from those
below it. What a chapter uses comes first in each module, with links to where; the parts it is made
of are folded below. Names written `kvlib.name` can be had from the top, as in
`from kvlib import load`; for all others import the module. [Notation](notation.md) says what the
letters in shapes mean.
"""


def files(module: str) -> list[Path]:
    """The source of a module, or of each file of a package, its `__init__` first."""
    folder = PACKAGE / module
    return sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def definitions(module: str) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """The public functions and classes that a module or package defines, or lets out of another."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files(module)]
    shown, package = let_out(trees[0]), (PACKAGE / module).is_dir()
    for node in (node for tree in trees for node in tree.body):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name in PLUMBING:
            continue
        if ast.get_docstring(node) and (node.name in shown if package else node.name[0] != "_"):
            yield node
    for node in trees[0].body:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 1 and not package:
            lent = {part.name for part in node.names} & shown
            there = definitions(node.module) if lent else ()
            yield from (other for other in there if other.name in lent)


def let_out(tree: ast.Module) -> set[str]:
    """The names in a module's `__all__`."""
    lists = [node for node in tree.body if isinstance(node, ast.Assign | ast.AugAssign)]
    lists = [node.value for node in lists if ast.unparse(node).startswith("__all__")]
    return {name for found in lists for name in ast.literal_eval(found)}


def parameters(node: ast.FunctionDef) -> list[str]:
    """The parameters of a function as they would be written, without `self`."""
    given = node.args
    plain = given.posonlyargs + given.args
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    found = [written(*pair) for pair in zip(plain, defaults, strict=True)]
    if plain and plain[0].arg in ("self", "cls"):
        found = found[1:]
    if given.vararg:
        found.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        found.append("*")
    found += [written(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return found + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def written(parameter: ast.arg, default: ast.expr | None) -> str:
    """One parameter with its type and default."""
    text = ast.unparse(parameter)
    equals = " = " if parameter.annotation else "="
    return text if default is None else f"{text}{equals}{ast.unparse(default)}"


def call(name: str, parts: list[str], returns: str = "") -> str:
    """How `name` is called; one part a line where one line would be long."""
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDEST:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """How a function is called, or a class made: by its `__init__`, or by its annotated fields."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return call(node.name, parameters(node), returns)
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return call(node.name, parameters(part))
    fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    return call(node.name, fields)


def methods(node: ast.ClassDef) -> list[str]:
    """A line for each public method or property of a class that has a docstring."""
    lines = []
    for part in node.body:
        about = ast.get_docstring(part) if isinstance(part, ast.FunctionDef) else None
        if about and not part.name.startswith("_"):
            plain = any(ast.unparse(d).endswith("property") for d in part.decorator_list)
            how = part.name if plain else " ".join(signature(part).split())
            lines.append(f"- `{how}`: {prose(' '.join(about.partition(chr(10) * 2)[0].split()))}")
    return lines


def prose(docstring: str) -> str:
    """A docstring as Markdown: outside backticks, its stars and dollars are only themselves."""
    parts = docstring.split("`")
    parts[::2] = [re.sub(r"([*$<])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


@functools.cache
def uses() -> dict[str, list[tuple[str, str, str]]]:
    """`module.name` or `name` -> where chapters use it first: (notebook, its number, heading)."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        known = imported("\n".join(cell.source for cell in cells if cell.cell_type == "code"))
        heading, seen = "", set()
        for cell in cells:
            if cell.cell_type == "markdown":
                heading = (re.findall(r"^##+ (.+)$", cell.source, re.M) or [heading])[-1]
            elif heading:
                for name in sorted(called(cell.source, known) - seen):
                    found.setdefault(name, []).append((path.name, path.stem[:2], heading))
                    seen.add(name)
    return found


def imported(source: str) -> dict[str, str]:
    """What a name stands for that is imported from kvlib: a module, `name` or `module.name`."""
    known = {"kvlib": "kvlib"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvlib":
            for part in node.names:
                known[part.asname or part.name] = inside(f"{node.module}.{part.name}")
    return known


def inside(name: str) -> str:
    """A dotted name as seen from within kvlib."""
    return name.removeprefix("kvlib.")


def called(source: str, known: dict[str, str]) -> set[str]:
    """The names of kvlib that a cell uses, among those that its notebook imports."""
    tree = ast.walk(ast.parse(source))
    names = (ast.unparse(node) for node in tree if isinstance(node, ast.Name | ast.Attribute))
    parts = (name.partition(".") for name in names)
    return {inside(known[first] + dot + rest) for first, dot, rest in parts if first in known}


def places(module: str, name: str) -> list[tuple[str, str, str]]:
    """Where the chapters use a name of a module first: (notebook, its number, heading)."""
    found = uses().get(f"{module}.{name}", [])
    if kvlib.NAMES.get(name) == module:
        found = found + uses().get(name, [])
    return list(dict.fromkeys(found))


def used_in(module: str, name: str) -> str:
    """A sentence of links to where the chapters use a name; nothing where none does."""
    links = [
        heading_link(f"{number}, {title}", notebook, title)
        for notebook, number, title in places(module, name)
    ]
    return f"Used in {'; '.join(links)}." if links else ""


def titled(module: str, name: str) -> str:
    """The heading of a name on the page."""
    return f"{'kvlib' if kvlib.NAMES.get(name) == module else module}.{name}"


def functions(notebook: str) -> dict[str, list[str]]:
    """Heading of a chapter -> the names on the page that it is the first of the chapter to use."""
    found: dict[str, list[str]] = {}
    for module in " ".join(STOREYS.values()).split():
        for node in definitions(module):
            first = next((at[2] for at in places(module, node.name) if at[0] == notebook), None)
            if first:
                found.setdefault(first, []).append(titled(module, node.name))
    return found


def entry(module: str, node: ast.FunctionDef | ast.ClassDef, where: str) -> list[str]:
    """The lines of a name that readers meet: heading, signature, docstring, methods, chapters."""
    lines = [f"#### {titled(module, node.name)}", ""]
    lines += ["```python", signature(node), "```", "", prose(ast.get_docstring(node) or ""), ""]
    if isinstance(node, ast.ClassDef):
        lines += [*methods(node), ""]
    return [*lines, where, ""]


def part(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """The lines of a name that others are made of, in a list of definitions."""
    about = prose(ast.get_docstring(node) or "").replace("\n", "\n  ")
    return [f"`{' '.join(signature(node).split())}`", f": {about}", ""]


def module_lines(module: str) -> list[str]:
    """The lines of one module: what it is for, what readers meet, and what that is made of."""
    about = ast.get_docstring(ast.parse(files(module)[0].read_text(encoding="utf-8")))
    lines, parts = [f"### {module}", "", prose(about or ""), ""], []
    for node in definitions(module):
        where = used_in(module, node.name)
        if where or kvlib.NAMES.get(node.name) == module:
            lines += entry(module, node, where)
        else:
            parts += part(node)
    if parts:
        lines += [f":::{{dropdown}} Parts of {module}", "", *parts, ":::", ""]
    return lines


def page() -> str:
    """The page, in Markdown."""
    lines = [HEAD]
    for storey, modules in STOREYS.items():
        lines += [f"## {storey}", ""]
        for module in modules.split():
            lines += module_lines(module)
    text = "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
