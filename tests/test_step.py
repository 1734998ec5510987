"""The prepared step is the model's step, and steps aside where it is not."""

import copy

import pytest
import torch

from kvlib import GPT2, GrowingCache, StaticCache, decoders, floor, generate, product
from kvlib.graph import eager
from kvlib.model import MLP
from kvlib.step import PACKED_ROWS, Step
from tiny import CONFIG, prompt


@pytest.fixture(params=[False, True])
def model(request, monkeypatch):
    monkeypatch.setattr(product, "IN_PLACE", request.param)  # either processor
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    model, random = GPT2(CONFIG).eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # GPT-2 starts with biases of 0, which hide a lost one
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.1)
        yield model
    torch.set_num_threads(before)


@pytest.mark.parametrize("cache", [StaticCache, GrowingCache])
def test_the_same_bits_to_the_last_position(model, cache):
    step, mine, other = Step(model), cache(CONFIG), cache(CONFIG)
    for store in (mine, other):
        model(prompt(7), store)
    for position in range(7, 40):
        token = prompt(1) * position % 58
        assert step.fits(token, mine)
        assert torch.equal(step(token, mine), model(token, other, last_only=True))
    assert mine.length == 40
    with pytest.raises(IndexError, match="block_size"):
        step(token, mine)
    assert mine.length == 40


def test_a_first_token_and_one_after_padding(model):
    step = Step(model)
    assert torch.equal(step(prompt(1), StaticCache(CONFIG)), model(prompt(1), last_only=True))
    for padding in ([3], [0, 5], [0, 3, 6]):
        rows = len(padding)
        mine, other = StaticCache(CONFIG, rows), StaticCache(CONFIG, rows)
        for store in (mine, other):
            model(prompt(7, rows), store, padding=torch.tensor(padding))
        for _ in range(3):
            token = prompt(1, rows)
            assert step.fits(token, mine)
            assert torch.equal(step(token, mine), model(token, other, last_only=True))
        assert mine.padding.tolist() == padding


def test_it_steps_aside_for_the_model(model):
    """Chunks, no cache, gradients, other dtypes: whatever the model does is done."""
    step = Step(model)
    mine = StaticCache(CONFIG)
    assert not step.fits(prompt(3), mine)
    assert torch.equal(step(prompt(3), mine), model(prompt(3), last_only=True))
    assert mine.length == 3
    assert not step.fits(prompt(1), None)
    assert torch.equal(step(prompt(1), None), model(prompt(1), last_only=True))
    with torch.enable_grad():
        assert not step.fits(prompt(1), StaticCache(CONFIG))


def test_weights_that_change_or_move_are_seen(model):
    """Views of old weights would go on answering for them."""
    step = Step(model)
    before = step(prompt(1), StaticCache(CONFIG))
    layers = step.layers
    assert torch.equal(step(prompt(1), StaticCache(CONFIG)), before) and step.layers is layers
    model.h[0].mlp.c_fc.weight.mul_(2)
    changed = step(prompt(1), StaticCache(CONFIG))
    assert not torch.equal(changed, before)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fresh["h.0.mlp.c_fc.weight"] /= 2
    model.load_state_dict(fresh, assign=True)
    assert torch.equal(step(prompt(1), StaticCache(CONFIG)), before)
    model.double()
    wide = StaticCache(CONFIG, dtype=torch.float64)
    assert not step.fits(prompt(1), wide) and step(prompt(1), wide).dtype == torch.float64


def test_threads_that_change_are_seen(model):
    """The slices of the weights are one a thread, where they are cut for one row."""
    step = Step(model)
    step(prompt(1), StaticCache(CONFIG))
    layers = step.layers
    torch.set_num_threads(1)  # the fixture sets them as they were
    mine, other = StaticCache(CONFIG), StaticCache(CONFIG)
    assert torch.equal(step(prompt(1), mine), model(prompt(1), other, last_only=True))
    assert step.layers is not layers
    if torch.backends.quantized.engine in ("x86", "fbgemm"):
        few = Step(model, "int8")(prompt(1), StaticCache(CONFIG))
        assert not torch.equal(few, model(prompt(1), last_only=True)), "float32 by another name"


