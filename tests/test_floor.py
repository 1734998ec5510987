"""The floor's arithmetic by hand, the levers' parity, and the step whose shapes never change."""

import dataclasses
import json

import matplotlib.pyplot as plt
import pytest
import torch

import measured
from kvlib import (
    GPT2,
    GPT2Config,
    StaticCache,
    costs,
    floor,
    graph,
    plots,
)
from kvlib.samples import Samples
from tiny import CONFIG, prompt

HAND = floor.Speeds(read=100.0, product=1000.0, attention=10.0, dispatch_s=0.5)


@pytest.fixture(scope="module")
def model():
    return GPT2(CONFIG).eval()


def test_the_parts_of_a_step_are_bytes_and_flops_over_the_speeds():
    part = HAND.parts(CONFIG, 7, batch=3)
    cache = 3 * 7 * 2 * 2 * 32 * 4
    assert part["launch"] == 0.5 * 2 and part["cache"] == cache / 10
    assert part["weights"] == (costs.decode_bytes(CONFIG, 7, 3) - cache) / 100
    assert part["arithmetic"] == 3 * costs.decode_flops(CONFIG, 1) / 1000
    assert HAND.parts(CONFIG, 7, weight_bytes=1)["weights"] == part["weights"] / 4
    work = max(part["weights"], part["arithmetic"]) + part["cache"]
    assert HAND.step_s(CONFIG, 7, 3) == part["launch"] + work
    ahead = dataclasses.replace(HAND, dispatch_s=work, ahead=True)
    assert ahead.step_s(CONFIG, 7, 3) == 2 * work  # two layers' calls, longer than the work
    assert dataclasses.replace(ahead, dispatch_s=0).step_s(CONFIG, 7, 3) == work


@pytest.mark.parametrize("changed, regime", [
    ({}, "cache"),
    ({"attention": 1e9}, "weights"),
    ({"attention": 1e9, "product": 1e-3}, "arithmetic"),
    ({"dispatch_s": 1e9}, "launch"),
])  # fmt: skip
def test_the_regime_is_the_longest_part(changed, regime):
    assert dataclasses.replace(HAND, **changed).regime(CONFIG, 40, 2) == regime


def test_the_probes_are_calls_with_their_amounts():
    probes = floor.probes()
    assert set(probes) == {f.name for f in dataclasses.fields(floor.Speeds)} - {"ahead"}
    assert probes["dispatch_s"][1] == 12
    assert probes["dispatch_s"][0]().is_inference()  # as the steps that it predicts
    assert [sums.numel() for sums in probes["read"][0]()] == [1] * 49
    for call, _ in probes.values():
        call()
        call()  # a step of the no-op model begins anew each time


def test_a_reader_sums_what_a_step_must_read(model):
    cache = StaticCache(CONFIG, capacity=9)
    with torch.no_grad():
        model(prompt(5), cache)
    sums = floor.reader(model, cache)()
    assert len(sums) == len(list(model.parameters())) - 1 + 2 * CONFIG.n_layer
    assert sums[-1] == cache.values[-1, :, :, :5].sum()


def test_the_probe_reads_pieces_as_large_as_the_reader_does():
    """Read in pieces of another size, 400 MB went by slower than the weights themselves."""
    gpt2 = GPT2Config.preset("gpt2")
    with torch.device("meta"):
        sizes = sorted(p.numel() for p in GPT2(gpt2).parameters() if p.dim() == 2)
    sizes.remove(gpt2.block_size * gpt2.n_embd)  # of the positions one row is read
    assert sorted(floor.matrices(gpt2)) == sizes
    assert floor.probes()["read"][1] == 4 * sum(sizes)


def test_speeds_are_amounts_over_seconds(monkeypatch):
    calls = {"read": (None, 10), "product": (None, 20), "attention": (None, 30)}
    monkeypatch.setattr(floor, "probes", lambda device: calls | {"dispatch_s": (None, 4)})
    taken = lambda fns, **_: {name: Samples((2.0,), 0, {}) for name in fns}  # noqa: E731
    monkeypatch.setattr(floor, "interleave", taken)
    assert floor.measure_speeds() == floor.Speeds(5.0, 10.0, 15.0, 0.5, ahead=False)


def test_a_profile_counts_the_operators_of_one_step(capfd):
    a = torch.ones(8, 8)
    found = floor.profiled(lambda: (a @ a).relu())
    calls = {row.name: row.calls for row in floor.operators(found)}
    assert calls["aten::mm"] == 1 and calls["aten::relu"] == 1
    assert floor.called(found) == 2  # matmul calls mm, and relu clamp_min: those are inside
    assert all(row.self_s >= 0 for row in floor.operators(found))
    assert any(event.get("name") == "aten::mm" for event in floor.timeline(found))
    assert capfd.readouterr().err == ""


def test_a_step_that_is_watched_is_its_operators_and_the_gaps():
    a = torch.ones(64, 64)
    found = floor.profiled(lambda: (a @ a).relu())
    rows = floor.operators(found)
    assert sum(row.self_s for row in rows) <= 1.01 * floor.watched_s(found)
    assert floor.watched_s(found, 1) == pytest.approx(3 * floor.watched_s(found))


def test_operators_are_of_three_kinds():
    names = "baddbmm addmm linear _linear_pointwise mv _scaled_dot_product_flash_attention view"
    rows = [floor.Operator(f"aten::{name}", 1, 1.0) for name in names.split()]
    assert floor.kinds(rows) == {"products": 5.0, "attention": 1.0, "other operators": 1.0}


