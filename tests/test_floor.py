"""The floor's arithmetic by hand, the levers' parity, and the step whose shapes never change."""

import contextlib
import dataclasses
import json
import unittest.mock

import matplotlib.pyplot as plt
import pytest
import torch

import measured
from kvlib import (
    GPT2,
    GPT2Config,
    GrowingCache,
    StaticCache,
    costs,
    decoders,
    floor,
    graph,
    levers,
    parity,
    plots,
)
from kvlib.samples import Samples

CONFIG = GPT2Config(block_size=40, vocab_size=58, n_layer=2, n_head=4, n_embd=32)
HAND = floor.Speeds(read=100.0, product=1000.0, attention=10.0, dispatch_s=0.5)


@pytest.fixture(scope="module")
def model():
    return GPT2(CONFIG).eval()


def prompt(length: int, rows: int = 1) -> torch.Tensor:
    return torch.randint(58, (rows, length), generator=torch.Generator().manual_seed(length))


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
    assert probes["dispatch_s"][1] == 12 and probes["read"][1] == 400_000_000
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


def test_threads_are_as_before_even_after_an_error():
    before = torch.get_num_threads()
    assert floor.on_threads(1, torch.get_num_threads)() == 1
    with pytest.raises(ZeroDivisionError):
        floor.on_threads(1, lambda: 1 / 0)()
    assert torch.get_num_threads() == before


def test_a_narrow_model_keeps_the_other_sizes():
    assert floor.at_width(CONFIG, 8).config == dataclasses.replace(CONFIG, n_embd=8)
    assert floor.noop(3).config.n_layer == 3


@pytest.mark.parametrize("form", ["plain", "separate", "transposed", "split", "packed"])
def test_a_rebuilt_model_is_the_same_function(model, form):
    if levers.unusable(form):
        pytest.skip(levers.unusable(form))
    twin = levers.rebuilt(model, form)
    assert twin.wte.weight is model.wte.weight and "forward" not in vars(model)
    report = parity.check(
        levers.Loop(twin), decoders.from_kvlib(model), checks=["one token at a time", "chunks"]
    )
    assert report.ok and not any(row.verdict == "not applicable" for row in report.rows)


def test_fewer_bits_stay_within_what_is_declared(model):
    rungs = {"bfloat16": levers.Loop(levers.rebuilt(model, "bfloat16"))}
    rungs["same"] = levers.Loop(model, "growing", grad=True)
    found = levers.parities(rungs, decoders.from_kvlib(model), prompt(12), [6, 1, 1, 4])
    assert 0 < found["bfloat16"][0] < found["bfloat16"][1]
    assert found["same"][0] <= found["same"][1] < found["bfloat16"][1] / 100


def test_a_form_that_cannot_be_used_says_why(monkeypatch, capfd):
    def broken(module):
        raise RuntimeError("no such engine\nand a long story")

    monkeypatch.setitem(levers.FORMS, "broken", broken)
    assert levers.unusable("broken") == "no such engine"
    assert levers.unusable("plain") == ""
    levers.unusable("int8")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("cache", [StaticCache, GrowingCache])
def test_a_loop_decodes_with_and_without_gradients(model, cache):
    kind = "static" if cache is StaticCache else "growing"
    for grad in (False, True):
        loop = levers.Loop(model, kind, grad=grad)
        state = loop.start(1, 9)
        assert isinstance(state, cache)
        loop.step(prompt(8), state)
        assert state.update(0, *torch.zeros(2, 1, 4, 1, 8))[0].requires_grad == grad
        logits, state = loop.last(prompt(1), loop.truncate(state, 3))
        assert logits.shape == (1, 1, 58) and state.length == 4


def test_gains_compare_what_ran_in_the_same_round():
    samples = {
        name: Samples(runs, 0, {})
        for name, runs in {"a": (4.0, 8.0), "b": (2.0, 4.0), "c": (1.0, 1.0)}.items()
    }
    assert levers.gains(samples, {}) == {"b": 2.0, "c": 3.0}
    assert levers.gains(samples, {"c": "a"})["c"] == 6.0
    assert levers.ratios({"a": 6, "b": 3, "c": 2}, {"c": "a"}) == {"b": 2, "c": 3}
    text = levers.table(samples, {"b": 2.5, "d": 1.0}, {"b": 2.0, "d": 1.5}).splitlines()
    assert text[2].split() == ["b", "3000.0", "2.50", "2.00"] and text[4].split()[1] == "-"


def test_prefills_and_nats(model):
    assert list(levers.prefills(model, 8, repeats=1))[:2] == [
        "prefill: all logits",
        "prefill: last logits",
    ]
    ids = prompt(20)[0]
    with torch.no_grad():
        logits = model(ids[None])[0, 4:-1]
        right = torch.nn.functional.cross_entropy(logits, ids[5:])
    assert levers.nats(decoders.from_kvlib(model), ids, 5) == pytest.approx(float(right), abs=1e-4)


