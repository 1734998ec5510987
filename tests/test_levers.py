"""The levers: the same function in other forms, their gains, and the compiled step's."""

import pytest
import torch

from kvlib import GPT2, GrowingCache, StaticCache, decoders, levers, parity
from kvlib.samples import Samples
from tiny import CONFIG, prompt


@pytest.fixture(scope="module")
def model():
    return GPT2(CONFIG).eval()


@pytest.mark.parametrize("form", ["whole", "separate", "transposed", "split", "packed"])
def test_a_rebuilt_model_is_the_same_function(model, form):
    if levers.unusable(form):
        pytest.skip(levers.unusable(form))
    twin = levers.rebuilt(model, form)
    assert twin.wte.weight is model.wte.weight and "forward" not in vars(model)
    report = parity.check(
        levers.Loop(twin), decoders.from_kvlib(model), checks=["one token at a time", "chunks"]
    )
    assert report.ok and not any(row.verdict == "not applicable" for row in report.rows)


def test_a_prepared_step_takes_any_form(model, monkeypatch):
    """The rung in bfloat16 once ran module by module, and was held against the prepared step."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    logits = []
    forms = "float32", "bfloat16"
    for decoder in [decoders.from_kvlib(model), *(levers.prepared(model, form) for form in forms)]:
        _, state = decoder.step(prompt(5), decoder.start(1, 8))
        logits.append(decoder.step(prompt(1), state)[0])
        assert decoder.once.seen, "the step was left to the model"
    assert torch.equal(logits[0], logits[1])
    assert 0 < (logits[0] - logits[2]).abs().max() < 0.05


def test_fewer_bits_stay_within_what_is_declared(model):
    rungs = {"bfloat16": levers.Loop(levers.rebuilt(model, "bfloat16"))}
    rungs["same"] = levers.Loop(model, "growing", grad=True)
    found = levers.parities(rungs, decoders.from_kvlib(model), prompt(12), [6, 1, 1, 4])
    assert 0 < found["bfloat16"][0] < found["bfloat16"][1]
    assert found["same"][0] <= found["same"][1] < found["bfloat16"][1] / 100


def test_bfloat16_is_the_same_numbers_with_and_without_onednn(monkeypatch):
    layer, x = torch.nn.Linear(64, 96), torch.randn(1, 1, 64)
    with torch.no_grad():
        first = levers.bfloat16(layer)(x)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        second, right = levers.bfloat16(layer)(x), layer(x)
    assert first.dtype == second.dtype == torch.float32
    assert torch.allclose(first, right, atol=0.05) and torch.allclose(second, right, atol=0.05)
    assert not torch.equal(second, right)


def test_a_form_that_cannot_be_used_says_why(monkeypatch, capfd):
    def broken(module):
        raise RuntimeError("no such engine\nand a long story")

    monkeypatch.setitem(levers.FORMS, "broken", broken)
    assert levers.unusable("broken") == "no such engine"
    assert levers.unusable("whole") == ""
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


def test_a_loop_without_gradients_runs_as_the_prepared_step_does(model):
    """From the one rung to the other the mode once changed too, from no_grad to inference_mode."""
    for grad, inference in ((True, False), (False, True)):
        loop = levers.Loop(model, grad=grad)
        logits, _ = loop.step(prompt(2), loop.start(1, 4))
        assert logits.is_inference() == inference and not logits.requires_grad


def test_verdicts_say_what_passes():
    lines = levers.verdicts({"exact": (1e-6, 2e-5), "rough": (0.5, 0.1)}).splitlines()
    assert lines[0].split() == "exact off by 1.0e-06, tolerance 2.0e-05: pass".split()
    assert lines[1].endswith("FAIL")


def test_the_compiled_step_is_held_against_the_prepared_one(model, monkeypatch):
    """Predicted over the prepared step, its gain was once measured over one with fixed shapes."""
    compiled, turns = [], {}
    monkeypatch.setattr(torch, "compile", lambda fn: compiled.append(fn) or fn)

    def taken(ways, repeats):
        turns.update(ways)
        runs = {"prepared": (6.0, 9.0, 8.0), "compiled": (3.0, 3.0, 4.0)}
        return {name: Samples(runs[name], 0, {}) for name in ways}

    monkeypatch.setattr(levers, "interleave", taken)
    gain, (gap, tolerance) = levers.compiled_gain(model, 9, repeats=3)
    assert gain == 2.0 and list(turns) == ["prepared", "compiled"] and len(compiled) == 1
    assert gap < 1e-5 < tolerance
    assert torch.allclose(turns["prepared"](), turns["compiled"](), atol=1e-5)


@pytest.mark.parametrize("there, found", [({"g++", "clang++"}, "g++"), (set(), None)])
def test_the_compiler_is_the_first_that_is_there(monkeypatch, there, found):
    monkeypatch.setattr(levers.shutil, "which", lambda name: name if name in there else None)
    assert levers.compiler() == found
