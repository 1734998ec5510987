"""The step whose shapes never change: parity, the same storage, and what a graph replays."""

import contextlib
import unittest.mock

import pytest
import torch

from kvlib import GPT2, StaticCache, decoders, floor, graph, levers, parity
from tiny import CONFIG, prompt


@pytest.fixture(scope="module")
def model():
    return GPT2(CONFIG).eval()


def test_a_fixed_step_passes_parity(model):
    names = ["one token at a time", "chunks", "rows independent", "truncate and continue"]
    names += ["past the capacity", "fresh state", "two states"]
    for each in (model, levers.rebuilt(model, "whole")):
        report = parity.check(graph.FixedDecoder(each), decoders.from_kvlib(model), checks=names)
        assert report.ok, report


def test_a_fixed_step_is_compiled_in_one_piece(model):
    """One graph, and in it no copy of all layers' rows for the one that is written."""
    step = graph.FixedStep(model, capacity=10)
    with torch.no_grad():
        found = torch._dynamo.explain(step.forward)()
    assert found.graph_count == 1
    assert len({rows.untyped_storage().data_ptr() for rows in step.keys}) == CONFIG.n_layer


def test_a_fixed_step_calls_the_same_operators_on_the_same_storage(model):
    """What a graph records must hold for every later step."""
    step, seen = graph.FixedStep(model, capacity=10), []
    for _ in range(3):
        found = floor.profiled(lambda: graph.again(step, prompt(1)), 1)
        places = (each.data_ptr() for each in (*step.keys, *step.values, step.position))
        seen.append((floor.called(found, 1), *places))
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


def test_a_way_that_fails_costs_no_other_row(model, monkeypatch):
    """One that failed while it was made, as a capture does, once raised KeyError: all was lost."""
    cache = StaticCache(CONFIG, capacity=7)
    with torch.no_grad():
        model(prompt(6), cache)
    real = graph.fixed

    def failing(model, cache, name):
        if "graph" in name:
            raise RuntimeError("" if name == "graph" else "no graph")
        step = real(model, cache, "fixed")
        if name == "compiled":
            step.run = unittest.mock.Mock(side_effect=RuntimeError("no compiler\nat all"))
        return step

    monkeypatch.setattr(graph, "fixed", failing)
    calls, gaps, missing = graph.fixed_ways(model, cache, prompt(1))
    assert list(calls) == list(gaps) == ["fixed"] and gaps["fixed"] < 1e-5
    assert missing == {"graph": "", "compiled": "no compiler", "compiled graph": "no graph"}
    assert calls["fixed"]().shape == (1, 1, 58)


class SimulatedGraph:
    """A CUDA graph on a CPU: in the `with` nothing counts as run, a replay runs it."""

    def __init__(self, step):
        self.step, self.replays = step, 0

    @contextlib.contextmanager
    def capturing(self, graph):
        tensors = *self.step.keys, *self.step.values, self.step.position
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
    for wrong in (6, -1, 2.0):
        with pytest.raises(ValueError, match="of 5; give 0 to that many"):
            step.truncate(wrong)
    second = step(prompt(1) + 1)
    assert not torch.equal(second, first) and torch.allclose(first, right[0], atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_graph_is_the_same_step():
    there = GPT2(CONFIG).eval().to("cuda")
    checks = ["one token at a time", "chunks", "truncate and continue"]
    decoder = graph.FixedDecoder(there, graph=True)
    assert parity.check(decoder, decoders.from_kvlib(there), checks=checks).ok
    twin = levers.rebuilt(there, "whole")
    rows = {row["way"]: row for row in graph.record_floor(twin, 20, repeats=3)["rows"]}
    assert rows["graph"]["gap"] < 1e-3 and rows["compiled graph"]["median_s"] > 0
