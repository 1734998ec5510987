"""The anchor of a heading, written as JupyterLab writes it.

`[the figure](#The-figure)` then leads to the heading "The figure" in JupyterLab and in the book.
"""


def anchor(title: str) -> str:
    """The anchor of a heading with this text: spaces become hyphens, nothing else changes."""
    return title.replace(" ", "-")


def setup(app) -> dict:
    """Let Sphinx import this module by name; it changes nothing else."""
    return {"parallel_read_safe": True, "parallel_write_safe": True}