@pytest.mark.parametrize("product, read, threads, told", [
    (1.0, 1.9, 2, "one row keeps one core busy"),
    (1.8, 1.9, 2, "keeps the other cores busy too"),
    (1.0, 1.0, 2, "one core draws all"),
    (1.2, 3.0, 16, "one row keeps one core busy"),
    (1.0, 1.0, 1, "no core can stand idle"),
])  # fmt: skip
def test_how_many_cores_a_row_uses_is_told_as_it_was_measured(product, read, threads, told):
    speeds = {("F.linear", 1): 10.0, ("plain read", 1): 20.0}
    speeds |= {("F.linear", threads): 10 * product, ("plain read", threads): 20 * read}
    assert told in floor.cores_used(speeds, threads)


def test_predicted_and_measured_stand_beside_each_other():
    lines = floor.beside({(24, 1, 64): 2e-3}, {(24, 1, 64): 5e-3}).splitlines()
    assert lines[0].split()[:4] == ["width", "batch", "context", "predicted"]
    assert lines[1].split() == ["24", "1", "64", "2.0", "5.0", "2.50"]


def test_a_boundary_is_where_another_part_has_grown_as_long():
    times = {(24, 1, 64): 1.0, (96, 1, 64): 1.5, (768, 1, 64): 5.5}
    times |= {(768, 1, 8): 5.0, (768, 1, 1000): 6.0}
    times |= {(768, 16, 8): 9.0, (768, 16, 200): 11.0, (768, 16, 1000): 27.0}
    found = floor.boundaries(times)
    assert found["from launch to work, by width"] == 96 + (768 - 96) / 8
    assert found["to the cache, by context at batch 16"] == 200 + 800 * 6 / 16
    share = 1 / 4, 18 / 8
    assert found["to the cache, by batch at context 1000"] == 1 + 15 * (1 - share[0]) / 2
    assert floor.boundaries({key: 1.0 + key[0] for key in times}) == dict.fromkeys(
        found, float("inf")
    ) | {"from launch to work, by width": 24 + 72 * 25 / 72}


def test_a_crossing_is_joined_by_straight_lines():
    assert floor.crossing([1, 3], [0.0, 4.0], 1) == 1.5
    assert floor.crossing([1, 3], [2.0, 4.0], 1) == 1
    assert floor.crossing([1, 3], [0.0, 0.5], 1) == float("inf")


def test_threads_are_as_before_even_after_an_error():
    before = torch.get_num_threads()
    assert floor.on_threads(1, torch.get_num_threads)() == 1
    with pytest.raises(ZeroDivisionError):
        floor.on_threads(1, lambda: 1 / 0)()
    assert torch.get_num_threads() == before


def test_a_narrow_model_keeps_the_other_sizes():
    assert floor.at_width(CONFIG, 8).config == dataclasses.replace(CONFIG, n_embd=8)
    assert floor.noop(3).config.n_layer == 3


def test_recordings_are_found_by_kind_and_named_after_the_machine(tmp_path):
    machine = {"device_name": "A Card", "processor": "p", "threads": 2}
    path = graph.save({"kind": "floor", "machine": machine, "rows": []}, tmp_path)
    assert path.name == "a-card-floor.json"
    (tmp_path / "other.json").write_text(json.dumps({"kind": "peers"}))
    assert [found["kind"] for found in floor.recordings(tmp_path, "floor")] == ["floor"]
    rows = [dict(engine="kvlib", work="w", ratio=1.0), dict(engine="other", work="w", ratio=1.5)]
    told = floor.peers_table({"rows": rows, "machine": machine | {"cores": 4}}).splitlines()
    assert told[0] == "p, 2 threads of 4 cores" and told[3].split() == ["other", "1.50"]


def test_the_page_of_machines_has_a_table_for_a_step_on_a_gpu():
    way = dict(way="graph", median_s=1e-3, quartiles_s=(9e-4, 2e-3), gap=2e-6)
    recording = dict(context=500, rows=[way, way | dict(way="read", gap=None)])
    lines = measured.floor(recording)
    assert lines[-2:] == [
        "| graph | 1.00 (0.90 to 2.00) | 2.0e-06 |",
        "| read | 1.00 (0.90 to 2.00) |  |",
    ]


@pytest.mark.parametrize("xs", [[1, 2], [24, 96, 768]])
def test_moves_stack_the_parts_under_the_dots(xs):
    parts = {"launch": [1.0] * len(xs), "weights": [2.0] * len(xs)}
    figure = plots.moves({"walk": (xs, parts, [3.0] * len(xs))}, ["width"])
    figure.canvas.draw()
    (ax,) = figure.axes
    assert len(ax.collections) == 2 and ax.get_ylim()[0] == 0
    assert {"launch", "weights", "dots: measured"} <= {text.get_text() for text in figure.texts}
    plt.close(figure)


def test_rungs_draw_a_ring_a_dot_or_a_reason():
    figure = plots.rungs({"a": 1.2, "b": 20.0}, {"a": 1.1}, {"b": "no compiler", "c": "no card"})
    figure.canvas.draw()
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    assert {"no compiler", "no card"} <= {text.get_text() for text in ax.texts}
    assert ax.get_xlim()[1] > 20
    plt.close(figure)


@pytest.mark.parametrize("positions, lines", [(1, 1), (64, 1), (4096, 0)])
def test_the_regime_map_ends_where_positions_do(positions, lines):
    binds = [["launch", "weights"], ["arithmetic", "cache"]]
    step_s = [[1e-6, 0.5], [12.0, 3e3]]
    figure = plots.regime_map("model", [1, 4], [16, 4096], binds, step_s, positions)
    figure.canvas.draw()
    (ax,) = figure.axes
    assert len(ax.lines) == lines and "12,000" in {text.get_text() for text in ax.texts}
    plt.close(figure)
