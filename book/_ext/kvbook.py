"""What the book needs from Sphinx beside its extensions: JupyterLab's heading anchors, sharp
figures, links from chapters to the functions they use, a description for every page, and HTML that
follows the rules for readers of all abilities.
"""

import html
import posixpath
import re
from pathlib import Path

import nbformat
from docutils import nodes
from PIL import Image

import api

LONGEST = 200  # characters of a page's description; search engines show no more
SUBJECT = (
    "A course in Jupyter notebooks on the key-value cache of language models: built, proved equal "
    "to recomputation, and measured beside predictions made by arithmetic."
)
USED = "kvlib functions used here"
CARD, CARD_SIZE = "_static/social.png", (1200, 630)
CARD_ALT = (
    "The KV Cache, Measured, beside a heat map of the keys a small GPT-2 keeps, a row a token"
)


def anchor(title: str) -> str:
    """The anchor of the heading `title`, as JupyterLab writes it: spaces become hyphens.

    `[the figure](#The-figure)` then leads to the heading "The figure" in both places.
    """
    return title.replace(" ", "-")


def append_functions(app, docname: str, source: list[str]) -> None:
    """End a chapter with the functions of kvlib that it uses, each with a link to the API page.

    The notebook itself stays as it is: in JupyterLab a function's help is a key away.
    """
    if docname.startswith("notebooks/"):
        notebook = nbformat.reads(source[0], as_version=4)
        text = functions_used(f"{posixpath.basename(docname)}.ipynb", notebook)
        notebook.cells.append(nbformat.v4.new_markdown_cell(text, id="functions-used"))
        source[0] = nbformat.writes(notebook)


def functions_used(name: str, notebook) -> str:
    """A section in Markdown: the functions that a chapter uses, by the heading they first serve."""
    told = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = api.functions(name)
    lines = [
        f"## {USED}",
        "",
        "Each where the chapter uses it first, with a link to what it does.",
    ]
    for heading in dict.fromkeys(re.findall(r"^##+ (.+)$", told, re.M)):
        if heading in found:
            links = [f"[`{title}`](../book/api.md#{anchor(title)})" for title in found[heading]]
            lines += ["", f"- [{heading}](#{anchor(heading)}): {', '.join(links)}"]
    return "\n".join(lines)


def halve_figures(app, doctree) -> None:
    """Show each notebook figure at half its pixels: kvlib.plots draws them at double size."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir) / image["uri"]
        if "jupyter_execute" in path.parts and path.suffix == ".png":
            with Image.open(path) as picture:
                image["width"] = f"{picture.width // 2}px"


def description(doctree) -> str:
    """The first paragraph of a page, as many whole sentences as a search engine shows."""
    first = next(doctree.findall(nodes.paragraph), None) if doctree else None
    text = " ".join(first.astext().split()) if first else ""
    while len(text) > LONGEST and ". " in text:
        text = text.rpartition(". ")[0] + "."
    return text if 20 < len(text) <= LONGEST else SUBJECT


def name_page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Give a page its description, for search engines and for links shared elsewhere.

    The picture's address is absolute only where `html_baseurl` says where the book is published.
    """
    about = description(doctree)
    title = html.unescape(re.sub("<.*?>", "", context.get("title", "")))
    context["book_title"] = app.config.html_title
    if pagename == app.config.root_doc:
        context["docstitle"] = None  # the page's title is the book's
    base = app.config.html_baseurl.rstrip("/")
    up = posixpath.relpath(".", posixpath.dirname(pagename) or ".")
    tags = {
        "description": about,
        "og:title": title or app.config.html_title,
        "og:description": about,
        "og:type": "article" if pagename.startswith("notebooks/") else "website",
        "og:site_name": app.config.html_title,
        "og:image": f"{base or up}/{CARD}",
        "og:image:alt": CARD_ALT,
        "og:image:width": str(CARD_SIZE[0]),
        "og:image:height": str(CARD_SIZE[1]),
        "twitter:card": "summary_large_image",
    }
    lines = (
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" '
        f'content="{html.escape(content)}">'
        for name, content in tags.items()
    )
    context["metatags"] = context.get("metatags", "") + "\n".join(lines)


def mend_body(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Call what is folded by what it is, and make the bibliography a list of items.

    Cells are folded for exercises alone: a check's input, the whole of a solution. docutils gives
    the bibliography's entries a role that ARIA has withdrawn.
    """
    for old, new in (
        (" code cell source", " the check"),
        (" code cell content", " the solution"),
        ('role="doc-biblioentry"', 'role="listitem"'),
    ):
        context["body"] = context.get("body", "").replace(old, new)


def drop_unused_mathjax(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Spare a page without formulas the script for them; Sphinx asks whether its children have any.

    The first page has every chapter for a child.
    """
    used = app.env.get_domain("math").data["has_equations"]
    if app.builder.name == "html" and not used.get(pagename, False):
        scripts = context["script_files"]
        context["script_files"] = [s for s in scripts if "mathjax" not in str(s).lower()]


def setup(app) -> dict:
    """Register the above with Sphinx."""
    app.connect("source-read", append_functions)
    app.connect("doctree-read", halve_figures)
    for change in (name_page, mend_body, drop_unused_mathjax):
        app.connect("html-page-context", change, priority=900)  # after Sphinx's own
    return {"parallel_read_safe": True, "parallel_write_safe": True}
