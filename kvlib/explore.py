"""Interactive figures that work with a kernel and without one.

`explore(plot, **choices)` draws the picture of every combination of choices once. Where a kernel
lives, Jupyter shows ipywidgets controls that call `plot` again, with whatever the session now
holds. In the HTML book there is no kernel: the same controls pick among the pictures drawn here,
moved by `book/_static/explore.js`. One output carries both; the page that shows it takes its own.
"""

import base64
import html
import io
import itertools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure
from PIL import Image

MAX_FRAMES = 100
MAX_BYTES = 2_000_000  # of HTML for one explorer: a page holds one or two and stays under 5 MB
DPI = 200  # twice the pixels a figure is shown at: sharp on a screen of double density
COLOURS = 128
WIDGET = "application/vnd.jupyter.widget-view+json"
LABEL = '<label style="margin-right:2em">'  # apart even where no style sheet is, as in JupyterLab
HINT = "To move the controls, run this cell or open the page in the book."


def explore(
    plot: Callable[..., Any],
    *,
    default: Mapping[str, Any] | None = None,
    alt: str | Callable[..., str] | None = None,
    **choices,
) -> None:
    """Display `plot` under one control per choice, live with a kernel and complete without one.

    plot(**choice) draws one matplotlib figure; it may return the figure, and does not show it. Each
    choice is a list of values (numbers get a slider, anything else a menu) or a range
    (low, high) or (low, high, step), both ends included. `default` names the values shown first;
    a choice it leaves out starts at its first value.

    `alt` describes the picture to those who cannot see it: a text in which {name} stands for a
    choice's value, or a function of the choices. Without it the first line of plot's docstring is
    taken. An error in `plot`, here or later under a control, is shown, not swallowed.

    Raises ValueError where the combinations exceed 100, or their pictures 2 MB of HTML.
    """
    values = {name: options(name, given) for name, given in choices.items()}
    start = defaults(values, default)
    check_size(values)
    combinations = [dict(zip(values, c, strict=True)) for c in itertools.product(*values.values())]
    pictures = [draw(plot, choice) for choice in combinations]
    texts = [describe(plot, alt, choice) for choice in combinations]
    page = page_html(values, start, pictures, texts)
    if len(page) > MAX_BYTES:
        raise ValueError(
            f"{len(pictures)} pictures are {len(page):,} bytes of HTML and {MAX_BYTES:,} is the "
            "limit; give fewer values to a choice or draw a smaller figure"
        )
    control = live(plot, values, start, pictures[combinations.index(start)], alt)
    view = {"version_major": 2, "version_minor": 0, "model_id": control.model_id}
    display({WIDGET: view, "text/html": page, "text/plain": summary(plot, values)}, raw=True)


def options(name: str, given) -> list:
    """The values one choice may take, in order, from a list or a (low, high, step) range."""
    if isinstance(given, tuple):
        if len(given) not in (2, 3) or not all(isinstance(part, (int, float)) for part in given):
            raise ValueError(f"{name}={given!r} is no range; give (low, high) or (low, high, step)")
        low, high, step = given if len(given) == 3 else (*given, 1)
        if step <= 0 or high < low:
            raise ValueError(f"{name}={given!r} is empty; give low <= high and a positive step")
        count = math.floor((high - low) / step + 1e-9) + 1
        return [round(low + i * step, 10) for i in range(count)]  # no 0.30000000000000004
    values = list(given)
    if not values:
        raise ValueError(f"{name} has no values; give a list of at least one")
    return values


def defaults(values: Mapping[str, list], default: Mapping[str, Any] | None) -> dict:
    """The choice shown first: the first value of each, unless `default` says another."""
    start = {name: options[0] for name, options in values.items()}
    for name, value in (default or {}).items():
        if name not in values or value not in values[name]:
            raise ValueError(
                f"default {name}={value!r} is not among the choices; take one of "
                f"{values.get(name, list(values))}"
            )
        start[name] = values[name][values[name].index(value)]
    return start


def check_size(values: Mapping[str, list]) -> None:
    """Raise ValueError where there is nothing to choose or too many pictures to draw."""
    if not values:
        raise ValueError("nothing to explore; name at least one choice with its values")
    frames = math.prod(len(options) for options in values.values())
    if frames > MAX_FRAMES:
        sizes = " x ".join(f"{len(options)} {name}" for name, options in values.items())
        raise ValueError(
            f"{sizes} = {frames} pictures and {MAX_FRAMES} is the limit; give fewer values"
        )


def draw(plot: Callable[..., Any], choice: Mapping[str, Any]) -> tuple[bytes, int, int]:
    """The picture plot(**choice) draws, as WebP, with its width and height in CSS pixels."""
    before = set(plt.get_fignums())
    try:
        result = plot(**choice)
        made = [number for number in plt.get_fignums() if number not in before]
        if isinstance(result, Figure):
            figure = result
        elif made:
            figure = plt.figure(made[-1])
        else:
            raise ValueError(f"{name_of(plot)}({choice}) left no figure; draw one, do not show it")
        raw = io.BytesIO()
        figure.savefig(raw, format="png", dpi=DPI, pil_kwargs={"compress_level": 1})
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)
    image = Image.open(raw).convert("RGB")
    webp = io.BytesIO()
    image.quantize(COLOURS).convert("RGB").save(webp, "WEBP", lossless=True, method=2)
    return webp.getvalue(), image.width // 2, image.height // 2


