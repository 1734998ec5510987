"""An interactive heat map over more matrices than a page could carry as pictures.

`explore_array` ships the numbers themselves, eight bits each, and `book/_static/explore_array.js`
draws the matrix that the controls choose. With a kernel the same controls call `plots.heat`.
"""

import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from . import plots
from .explore import (
    HINT,
    MAX_BYTES,
    WIDGET,
    control_html,
    data_url,
    defaults,
    draw,
    image_html,
    live,
    safe_json,
)

LEVELS = 255  # steps of the scale; the byte above them says "no number"


def explore_array(
    values,
    axes: Mapping[str, Sequence],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    alt: str,
    signed: bool = False,
    reveal: str | None = None,
    default: Mapping[str, Any] | None = None,
) -> None:
    """Display one matrix of `values` at a time, with one control for each of `axes`.

    `values` has shape (length of each axis, in order, then rows, then columns); NaN is left blank.
    One scale serves all matrices: from 0 to the largest value, or where `signed` from minus to plus
    the largest magnitude. Numbers are stored in steps of 1/254 of that span. `reveal` names one
    more slider, over the rows: rows after it stay hidden, as tokens not yet written are.
    `default` names the values shown first: else the first of each axis, and every row.
    `alt` says what the matrix shows; the choices and the largest entries of a row are added to it.

    Raises ValueError where the shape does not fit, or the numbers exceed 2 MB of HTML.
    """
    array = np.asarray(values, dtype=np.float32)
    choices = {name: list(labels) for name, labels in axes.items()}
    check_shape(array, choices, rows, columns)
    if reveal is not None:
        choices[reveal] = list(range(len(rows)))
    last = {} if reveal is None else {reveal: len(rows) - 1}
    start = defaults(choices, last | dict(default or {}))
    limit = float(np.nanmax(np.abs(array))) or 1.0

    def plot(**choice) -> Figure:
        index = tuple(choices[name].index(choice[name]) for name in axes)
        shown = array[index].copy()
        if reveal is not None:
            shown[choice[reveal] + 1 :] = np.nan
        return matrix_figure(shown, rows, columns, signed, limit)

    picture = draw(plot, start)
    page = page_html(array, choices, start, rows, columns, picture, alt, signed, limit, reveal)
    if len(page) > MAX_BYTES:
        raise ValueError(
            f"{array.size:,} numbers are {len(page):,} bytes of HTML and {MAX_BYTES:,} is the "
            "limit; give fewer matrices, rows or columns"
        )
    control: ipywidgets.VBox = live(plot, choices, start, picture, alt)
    view = {"version_major": 2, "version_minor": 0, "model_id": control.model_id}
    spans = ", ".join(f"{name} {labels[0]} to {labels[-1]}" for name, labels in choices.items())
    display({WIDGET: view, "text/html": page, "text/plain": f"explore array: {spans}"}, raw=True)


def check_shape(array, choices, rows, columns) -> None:
    """Raise ValueError where the array does not have one length for each axis, row and column."""
    expected = (*(len(labels) for labels in choices.values()), len(rows), len(columns))
    if array.shape != expected or not array.size:
        raise ValueError(
            f"values of shape {array.shape} do not fit {expected}: {', '.join(choices)}, rows, "
            "columns; give one label for each entry of each axis"
        )
    if np.isinf(array).any() or np.isnan(array).all():
        raise ValueError("values hold infinities or no number at all; give NaN only for blanks")


def matrix_figure(shown, rows, columns, signed: bool, limit: float) -> Figure:
    """A heat map of one matrix with its rows and columns named, as far as there is room."""
    figure, ax = plt.subplots(figsize=(6.6, 5.2))
    image = plots.heat(ax, shown, signed=signed, limit=limit)
    for axis, names in ((ax.yaxis, rows), (ax.xaxis, columns)):
        every = math.ceil(len(names) / 32)
        axis.set_ticks(range(0, len(names), every), names[::every], fontsize=9)
    ax.tick_params(axis="x", rotation=90)
    figure.colorbar(image, ax=ax, shrink=0.8)
    return figure


def numbers_image(array, signed: bool, limit: float) -> tuple[bytes, int, int]:
    """All matrices below one another as a grey picture, one pixel a number, and its size."""
    low = -limit if signed else 0.0
    scaled = np.clip((array - low) / (limit - low), 0, 1) * (LEVELS - 1)
    levels = np.where(np.isnan(array), LEVELS, np.round(np.nan_to_num(scaled)))
    grey = levels.astype(np.uint8).reshape(-1, array.shape[-1])
    # WebP holds at most 16,383 pixels a side, so the rows are folded into a near square.
    flat = grey.ravel()
    width = math.ceil(math.sqrt(flat.size))
    square = np.pad(flat, (0, -flat.size % width)).reshape(-1, width)
    webp = io.BytesIO()
    Image.fromarray(square).convert("RGB").save(webp, "WEBP", lossless=True, method=4)
    return webp.getvalue(), square.shape[1], square.shape[0]


def page_html(array, choices, start, rows, columns, picture, alt, signed, limit, reveal) -> str:
    """The kernel-free figure: controls, the first picture, and the numbers for the script."""
    controls = "".join(control_html(name, labels, start[name]) for name, labels in choices.items())
    colours = plt.get_cmap(plots.DIVERGING if signed else plots.SEQUENTIAL)
    data = {
        "axes": [[name, [str(label) for label in labels]] for name, labels in choices.items()],
        "reveal": reveal is not None,
        "rows": list(rows),
        "columns": list(columns),
        "low": -limit if signed else 0.0,
        "high": limit,
        "colours": [to_hex(colours(level / (LEVELS - 1))) for level in range(LEVELS)],
        "alt": alt,
        "numbers": data_url(numbers_image(array, signed, limit)),
    }
    return (
        f'<figure class="kv-array"><div class="kv-controls" hidden>{controls}</div>'
        f"{image_html(picture, alt)}"
        '<canvas hidden role="img"></canvas><p class="kv-readout" hidden><output></output></p>'
        f'<figcaption class="kv-hint">{html.escape(HINT)}</figcaption>'
        f'<script type="application/json">{safe_json(data)}</script></figure>'
    )
