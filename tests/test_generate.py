"""Generation: the same text with any cache, and a limit that is never passed in silence."""

import pytest
import torch

import kvlib
from kvlib import generate, stream
from kvlib.__main__ import main
from kvlib.generate import pick
from test_model import TINY, some_tokens, tiny

MODES = dict(
    greedy={}, sampled=dict(temperature=0.8, seed=5), top_k=dict(temperature=2, top_k=5, seed=1)
)


@pytest.mark.parametrize("how", MODES.values(), ids=MODES)
@pytest.mark.parametrize("on_limit, new", [("raise", 30), ("stop", 60), ("reprefill", 100)])
def test_every_cache_gives_the_same_tokens(how, on_limit, new):
    model, prompt = tiny(torch.float64), some_tokens(3, 11)
    texts = [
        generate(model, prompt, new, cache=cache, on_limit=on_limit, **how)
        for cache in ("static", "growing", None)
    ]
    assert texts[0].equal(texts[1]) and texts[0].equal(texts[2])
    assert texts[0].shape == (3, {"raise": 41, "stop": 41, "reprefill": 111}[on_limit])
    assert texts[0][:, :11].equal(prompt) and texts[0].dtype == torch.int64


def test_the_same_seed_samples_the_same_text_and_another_does_not():
    model, prompt = tiny(), some_tokens(1, 4)
    one, same, other = (generate(model, prompt, 20, temperature=1, seed=s) for s in (1, 1, 2))
    assert one.equal(same) and not one.equal(other)


def test_top_k_1_is_greedy():
    model, prompt = tiny(), some_tokens(2, 4)
    assert generate(model, prompt, 9, temperature=1, top_k=1, seed=0).equal(
        generate(model, prompt, 9)
    )


def test_a_sample_has_the_frequencies_that_temperature_and_top_k_ask_for():
    """Of logits 0, 1, 2, 3 at temperature 2: the share of the largest, among all and among two."""
    logits = torch.arange(4.0).expand(20_000, 4)
    for top_k, kept in ((None, 4), (2, 2), (10, 4)):  # asking for more than there are is no error
        random = torch.Generator().manual_seed(0)
        sample = pick(logits, 2.0, top_k, random)
        wanted = (torch.arange(4.0) / 2)[4 - kept :].softmax(-1)
        share = sample.bincount(minlength=4)[4 - kept :] / len(sample)
        assert (share - wanted).abs().max() < 0.02


def test_stream_yields_the_tokens_of_generate_one_by_one():
    model, prompt = tiny(), some_tokens(2, 4)
    steps = list(stream(model, prompt, 6))
    assert all(step.shape == (2,) for step in steps)
    assert torch.stack(steps, 1).equal(generate(model, prompt, 6)[:, 4:])


def test_one_token_too_many_is_refused_before_the_first_step():
    model, prompt = tiny(), some_tokens(1, 10)
    assert generate(model, prompt, 31).shape == (1, 41)  # the last token is chosen, never read
    with pytest.raises(IndexError, match="10 prompt .* 32 new .* 40: at most 31"):
        stream(model, prompt, 32)


@pytest.mark.parametrize("cache", ["static", "growing", None])
def test_reprefill_keeps_half_a_block(cache):
    model, prompt = tiny(torch.float64), some_tokens(1, 40)
    got = generate(model, prompt, 3, cache=cache, on_limit="reprefill")
    assert got[:, :41].equal(generate(model, prompt, 1))
    assert got[:, 41:].equal(generate(model, got[:, 21:41], 2)[:, 20:])


def calls(model, *args, **options):
    """What each pass of a generation reads, gets and returns: tokens, cache capacity, logits."""
    seen = []

    def note(_, inputs, logits):
        capacity = None if inputs[1] is None else inputs[1].capacity
        seen.append((inputs[0].shape[1], capacity, logits.shape[1]))

    with model.register_forward_hook(note):
        generate(model, *args, **options)
    return seen


def test_the_cache_that_was_asked_for_is_the_one_that_is_used():
    """Without it the same text comes out, only later: no test of tokens alone can tell."""
    prompt = some_tokens(2, 5)
    assert calls(tiny(), prompt, 3) == [(5, 8, 1), (1, 8, 1), (1, 8, 1)]
    assert calls(tiny(), prompt, 3, cache="growing") == [(5, None, 1), (1, None, 1), (1, None, 1)]
    assert calls(tiny(), prompt, 3, cache=None) == [(5, None, 1), (6, None, 1), (7, None, 1)]


@pytest.mark.parametrize("block, kept", [(40, 20), (7, 3), (3, 1), (1, 1)])
def test_past_the_limit_the_last_half_block_is_read_anew(block, kept):
    model = kvlib.GPT2(kvlib.GPT2Config(block, 61, 1, 1, 8)).eval()
    read = calls(model, some_tokens(1, block), 2, on_limit="reprefill")
    assert read == [(block, block, 1), (kept, block, 1)]


@pytest.mark.parametrize(
    "change, error, says",
    [
        (dict(max_new_tokens=-1), ValueError, "-1"),
        (dict(max_new_tokens=2.5), ValueError, "2.5"),
        (dict(cache="dynamic"), ValueError, "dynamic"),
        (dict(temperature=-0.1), ValueError, "-0.1"),
        (dict(temperature=float("nan")), ValueError, "nan"),
        (dict(temperature=float("inf")), ValueError, "inf"),
        (dict(top_k=0, temperature=1), ValueError, "top_k"),
        (dict(on_limit="slide"), ValueError, "slide"),
        (dict(tokens=torch.zeros(1, 0, dtype=torch.int64)), ValueError, "at least one"),
        (dict(tokens=torch.zeros(1, 3)), ValueError, "int64"),
        (dict(tokens=torch.tensor([[99]])), IndexError, "99 is outside"),
        (dict(tokens=torch.zeros(1, 41, dtype=torch.int64)), IndexError, "40"),
    ],
)
def test_bad_requests_are_refused_before_the_first_step(change, error, says):
    request = dict(tokens=some_tokens(1, 3), max_new_tokens=2) | change
    with pytest.raises(error, match=says):
        stream(tiny(), **request)


def test_no_new_tokens_gives_the_prompt_back():
    prompt = some_tokens(2, 3)
    assert generate(tiny(), prompt, 0).equal(prompt)


def test_the_model_and_the_prompt_are_left_as_they_were():
    model, prompt = tiny(), some_tokens(1, 3)
    before, kept = {k: v.clone() for k, v in model.state_dict().items()}, prompt.clone()
    generate(model, prompt, 5)
    assert prompt.equal(kept) and all(v.equal(before[k]) for k, v in model.state_dict().items())


def test_the_command_prints_the_prompt_and_what_follows(capsys):
    assert main(["generate", "To be", "--weights", "random", "--new", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("To be") and len(out.strip()) > len("To be")


def test_the_command_says_what_was_wrong(capsys):
    assert main(["generate", "To be", "--weights", "random", "--new", "9999"]) == 2
    assert "at most" in capsys.readouterr().err
    assert main(["generate", "", "--weights", "random"]) == 2


def test_config_of_tiny_is_odd_on_purpose():
    assert TINY.n_head % 2 and TINY.vocab_size % 2
    assert kvlib.GPT2Config().head_dim == 64