def test_modules_that_someone_changed_are_called(model):
    """A hook on a module, or another module in its place, must not be passed over."""
    step, heard = Step(model), []
    hook = model.h[1].attn.c_attn.register_forward_hook(lambda *_: heard.append(1))
    step(prompt(1), StaticCache(CONFIG))
    hook.remove()
    step(prompt(1), StaticCache(CONFIG))
    assert heard == [1]

    class Loud(MLP):
        def forward(self, x):
            return 2 * super().forward(x)

    other = copy.deepcopy(model)
    other.h[0].mlp.__class__ = Loud
    assert not Step(other).fits(prompt(1), StaticCache(CONFIG))


def test_decoders_and_generation_take_it(model, monkeypatch):
    taken = []
    fits = Step.fits
    monkeypatch.setattr(Step, "fits", lambda *a: taken.append(fits(*a)) or taken[-1])
    new = generate(model, prompt(5), 4)
    assert taken == [False, True, True, True] and new.shape == (1, 9)
    decoder = decoders.from_kvlib(model)
    state = decoder.start(1, 9)
    logits, state = decoder.step(prompt(5), state)
    for token in new[0, 5:8]:
        logits, state = decoder.last(token.view(1, 1), state)
    assert taken[4:] == [True] * 3 and int(logits.argmax()) == int(new[0, 8])
    assert decoder.to_float64().last(prompt(1), decoder.to_float64().start(1, 2))[0].dtype == (
        torch.float64
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("form, bound", [("packed", 1e-5), ("float16", 1e-2), ("int8", 0.2)])
def test_another_form_changes_the_logits_a_little(model, form, bound, rows):
    if form == "int8" and torch.backends.quantized.engine not in ("x86", "fbgemm"):
        with pytest.raises(ValueError, match="x86 engine"):
            Step(model, form)(prompt(1), StaticCache(CONFIG))
        return
    step, mine, other = Step(model, form), StaticCache(CONFIG, rows), StaticCache(CONFIG, rows)
    for store in (mine, other):
        model(prompt(7, rows), store)
    token = prompt(1, rows)
    want, got = model(token, other, last_only=True), step(token, mine)
    assert (got - want).abs().max() < bound * want.std()
    assert form == "packed" or not torch.equal(got, want)
    model.h[0].mlp.c_fc.weight.mul_(1.5)  # a packed copy must not answer for the old weight
    again = step(token, StaticCache(CONFIG, rows)) - model(token, last_only=True)
    assert again.abs().max() < bound * want.std()


@pytest.mark.parametrize("rows, used", [(PACKED_ROWS - 1, False), (PACKED_ROWS, True)])
def test_packed_weights_are_for_several_rows(model, rows, used):
    step, mine, token = Step(model, "packed"), StaticCache(CONFIG, rows), prompt(1, rows)
    profile = floor.profiled(lambda: eager(step, mine, token))
    names = {row.name for row in floor.operators(profile)}
    assert ("mkldnn::_linear_pointwise" in names) == used


def test_a_form_that_torch_has_not_is_refused(model, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ValueError, match="oneDNN; use 'float32'"):
        Step(model, "packed")(prompt(1), StaticCache(CONFIG))
    monkeypatch.setattr(type(torch.backends.quantized), "engine", "qnnpack")
    with pytest.raises(ValueError, match="not 'qnnpack'; use 'float16' or 'float32'"):
        Step(model, "int8")(prompt(1), StaticCache(CONFIG))


def test_an_unknown_form_is_refused(model):
    with pytest.raises(ValueError, match="'int4'; choose one of float32, packed, float16, int8"):
        Step(model, "int4")