def describe(plot, alt, choice: Mapping[str, Any]) -> str:
    """The alt text of one picture."""
    shown = {name: label(value) for name, value in choice.items()}
    if callable(alt):
        return alt(**choice)
    if alt is not None and "{" in alt:
        return alt.format(**shown)
    first = alt or (plot.__doc__ or name_of(plot)).strip().splitlines()[0].rstrip(".")
    return first + " (" + ", ".join(f"{name} {value}" for name, value in shown.items()) + ")"


def page_html(values, start, pictures, texts) -> str:
    """The kernel-free figure: controls, the first picture, and all pictures as data."""
    first = list(itertools.product(*values.values())).index(tuple(start.values()))
    controls = "".join(control_html(name, opts, start[name]) for name, opts in values.items())
    data = {
        "labels": [[label(value) for value in opts] for opts in values.values()],
        "alt": texts,
        "frames": [data_url(picture) for picture in pictures],
    }
    return (
        f'<figure class="kv-explore"><div class="kv-controls" hidden>{controls}</div>'
        f"{image_html(pictures[first], texts[first])}"
        f'<figcaption class="kv-hint">{HINT}</figcaption>'
        f'<script type="application/json">{safe_json(data)}</script></figure>'
    )


def data_url(picture: tuple[bytes, int, int]) -> str:
    """The picture itself, written as an address."""
    return "data:image/webp;base64," + base64.b64encode(picture[0]).decode()


def image_html(picture: tuple[bytes, int, int], alt: str) -> str:
    """The picture as an image element that shrinks with its page."""
    _, width, height = picture
    return (
        f'<img src="{data_url(picture)}" alt="{html.escape(alt)}" '
        f'width="{width}" height="{height}" style="max-width:100%;height:auto">'
    )


def control_html(name: str, opts: list, value) -> str:
    """One labelled native control: a slider over numbers, a menu over anything else."""
    title, chosen = html.escape(title_of(name)), opts.index(value)
    if not numeric(opts):
        items = "".join(
            f'<option value="{i}"{" selected" if i == chosen else ""}>{html.escape(label(v))}'
            "</option>"
            for i, v in enumerate(opts)
        )
        return f'{LABEL}<span>{title}</span><select autocomplete="off">{items}</select></label>'
    shown = html.escape(label(value))
    return (
        f'{LABEL}<span>{title}</span><input type="range" min="0" max="{len(opts) - 1}" step="1" '
        f'value="{chosen}" aria-label="{title}" aria-valuetext="{shown}" autocomplete="off">'
        f"<output>{shown}</output></label>"
    )


def live(plot, values, start, picture, alt) -> ipywidgets.VBox:
    """The same figure for a session with a kernel: each control calls `plot` again."""
    image = ipywidgets.HTML(image_html(picture, describe(plot, alt, start)))
    errors = ipywidgets.Output()
    controls = {name: control(name, opts, start[name]) for name, opts in values.items()}

    def redraw(_) -> None:
        errors.clear_output()
        with errors:  # shows what `plot` raises, which a callback would otherwise hide
            choice = {name: widget.value for name, widget in controls.items()}
            image.value = image_html(draw(plot, choice), describe(plot, alt, choice))

    for widget in controls.values():
        widget.observe(redraw, names="value")
    return ipywidgets.VBox([*controls.values(), image, errors])


def control(name: str, opts: list, value) -> ipywidgets.Widget:
    """One ipywidgets control: a slider over numbers, a menu over anything else."""
    kind = ipywidgets.SelectionSlider if numeric(opts) else ipywidgets.Dropdown
    return kind(
        options=[(label(option), option) for option in opts],
        value=value,
        description=title_of(name),
        style={"description_width": "initial"},
        layout=ipywidgets.Layout(width="min(28rem, 100%)"),
    )


def summary(plot, values: Mapping[str, list]) -> str:
    """One line for readers with neither widgets nor HTML."""
    spans = [f"{name} {label(opts[0])} to {label(opts[-1])}" for name, opts in values.items()]
    return f"explore {name_of(plot)}: " + ", ".join(spans)


def numeric(opts: list) -> bool:
    """True where every value is a number, so that a slider has a direction."""
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in opts)


def label(value) -> str:
    """How a value is written beside its control."""
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def title_of(name: str) -> str:
    """How a choice is called beside its control."""
    return name.replace("_", " ")


def name_of(plot) -> str:
    """The plotting function's name, also where it is a partial."""
    return getattr(plot, "__name__", None) or getattr(plot, "func", type(plot)).__name__


def safe_json(data) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
