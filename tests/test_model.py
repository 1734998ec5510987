"""The model is GPT-2: the same numbers as transformers' own, and the same however it is fed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config as HFConfig
from transformers import GPT2LMHeadModel

import kvlib
from kvlib import GPT2, GPT2Config, GrowingCache, StaticCache, costs
from kvlib.model import attention_mask, positions

TINY = GPT2Config(block_size=40, vocab_size=61, n_layer=2, n_head=3, n_embd=24)
CACHES = {"growing": GrowingCache, "static": StaticCache}


def tiny(dtype=torch.float32) -> GPT2:
    """A small model whose weights are large enough for any mistake to move the logits."""
    model = GPT2(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8) if parameter.dim() == 2 else None
    return model.to(dtype).eval()


def some_tokens(batch: int, tokens: int, vocab: int = TINY.vocab_size) -> torch.Tensor:
    return torch.randint(vocab, (batch, tokens), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize(
    "sizes",
    [
        dict(),
        dict(n_layer=3, n_head=5, n_embd=35, n_positions=77, vocab_size=101),
    ],
)
def test_logits_equal_those_of_transformers(dtype, limit, sizes):
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(HFConfig(**sizes)).to(dtype).eval()
    ours = kvlib.from_hf(theirs)
    tokens = some_tokens(2, 70, theirs.config.vocab_size)
    with torch.inference_mode():
        assert (ours(tokens) - theirs(tokens).logits).abs().max() < limit


def test_gpt2_has_the_published_number_of_parameters():
    model = kvlib.load("gpt2", weights="random")
    assert sum(p.numel() for p in model.parameters()) == 124_439_808
    assert costs.parameters(model.config) == 124_439_808


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("dtype, limit", [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_split_gives_the_logits_of_one_pass(kind, dtype, limit, data):
    batch = data.draw(st.integers(1, 3), label="batch")
    chunks = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6), label="chunks")
    chunks = [c for i, c in enumerate(chunks) if sum(chunks[: i + 1]) <= TINY.block_size]
    model, cache = tiny(dtype), CACHES[kind](TINY, batch, dtype=dtype)
    tokens = some_tokens(batch, sum(chunks))
    with torch.inference_mode():
        whole = model(tokens)
        parts = torch.cat([model(part, cache) for part in tokens.split(chunks, 1)], 1)
    assert (whole - parts).abs().max() < limit * whole.abs().max()
    assert cache.length == cache.position == sum(chunks)


@pytest.mark.parametrize("kind", [*CACHES, None])
def test_a_padded_row_gives_what_it_gives_alone(kind):
    model, tokens, padding = tiny(torch.float64), some_tokens(3, 12), torch.tensor([0, 4, 11])
    chunks = (3, 5, 1, 3)
    with torch.inference_mode():
        if kind is None:
            ragged = model(tokens, padding=padding)
        else:
            cache = CACHES[kind](TINY, 3, dtype=torch.float64)
            first, *rest = tokens.split(chunks, 1)
            ragged = [model(first, cache, padding=padding), *(model(r, cache) for r in rest)]
            ragged = torch.cat(ragged, 1)
            assert cache.position.tolist() == [12, 8, 1]
        for row, pads in enumerate(padding.tolist()):
            alone = model(tokens[row : row + 1, pads:])
            assert (ragged[row, pads:] - alone[0]).abs().max() < 1e-11
    assert ragged.isfinite().all()


def test_last_only_is_the_last_column():
    model, tokens = tiny(), some_tokens(2, 9)
    assert torch.allclose(model(tokens, last_only=True), model(tokens)[:, -1:], atol=1e-5)


@pytest.mark.parametrize(
    "tokens, error, says",
    [
        (torch.zeros(1, 0, dtype=torch.int64), ValueError, "at least one token"),
        (torch.zeros(0, 4, dtype=torch.int64), ValueError, "at least one token"),
        (torch.zeros(1, 4), ValueError, r"int64.*torch\.float32, \(1, 4\)"),
        (torch.zeros(1, 4, dtype=torch.int32), ValueError, "int64"),
        (torch.zeros(4, dtype=torch.int64), ValueError, r"\(B, T\)"),
        ([[1, 2]], ValueError, "list"),
        (torch.tensor([[1, 61]]), IndexError, "61 is outside 0 to 60"),
        (torch.tensor([[-1, 6]]), IndexError, "-1 is outside"),
        (torch.zeros(1, 41, dtype=torch.int64), IndexError, "position 40.*has 40"),
    ],
)
def test_bad_tokens_are_refused_and_nothing_changes(tokens, error, says):
    model, cache = tiny(), StaticCache(TINY)
    with pytest.raises(error, match=says):
        model(tokens, cache)
    assert cache.length == 0


def test_bad_padding_is_refused():
    model, tokens = tiny(), some_tokens(2, 5)
    for padding, says in [
        (torch.tensor([1]), r"shape \(2,\)"),
        (torch.tensor([1.0, 0.0]), "int64"),
        (torch.tensor([0, -1]), "-1 is outside 0 to 39"),
        (torch.tensor([40, 0]), "40 is outside"),
    ]:
        with pytest.raises(ValueError, match=says):
            model(tokens, padding=padding)
    cache = GrowingCache(TINY, 2)
    model(tokens, cache)
    with pytest.raises(ValueError, match="first tokens"):
        model(tokens, cache, padding=torch.tensor([0, 1]))


def test_the_mask_of_a_padded_batch_is_the_one_worked_out_by_hand():
    """Rows `_ a b` and `c d e`, then one more: a pad is read by itself alone, to stay finite."""
    padding = torch.tensor([1, 0])
    prompt = [[[1, 0, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert attention_mask(3, 3, padding, "cpu")[:, 0].int().tolist() == prompt
    then = [[[0, 1, 1, 1]], [[1, 1, 1, 1]]]
    assert attention_mask(1, 4, padding, "cpu")[:, 0].int().tolist() == then


def test_no_mask_is_made_where_attention_needs_none():
    assert attention_mask(1, 5, None, "cpu") is None
    assert attention_mask(4, 4, None, "cpu") is None
    assert attention_mask(2, 3, None, "cpu").int().tolist() == [[1, 1, 0], [1, 1, 1]]


def test_all_that_a_pass_makes_lies_on_the_device_of_its_tokens():
    """The meta device has shapes and no numbers, and refuses to be mixed with the CPU."""
    with torch.device("meta"):
        model, padding = GPT2(TINY), torch.zeros(2, dtype=torch.int64)
        tokens = torch.zeros(2, 5, dtype=torch.int64)
        cache = StaticCache(TINY, 2, device="meta")
    for first in (dict(padding=padding), {}):
        assert model(tokens, cache, **first).device.type == "meta"
    for past in (0, torch.zeros(2, dtype=torch.int64, device="meta")):
        assert positions(past, 3, "meta").device.type == "meta"
    assert attention_mask(2, 5, None, "meta").device.type == "meta"


def test_tokens_of_the_caller_stay_as_they_are():
    model, tokens = tiny(), some_tokens(2, 5)
    before = tokens.clone()
    model(tokens, GrowingCache(TINY, 2))
    assert tokens.equal(before)


def test_a_training_step_moves_every_parameter():
    model, tokens = tiny().train(), some_tokens(2, 40)
    model(tokens).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_initialisation_is_gpt2s_and_repeatable_whatever_the_threads():
    threads = torch.get_num_threads()
    try:
        states = []
        for count in (1, 2):
            torch.set_num_threads(count)
            states.append(kvlib.load("nano", weights="random", seed=3).state_dict())
    finally:
        torch.set_num_threads(threads)
    assert all(tensor.equal(states[1][name]) for name, tensor in states[0].items())
    assert abs(float(states[0]["wte.weight"].std()) - 0.02) < 1e-4
    scaled = float(states[0]["h.2.mlp.c_proj.weight"].std()) * (2 * 6) ** 0.5
    assert abs(scaled - 0.02) < 1e-3
    assert float(states[0]["h.0.ln_1.weight"].min()) == 1 and not states[0]["ln_f.bias"].any()
    other = kvlib.load("nano", weights="random", seed=4).state_dict()
    assert not other["wte.weight"].equal(states[0]["wte.weight"])


@pytest.mark.parametrize(
    "sizes, says",
    [
        (dict(n_embd=10, n_head=3), "multiple of 3"),
        (dict(n_layer=0), "n_layer.*0"),
        (dict(vocab_size=-1), "vocab_size.*-1"),
        (dict(block_size=2.0), "block_size.*2.0"),
        (dict(n_head=True), "n_head.*True"),
    ],
)
def test_impossible_configurations_are_refused(sizes, says):
    with pytest.raises(ValueError, match=says):
        GPT2Config(**sizes)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match="gpt2-xl"):
        GPT2Config.preset("gpt3")
