"""Every plotting function draws at its extremes, in the course's style."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from kvlib import plots

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def closed_figures():
    plots.use_style()
    yield
    plt.close("all")


def drawn(ax):
    """`ax`, after its figure was drawn, so that an error in it shows."""
    ax.figure.canvas.draw()
    return ax


def test_the_style_is_found_and_used():
    assert plt.rcParams["axes.spines.top"] is False
    assert plt.rcParams["savefig.dpi"] == 200


def test_colours_of_different_ideas_differ():
    assert len(set(plots.COLOUR.values())) == len(plots.COLOUR)
    assert all(to_hex(colour) == colour for colour in plots.COLOUR.values())


@pytest.mark.parametrize("values", [[[0.0]], np.zeros((3, 4)), np.full((2, 2), np.nan)])
@pytest.mark.parametrize("signed", [False, True])
def test_heat_of_nothing_still_has_a_scale(values, signed):
    image = plots.heat(plt.subplot(), values, signed=signed, digits=1)
    drawn(image.axes)
    assert image.norm.vmax == 1.0


def test_heat_of_signed_values_is_centred_on_zero():
    image = plots.heat(plt.subplot(), [[-3.0, 1.0]], signed=True)
    assert (image.norm.vmin, image.norm.vmax) == (-3.0, 3.0)


def test_heat_keeps_one_scale_through_all_frames():
    image = plots.heat(plt.subplot(), [[0.1, 0.2]], limit=1.0)
    assert (image.norm.vmin, image.norm.vmax) == (0.0, 1.0)


def test_heat_writes_and_names_its_cells():
    ax = plt.subplot()
    plots.heat(ax, [[0.25, np.nan], [1.0, 0.5]], rows=["a", "b"], columns=["x", "y"], digits=2)
    assert [text.get_text() for text in drawn(ax).texts] == ["0.25", "1.00", "0.50"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]


@pytest.mark.parametrize("values", [[0.0], [1e-9, 1e12], [5, 4, 3, 2, 1]])
def test_bars_are_labelled_with_value_and_unit(values):
    ax = plt.subplot()
    plots.bars(ax, [f"n{i}" for i in range(len(values))], values, unit="ms")
    assert all(text.get_text().endswith(" ms") for text in drawn(ax).texts)
    assert len(ax.texts) == len(values)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_direct_label_has_its_lines_colour(side):
    label = plots.direct_label(plt.subplot(), 1, 1, "cached", plots.COLOUR["cached"], side=side)
    drawn(label.axes)
    assert label.get_color() == plots.COLOUR["cached"]


@pytest.mark.parametrize("mark", [0, -1])
def test_the_work_of_the_next_token_keeps_one_scale_for_all_models(mark):
    contexts, few, many = [1, 32, 1024], [0.2, 5.0, 200.0], [3.0, 90.0, 3300.0]
    for work in (few, many):
        ax = drawn(plots.next_token_work(contexts, work, [work[0]] * 3, "model", mark).axes[0])
        assert ax.get_ylim() == (0.1, 9999) and ax.get_ylim()[1] > max(work)
        assert ax.get_title("left").startswith(f"model, {contexts[mark]} tokens")


@pytest.mark.parametrize("step, without, cached", [(0, (4, 4), (4, 4)), (6, (10, 49), (1, 10))])
def test_a_decode_step_says_how_many_keys_each_side_computes(step, without, cached):
    figure = plots.decode_step(list("abcdefghij"), prompt=4, step=step)
    for ax, (now, so_far) in zip(figure.axes, (without, cached), strict=True):
        assert drawn(ax).get_xlabel() == f"keys computed: {now} now, {so_far} so far"


def test_the_last_decode_step_reads_all_old_rows_and_writes_one():
    letters = [text.get_text() for text in plots.decode_step("abcd", 2, 2).axes[1].texts]
    assert letters.count("R") == 2 * 3 and letters.count("W") == 2


def test_masks_are_labelled_right_or_off():
    masks = {"a": np.tri(2, 5, 3, dtype=bool), "b": np.ones((2, 5), dtype=bool)}
    figure = plots.mask_alignments(masks, {"a": [0.0, 1e-14], "b": [0.25, 3.0]})
    labels = [[text.get_text() for text in drawn(ax).texts] for ax in figure.axes]
    assert labels == [["right", "right"], ["off by 0.25", "off by 3"]]


@pytest.mark.parametrize("tokens", [1, 40])
def test_cache_rows_of_one_token_and_of_many(tokens):
    figure = plots.cache_rows(np.ones((tokens, 32)), -np.ones((tokens, 32)), ["x"] * tokens, "h")
    assert len(drawn(figure.axes[0]).get_yticks()) == tokens


def test_growth_names_each_line_beside_its_end():
    ax = plots.growth([1, 10, 100], {"linear, cache": [1, 10, 100], "rest": [1, 2, 3]}).axes[0]
    assert [text.get_text() for text in drawn(ax).texts] == ["linear, cache", "rest"]


@pytest.mark.parametrize("passes", [1, 8])
def test_repeated_rows_draws_and_counts_each_row(passes):
    ax = drawn(plots.repeated_rows(passes).axes[0])
    assert len(ax.patches) == passes * (passes + 1) // 2
    before = passes * (passes - 1) // 2
    assert [text.get_text() for text in ax.texts] == [f"{passes} new", f"{before} made before"]


@pytest.mark.parametrize("query", [(-1, -1), (0, 0), (1, 1), (2, 2)])
def test_one_query_keeps_its_axes_and_shows_every_point(query):
    keys, values = np.array([[0, 1], [1, 0], [1, 1]]), np.array([[4, 0], [0, 2], [4, 2]])
    scores = keys @ np.array(query) / np.sqrt(2)
    weights = np.exp(scores * 4) / np.exp(scores * 4).sum()
    figure = plots.one_query(query, keys, values, scores, weights, weights @ values, "abc")
    match, score, weight, mean = (drawn(ax) for ax in figure.axes)
    assert (*score.get_xlim(), *weight.get_xlim(), *mean.get_xlim()) == (
        -2.9,
        4.2,
        0,
        1.3,
        -0.6,
        5.4,
    )
    assert match.get_xlim()[0] < min(query) and max(query) < match.get_ylim()[1]
    assert [round(bar.get_width(), 6) for bar in weight.patches] == list(np.round(weights, 6))


def test_the_querys_name_never_lies_on_a_keys():
    """At (2, 2) it was printed over "sat"."""
    keys, names = np.array([[0, 1], [1, 0], [1, 1]]), ["the", "cat", "sat"]
    for query in np.ndindex(4, 4):
        at = np.array(query) - 1
        figure = plots.one_query(at, keys, keys, [0.0] * 3, [1 / 3] * 3, keys[2], names)
        figure.canvas.draw()
        *others, label = [text.get_window_extent() for text in figure.axes[0].texts]
        assert not label.count_overlaps(others), at
        plt.close(figure)


@pytest.mark.parametrize("bugs", [1, 60])
def test_the_bug_matrix_has_a_row_a_bug_and_rings_the_named_check(bugs):
    found = {f"bug {i}": ["a"] if i % 2 else [] for i in range(bugs)}
    figure = plots.bug_matrix(found, dict.fromkeys(found, "b"), ["a", "b"])
    ax = drawn(figure.axes[0])
    assert len(ax.patches) == 2 * bugs and len(ax.lines) == bugs


@pytest.mark.parametrize("gap", [[0.0], [1e-9] * 300, [float("nan"), float("inf"), 1e-3]])
def test_a_parting_of_nothing_of_everything_and_of_no_numbers_is_drawn(gap):
    ax = drawn(plots.parting(gap, 1e-6, [len(gap)], "title").axes[0])
    assert ax.get_yscale() == "log" and len(ax.collections[0].get_segments()) == len(gap)


@pytest.mark.parametrize("tokens", [[1, 2], [1, 10, 1000, 1_000_000]])
def test_the_memory_bill_names_every_device_at_its_size(tokens):
    devices = {"laptop": 8, "card": 80}
    ax = drawn(plots.memory_bill(tokens, 2.0, [2.0 + n / 1e3 for n in tokens], devices).axes[0])
    assert {"laptop", "card", "weights", "weights + cache"} <= {t.get_text() for t in ax.texts}
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_only_the_parts_that_a_panel_shows_are_named_below_it():
    """The arithmetic of 0 ms was named, and no panel showed it."""
    parts = {"launch": [1.0, 1.0], "weights": [0.5, 1.0], "arithmetic": [0.0, 0.0]}
    figure = plots.moves({"walk": ([1, 2], parts, [2.0, 2.0])}, ["width"])
    named = [text.get_text() for text in figure.texts if text.get_text() != "■"]
    assert named == ["launch", "weights", "dots: measured"]


@pytest.mark.parametrize("contexts", [[8], [8, 64, 1000]])
def test_dots_without_a_line_are_named_above_them(contexts):
    lines = {"growing": [0.03] * len(contexts)}
    dots = dict.fromkeys(contexts, 0.04)
    figure = plots.against_context(lines, contexts, {"growing": dots, "other": dots})
    labels = {text.get_text(): text.xy for text in drawn(figure.axes[0]).texts}
    assert set(labels) == {"growing cache", "other"}
    assert labels["other"] == (contexts[-2:][0], 40.0)


def test_the_picture_of_the_whole_marks_every_chapter():
    """Chapter 07 was written, and its mark was not in the picture."""
    picture = (ROOT / "figures" / "overview.svg").read_text(encoding="utf-8")
    marked = re.findall(r"<!-- (\d\d) -->", picture)  # text is drawn as paths, each so named
    chapters = sorted(path.name[:2] for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert marked == chapters, "run `make figures`"


def test_every_plotting_function_is_drawn_by_a_test():
    """A chapter that adds a figure adds its test: here, or beside the numbers it draws."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    functions = [name for name in plots.__all__ if callable(getattr(plots, name))]
    assert [name for name in functions if f".{name}(" not in tests] == []
