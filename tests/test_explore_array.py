"""The interactive heat map: what the page carries, and what the browser makes of it."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from browser import chromium
from kvlib.explore_array import explore_array

module = importlib.import_module("kvlib.explore_array")
SCRIPT = Path(__file__).parent.parent / "book" / "_static" / "explore_array.js"
WORDS = ["a", "bee", "cat", "</script>"]


def attention(layers=2, heads=3, tokens=4) -> np.ndarray:
    """Causal weights that differ from head to head; what cannot be read is NaN."""
    scores = np.random.default_rng(0).normal(size=(layers, heads, tokens, tokens)) * 3
    future = ~np.tri(tokens, dtype=bool)
    scores[..., future] = -np.inf
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    weights[..., future] = np.nan
    return weights


@pytest.fixture
def shown(monkeypatch):
    bundles = []
    monkeypatch.setattr(module, "display", lambda bundle, raw: bundles.append(bundle))
    return bundles


@pytest.fixture
def live(monkeypatch):
    boxes, build = [], module.live
    monkeypatch.setattr(module, "live", lambda *a: boxes.append(build(*a)) or boxes[-1])
    return boxes


AXES = {"layer": range(2), "head": ["x", "y", "z"]}


def show(values=None, **options):
    values = attention() if values is None else values
    explore_array(values, AXES, WORDS, WORDS, alt="Weights", **options)


def test_one_output_carries_the_live_and_the_kernel_free_figure(shown):
    show(reveal="step")
    (bundle,) = shown
    assert bundle["text/plain"] == "explore array: layer 0 to 1, head x to z, step 0 to 3"
    assert bundle["text/html"].count("</script>") == 1
    data = json.loads(re.search(r'json">(.*?)</script>', bundle["text/html"]).group(1))
    assert [name for name, _ in data["axes"]] == ["layer", "head", "step"]
    assert (data["low"], data["high"]) == (0.0, pytest.approx(np.nanmax(attention())))


def test_the_live_control_hides_rows_not_yet_written(shown, live):
    show(reveal="step")
    *controls, image, _ = live[0].children
    before = image.value
    assert [control.value for control in controls] == [0, "x", 3]
    controls[2].value = 1
    assert image.value != before


def test_the_first_picture_may_be_chosen(shown, live):
    show(reveal="step", default={"layer": 1, "head": "z"})
    assert [control.value for control in live[0].children[:3]] == [1, "z", 3]
    assert '<option value="2" selected>z</option>' in shown[0]["text/html"]
    with pytest.raises(ValueError, match="default head='w' is not among the choices"):
        show(default={"head": "w"})


def test_the_browser_draws_the_numbers_it_was_given(shown, tmp_path):
    """The picture of numbers must decode to the bytes it was made from, on any screen."""
    show(reveal="step")
    page = f'<!doctype html><meta charset="utf-8"><body>{shown[0]["text/html"]}'
    (tmp_path / "page.html").write_text(page + f"<script>{SCRIPT.read_text()}</script>", "utf-8")
    weights = attention()
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 700, "height": 900})
        errors = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto((tmp_path / "page.html").as_uri())
        canvas, controls = tab.locator("canvas"), tab.locator("input, select").all()
        canvas.wait_for()
        first = canvas.evaluate("c => c.toDataURL()")
        assert top(weights[0, 0, 3]) in canvas.get_attribute("aria-label")
        for control, key in zip(controls, ["ArrowRight", "ArrowDown", "ArrowLeft"], strict=True):
            control.press(key)
        label = canvas.get_attribute("aria-label")
        assert label.startswith("Weights (layer 1, head y, step 2). cat: ")
        assert top(weights[1, 1, 2, :3]) in label
        assert canvas.evaluate("c => c.toDataURL()") != first
        assert errors == []


def top(row) -> str:
    """The largest entry of a row, as the page says it."""
    return f"{WORDS[int(np.argmax(row))]} {np.max(row):.2f}"


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("values", [np.zeros((2, 3, 4, 4)), attention() - 0.3])
def test_any_scale_is_drawn(shown, signed, values):
    show(values, signed=signed)
    assert len(shown) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (attention(layers=3), "values of shape (3, 3, 4, 4) do not fit (2, 3, 4, 4)"),
        (np.full((2, 3, 4, 4), np.nan), "no number at all"),
        (np.full((2, 3, 4, 4), np.inf), "infinities"),
    ],
)
def test_what_cannot_be_drawn_is_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        show(values)


def test_more_numbers_than_a_page_may_carry_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="96 numbers are .* bytes of HTML and 1,000 is the limit"):
        show()