def test_a_fixed_step_passes_parity(model):
    names = ["one token at a time", "chunks", "rows independent", "truncate and continue"]
    names += ["past the capacity", "fresh state", "two states"]
    for each in (model, levers.rebuilt(model, "plain")):
        report = parity.check(graph.FixedDecoder(each), decoders.from_kvlib(model), checks=names)
        assert report.ok, report


def test_a_fixed_step_calls_the_same_operators_on_the_same_storage(model):
    """What a graph records must hold for every later step."""
    step, seen = graph.FixedStep(model, capacity=10), []
    for _ in range(3):
        found = floor.profiled(lambda: graph.again(step, prompt(1)), 1)
        seen.append((floor.called(found, 1), step.keys.data_ptr(), step.position.data_ptr()))
        step(prompt(1))
    assert len(set(seen)) == 1 and step.position.item() == step.length == 3


def test_a_fixed_step_goes_on_from_a_cache(model):
    cache = StaticCache(CONFIG, 2)
    with torch.no_grad():
        model(prompt(6, 2), cache)
        step = graph.fixed(model, cache, "fixed")
        right = graph.eager(model, cache, prompt(1, 2))
    assert cache.length == step.length == 6 and step.capacity == 7
    assert torch.allclose(graph.again(step, prompt(1, 2)), right, atol=1e-5)
    assert torch.equal(graph.again(step, prompt(1, 2)), step(prompt(1, 2)))
    with pytest.raises(IndexError, match="all 7 rows"):
        step(prompt(1, 2))
    with pytest.raises(IndexError, match="all 7 rows"):
        step.capture()  # a row is written before anything is recorded


def test_a_fixed_step_refuses_what_cannot_be_right(model):
    with pytest.raises(ValueError, match="capacity 41 must be from 1 to block_size, 40"):
        graph.FixedStep(model, capacity=41)
    with pytest.raises(ValueError, match=r"must be \(1, 1\), not \(1, 2\)"):
        graph.FixedStep(model)(prompt(2))
    with pytest.raises(ValueError, match="device='cuda'"):
        graph.record_floor(model)


class SimulatedGraph:
    """A CUDA graph on a CPU: in the `with` nothing counts as run, a replay runs it."""

    def __init__(self, step):
        self.step, self.replays = step, 0

    @contextlib.contextmanager
    def capturing(self, graph):
        tensors = self.step.keys, self.step.values, self.step.position
        before = [tensor.clone() for tensor in tensors]
        yield
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)

    def replay(self):
        self.replays += 1
        self.step.logits.copy_(self.step.run())


def test_a_captured_step_replays_what_was_recorded(model, monkeypatch):
    """Capturing runs nothing and leaves the step where it was; logits outlive the next replay."""
    cache = StaticCache(CONFIG, capacity=12)
    with torch.no_grad():
        model(prompt(5), cache)
        right = [model(prompt(1) + i, cache) for i in range(3)]
    cache.truncate(5)
    step = graph.FixedStep(model, capacity=6)
    step.load(cache)
    simulated = SimulatedGraph(step)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: simulated)
    monkeypatch.setattr(torch.cuda, "graph", simulated.capturing)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, unittest.mock.MagicMock())
    step.capture()  # with one row left: a warm-up that moved on would write past the end
    assert step.position.item() == step.length == 5 and step.graph is simulated
    first = step(prompt(1))
    assert torch.allclose(first, right[0], atol=1e-5) and simulated.replays == 1
    with pytest.raises(IndexError):
        step(prompt(1))
    step.truncate(5)
    second = step(prompt(1) + 1)
    assert not torch.equal(second, first) and torch.allclose(first, right[0], atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_graph_is_the_same_step():
    there = GPT2(CONFIG).eval().to("cuda")
    checks = ["one token at a time", "chunks", "truncate and continue"]
    decoder = graph.FixedDecoder(there, graph=True)
    assert parity.check(decoder, decoders.from_kvlib(there), checks=checks).ok
    twin = levers.rebuilt(there, "plain")
    rows = {row["way"]: row for row in graph.record_floor(twin, 20, repeats=3)["rows"]}
    assert rows["graph"]["gap"] < 1e-3 and rows["compiled graph"]["median_s"] > 0


def test_recordings_are_found_by_kind_and_named_after_the_machine(tmp_path):
    machine = {"device_name": "A Card", "processor": "p", "threads": 2}
    path = graph.save({"kind": "floor", "machine": machine, "rows": []}, tmp_path)
    assert path.name == "a-card-floor.json"
    (tmp_path / "other.json").write_text(json.dumps({"kind": "peers"}))
    assert [found["kind"] for found in floor.recordings(tmp_path, "floor")] == ["floor"]
    rows = [dict(engine="kvlib", work="w", ratio=1.0), dict(engine="other", work="w", ratio=1.5)]
    assert floor.peers_table({"rows": rows}).splitlines()[2].split() == ["other", "1.50"]


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
