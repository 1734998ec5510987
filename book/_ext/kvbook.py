"""Two small things the book needs from Sphinx: JupyterLab's heading anchors, and sharp figures."""

from pathlib import Path

from docutils import nodes
from PIL import Image


def anchor(title: str) -> str:
    """The anchor of the heading `title`, as JupyterLab writes it: spaces become hyphens.

    `[the figure](#The-figure)` then leads to the heading "The figure" in both places.
    """
    return title.replace(" ", "-")


def halve_figures(app, doctree) -> None:
    """Show each notebook figure at half its pixels: kvlib.plots draws them at double size."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir) / image["uri"]
        if "jupyter_execute" in path.parts and path.suffix == ".png":
            with Image.open(path) as picture:
                image["width"] = f"{picture.width // 2}px"


def setup(app) -> dict:
    """Register the above with Sphinx."""
    app.connect("doctree-read", halve_figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
