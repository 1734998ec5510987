"""Interactive figures: the form without a kernel, the live one, and what is refused."""

import base64
import html
import importlib
import io
import json
import re

import ipywidgets
import matplotlib.pyplot as plt
import pytest
from PIL import Image

from kvlib.explore import explore

module = importlib.import_module("kvlib.explore")  # the package's own `explore` is the function


def line(slope, dashed=False):
    """A line through the origin.

    Only the first sentence is alt text.
    """
    _, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, 1], [0, slope], "--" if dashed else "-")
    ax.set_ylim(0, 4)


@pytest.fixture
def shown(monkeypatch):
    """The mime bundles that explore displays, in order."""
    bundles = []
    monkeypatch.setattr(module, "display", lambda bundle, raw: bundles.append(bundle))
    return bundles


@pytest.fixture
def live(monkeypatch):
    """The live controls that explore builds, in order."""
    boxes, build = [], module.live
    monkeypatch.setattr(module, "live", lambda *a: boxes.append(build(*a)) or boxes[-1])
    return boxes


def page_data(bundle) -> dict:
    return json.loads(re.search(r'json">(.*?)</script>', bundle["text/html"]).group(1))


def test_one_output_carries_the_live_and_the_kernel_free_figure(shown):
    explore(line, slope=(1, 3), dashed=[False, True])
    (bundle,) = shown
    assert set(bundle) == {module.WIDGET, "text/html", "text/plain"}
    assert bundle["text/plain"] == "explore line: slope 1 to 3, dashed False to True"
    data = page_data(bundle)
    assert data["labels"] == [["1", "2", "3"], ["False", "True"]]
    assert len(set(data["frames"])) == 6 == len(data["alt"])
    assert data["alt"][1] == "A line through the origin (slope 1, dashed True)"


def test_pictures_are_twice_as_sharp_as_they_are_shown(shown):
    explore(line, slope=[1])
    frame = page_data(shown[0])["frames"][0]
    image = Image.open(io.BytesIO(base64.b64decode(frame.split(",")[1])))
    assert image.size == (600, 400)
    assert 'width="300" height="200"' in shown[0]["text/html"]


def test_the_first_picture_is_the_default_and_needs_no_script(shown):
    explore(line, slope=(1, 3), dashed=[False, True], default={"slope": 2})
    page, data = shown[0]["text/html"], page_data(shown[0])
    assert f'<img src="{data["frames"][2]}"' in page
    assert f'alt="{html.escape(data["alt"][2])}"' in page
    assert "<output>2</output>" in page and '<option value="0" selected>False' in page


def test_apart_from_its_pictures_the_html_is_the_same_each_time(shown):
    explore(line, slope=(1, 3))
    explore(line, slope=(1, 3))
    assert shown[0]["text/html"] == shown[1]["text/html"]
    assert shown[0]["text/plain"] == shown[1]["text/plain"]


def test_each_control_is_labelled_and_none_remembers(shown):
    explore(line, slope=(1, 3), dashed=[False, True])
    controls = re.findall(r"<label[^>]*><span>(\w+)</span><(\w+)(.*?)>", shown[0]["text/html"])
    assert [(name, tag) for name, tag, _ in controls] == [("slope", "input"), ("dashed", "select")]
    assert all('autocomplete="off"' in rest for _, _, rest in controls)


def test_the_live_control_draws_again(shown, live):
    calls = []

    def plot(slope):
        calls.append(slope)
        line(slope)

    explore(plot, slope=(1, 3), default={"slope": 2}, alt="slope {slope}")
    slider, image, _ = live[0].children
    before = image.value
    assert calls == [1, 2, 3] and slider.value == 2 and 'alt="slope 2"' in before
    slider.value = 3
    assert calls == [1, 2, 3, 3] and 'alt="slope 3"' in image.value != before


def test_the_live_default_is_the_page_default(shown, live):
    explore(line, slope=(1, 3), default={"slope": 2})
    assert live[0].children[1].value in shown[0]["text/html"]


def test_an_error_in_the_plot_is_raised_at_once():
    def plot(n):
        raise ZeroDivisionError("no picture")

    with pytest.raises(ZeroDivisionError, match="no picture"):
        explore(plot, n=[1])


def test_an_error_under_a_live_control_is_not_swallowed(shown, live):
    """ipywidgets.interactive hides what a callback raises; ours must reach the reader."""
    broken = []

    def plot(n):
        if broken:
            raise ZeroDivisionError("no picture")
        line(n)

    explore(plot, n=[1, 2])
    broken.append(True)
    with pytest.raises(ZeroDivisionError, match="no picture"):
        live[0].children[0].value = 2


def test_figures_are_closed_and_older_ones_left_alone(shown):
    mine = plt.figure()
    explore(line, slope=(1, 3))
    assert plt.get_fignums() == [mine.number]
    plt.close(mine)


def test_a_figure_may_be_returned(shown):
    figure, ax = plt.subplots(figsize=(2, 1))
    explore(lambda n: ax.plot([n]) and figure, alt="a line", n=[1, 2])
    assert len(set(page_data(shown[0])["frames"])) == 2
    plt.close(figure)


def test_numbers_get_a_slider_and_names_a_menu():
    assert isinstance(module.control("n", [1, 2.5], 1), ipywidgets.SelectionSlider)
    assert isinstance(module.control("n", ["a", "b"], "a"), ipywidgets.Dropdown)
    assert isinstance(module.control("n", [False, True], True), ipywidgets.Dropdown)


def test_ranges_include_both_ends_and_round():
    assert module.options("x", (0, 3)) == [0, 1, 2, 3]
    assert module.options("x", (0.1, 0.5, 0.1)) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert module.options("x", (5, 5)) == [5]


def test_text_cannot_leave_its_element(shown):
    explore(line, slope=[1], dashed=["</script><b>"], alt='</script>" {slope}')
    page = shown[0]["text/html"]
    assert page.count("</script>") == 1 and "<b>" not in page


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"slope": (0, 100)}, "101 slope = 101 pictures and 100 is the limit"),
        ({"slope": (0, 50), "dashed": [False, True]}, "51 slope x 2 dashed = 102"),
        ({"slope": []}, "slope has no values"),
        ({"slope": (3, 1)}, "is empty"),
        ({"slope": (1, 3, 0)}, "is empty"),
        ({"slope": ("a", "b")}, "is no range"),
        ({}, "nothing to explore"),
        ({"slope": [1], "default": {"slope": 9}}, "default slope=9 is not among"),
        ({"slope": [1], "default": {"slop": 1}}, "default slop=1 is not among"),
    ],
)
def test_what_cannot_be_explored_is_refused(choices, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        explore(line, **choices)


def test_pictures_too_heavy_for_a_page_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="bytes of HTML and 1,000 is the limit"):
        explore(line, slope=[1])


def test_a_plot_that_leaves_no_figure_is_named():
    with pytest.raises(ValueError, match=r"nothing\(\{'n': 1\}\) left no figure"):

        def nothing(n):
            pass

        explore(nothing, n=[1])
