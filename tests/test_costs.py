"""The arithmetic equals the tensors' own bytes and the FLOPs that torch counts, exactly."""

import subprocess
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import kvlib
from kvlib import GPT2Config, StaticCache, costs
from test_model import TINY, some_tokens, tiny

GPT2_124M = GPT2Config.preset("gpt2")


def counted(run) -> int:
    """FLOPs that torch counts during `run()`, on the one attention kernel it counts on a CPU."""
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), torch.inference_mode(), counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("tokens", [1, 2, 17, 40])
def test_prefill_flops_are_the_counted_ones(tokens):
    model, ids = tiny(), some_tokens(1, tokens)
    assert counted(lambda: model(ids, last_only=True)) == costs.prefill_flops(TINY, tokens)
    everywhere = costs.prefill_flops(TINY, tokens, last_only=False)
    assert counted(lambda: model(ids)) == everywhere


@pytest.mark.parametrize("context", [1, 2, 30, 40])
def test_decode_flops_are_the_counted_ones(context):
    model, ids, cache = tiny(), some_tokens(1, context), StaticCache(TINY)
    if context > 1:
        with torch.inference_mode():
            model(ids[:, :-1], cache)
    assert counted(lambda: model(ids[:, -1:], cache)) == costs.decode_flops(TINY, context)


def test_full_size_flops_are_the_counted_ones():
    model = kvlib.load("gpt2", weights="random")
    ids = some_tokens(1, 64, 50257)
    assert counted(lambda: model(ids, last_only=True)) == costs.prefill_flops(GPT2_124M, 64)


def test_published_figures():
    assert costs.cache_bytes_per_token(GPT2_124M) == 73_728 == 72 * 1024
    assert costs.cache_bytes(GPT2_124M, 1024) == 75_497_472
    assert costs.weight_bytes(GPT2_124M) == 4 * 124_439_808


@pytest.mark.parametrize("preset", ["nano", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_parameters_are_those_of_the_model(preset):
    config = GPT2Config.preset(preset)
    with torch.device("meta"):
        model = kvlib.GPT2(config)
    assert costs.parameters(config) == sum(p.numel() for p in model.parameters())


def test_a_step_reads_every_weight_but_the_other_positions():
    unread = 1023 * 768 * 4
    assert costs.decode_bytes(GPT2_124M, 100) == 4 * 124_439_808 - unread + 100 * 73_728


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, "8"])
def test_bad_sizes_are_refused(bad):
    for call in (
        lambda: costs.cache_bytes(TINY, bad),
        lambda: costs.cache_bytes(TINY, 1, bad),
        lambda: costs.decode_flops(TINY, bad),
        lambda: costs.prefill_flops(TINY, bad),
    ):
        with pytest.raises(ValueError, match="positive integer"):
            call()


def test_costs_need_no_torch():
    code = "import sys, kvlib; kvlib.costs, kvlib.GPT2Config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
