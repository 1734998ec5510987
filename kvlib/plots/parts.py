"""What figures are made of, drawn into given axes: heat maps, bars, names beside lines."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from .style import COLOUR, DIVERGING, SEQUENTIAL


def heat(
    ax: Axes,
    values,
    *,
    signed: bool = False,
    limit: float | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    digits: int | None = None,
) -> AxesImage:
    """The image drawn into `ax` for `values` (rows, columns), row 0 on top; NaN is left grey.

    Magnitudes get a sequential map from 0 to `limit`, `signed` values a diverging one from -limit
    to limit, so zero is always the map's middle. `limit` defaults to the largest magnitude: pass
    one number for all frames of an explorer. `digits` writes each value in its cell.
    """
    array = np.ma.masked_invalid(np.asarray(values, dtype=float))
    if limit is None:
        limit = float(abs(array).max()) if array.count() else 1.0
    limit = limit or 1.0  # all zeros still need a scale
    image = ax.imshow(
        array,
        cmap=plt.get_cmap(DIVERGING if signed else SEQUENTIAL).with_extremes(bad="#e4e7eb"),
        vmin=-limit if signed else 0.0,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
    )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    for axis, labels in ((ax.xaxis, columns), (ax.yaxis, rows)):
        if labels is not None:
            axis.set_ticks(range(len(labels)), labels)
        else:
            axis.set_major_locator(MaxNLocator(integer=True))
    if digits is not None:
        write_cells(ax, array, image, digits)
    return image


def write_cells(ax: Axes, array, image: AxesImage, digits: int) -> None:
    """Write each number of `array` into its cell of `image`, dark on light and light on dark."""
    for (row, column), value in np.ma.ndenumerate(array):  # leaves out what is masked
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
        colour = "white" if dark else "#22262b"
        ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=colour)


def bars(
    ax: Axes,
    names: Sequence[str],
    values: Sequence[float],
    *,
    colour: str | Sequence[str] = COLOUR["measured"],
    unit: str = "",
    form: str = "{:,.3g}",
) -> BarContainer:
    """Horizontal bars, the first on top, each labelled at its end with its value and `unit`."""
    container = ax.barh(range(len(names)), values, color=colour, height=0.62)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    labels = [f"{form.format(value)} {unit}".strip() for value in values]
    ax.bar_label(container, labels, padding=5, color="#3a3f47", fontsize=11)
    ax.margins(x=0.2)
    ax.spines[["bottom", "left"]].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xticks([])
    return container


def direct_label(ax: Axes, x: float, y: float, text: str, colour: str, *, side: str = "right"):
    """The name of a line written beside its point (x, y), instead of a legend; left or right."""
    offset, align = ((7, 0), "left") if side == "right" else ((-7, 0), "right")
    return ax.annotate(
        text, (x, y), offset, textcoords="offset points", color=colour, ha=align, va="center"
    )
