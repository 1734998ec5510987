"""The one look of all figures: the style file, and one colour per idea."""

from pathlib import Path

import matplotlib.pyplot as plt
from IPython import get_ipython
from matplotlib_inline.backend_inline import set_matplotlib_formats

HERE = Path(__file__).resolve().parents[1]
INSTALLED, CHECKOUT = HERE / "data" / "kv.mplstyle", HERE.parent / "figures" / "kv.mplstyle"
STYLE = str(INSTALLED if INSTALLED.exists() else CHECKOUT)

# One colour per idea (Okabe and Ito's palette, told apart by readers of every colour vision).
COLOUR = {
    "q": "#cc79a7",
    "k": "#0072b2",
    "v": "#009e73",
    "attention": "#7a5195",
    "recomputed": "#d55e00",
    "cached": "#56b4e9",
    "predicted": "#8b929b",
    "measured": "#22262b",
}
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"


def use_style() -> None:
    """Give every later figure of this session the course's look, at double pixels in a notebook."""
    plt.style.use(STYLE)
    if get_ipython() is not None:
        set_matplotlib_formats("retina", bbox_inches=None)
