"""The caches keep their promises, also when they are misused or a pass fails halfway."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvlib import GPT2, GPT2Config, GrowingCache, StaticCache, costs
from kvlib.generate import new_cache
from test_model import CACHES, TINY, some_tokens, tiny

both = pytest.mark.parametrize("kind", CACHES)


def rows(batch=1, heads=3, tokens=2, dim=8, dtype=torch.float32, device="cpu"):
    return torch.ones(batch, heads, tokens, dim, dtype=dtype, device=device)


@both
@pytest.mark.parametrize("keep", [0, 1, 7, 12])
def test_truncate_and_continue_equals_never_having_gone_further(kind, keep):
    model, tokens = tiny(torch.float64), some_tokens(2, 12)
    cache, fresh = (CACHES[kind](TINY, 2, dtype=torch.float64) for _ in range(2))
    more = some_tokens(2, 5).flip(1)
    with torch.inference_mode():
        model(tokens, cache)
        cache.truncate(keep)
        if keep:
            model(tokens[:, :keep], fresh)
        assert cache.length == fresh.length == keep
        assert (model(more, cache) - model(more, fresh)).abs().max() < 1e-11


@both
def test_reset_equals_new(kind):
    model, tokens = tiny(), some_tokens(2, 12)
    cache, new = CACHES[kind](TINY, 2), CACHES[kind](TINY, 2)
    with torch.inference_mode():
        model(tokens, cache, padding=torch.tensor([0, 3]))
        cache.reset()
        assert cache.length == 0 and cache.padding is None and cache.nbytes == new.nbytes
        assert model(tokens, cache).equal(model(tokens, new))


@both
@pytest.mark.parametrize("length", [-1, 13, 2.0, None, True])
def test_truncate_refuses_what_is_not_there(kind, length):
    cache = CACHES[kind](TINY, 2)
    with torch.inference_mode():
        tiny()(some_tokens(2, 12), cache)
    with pytest.raises(ValueError, match="from 0 to 12"):
        cache.truncate(length)
    assert cache.length == 12


@both
@pytest.mark.parametrize(
    "k, v, says",
    [
        (rows(batch=2), rows(batch=2), "batch"),
        (rows(heads=2), rows(heads=2), "heads"),
        (rows(dim=4), rows(dim=4), "head dim"),
        (rows(), rows(tokens=3), "v has shape"),
        (rows(dtype=torch.float64), rows(dtype=torch.float64), "float64"),
        (rows(), rows(dtype=torch.float16), "float16"),
        (rows(device="meta"), rows(device="meta"), "meta"),
        (torch.ones(3, 2), torch.ones(3, 2), "k has shape"),
    ],
)
def test_rows_of_another_kind_are_refused(kind, k, v, says):
    cache = CACHES[kind](TINY)
    with pytest.raises(ValueError, match=says):
        cache.update(0, k, v)
    assert cache.length == 0


def test_a_write_past_capacity_is_refused_before_anything_changes():
    model, tokens, cache = tiny(), some_tokens(1, 12), StaticCache(TINY, 1, 10)
    with torch.inference_mode():
        model(tokens[:, :8], cache)
        before = cache.keys.clone()
        with pytest.raises(IndexError, match="8 stored .* 4 new .* capacity 10"):
            model(tokens[:, 8:], cache)
        assert cache.length == 8 and cache.keys[..., :8, :].equal(before[..., :8, :])
        model(tokens[:, 8:10], cache)
    assert cache.length == 10


@both
@pytest.mark.parametrize("layer", [0, 1])
def test_a_pass_that_fails_halfway_can_be_tried_again(kind, layer):
    model, tokens, cache = tiny(), some_tokens(2, 9), CACHES[kind](TINY, 2)
    with torch.inference_mode():
        model(tokens[:, :4], cache)
        whole = model.h[layer].mlp.forward
        model.h[layer].mlp.forward = lambda x: 1 / 0
        with pytest.raises(ZeroDivisionError):
            model(tokens[:, 4:], cache)
        model.h[layer].mlp.forward = whole
        assert cache.length == 4
        again = model(tokens[:, 4:], cache)
        assert (again - model(tokens)[:, 4:]).abs().max() < 1e-4


@both
def test_bad_sizes_are_refused(kind):
    for batch in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="batch"):
            CACHES[kind](TINY, batch)
    with pytest.raises(ValueError, match="int64"):
        CACHES[kind](TINY, dtype=torch.int64)
    with pytest.raises(ValueError, match="capacity"):
        StaticCache(TINY, 1, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_bytes_are_those_of_the_formula(dtype):
    config = GPT2Config.preset("gpt2")
    static = StaticCache(config, 2, 5, dtype=dtype)
    assert static.nbytes == costs.cache_bytes(config, 5, 2, dtype.itemsize)
    growing = GrowingCache(TINY, 2)
    assert growing.nbytes == 0
    with torch.inference_mode():
        tiny()(some_tokens(2, 7), growing)
        assert growing.nbytes == costs.cache_bytes(TINY, 7, 2)
        growing.truncate(3)
        assert growing.nbytes == costs.cache_bytes(TINY, 3, 2)
        held = sum(rows.untyped_storage().nbytes() for rows in growing.keys + growing.values)
        assert held == growing.nbytes  # the rest was given back, not only hidden


class LargestNew(TorchDispatchMode):
    """Keeps the size in bytes of the largest storage that any operation created."""

    def __init__(self):
        super().__init__()
        self.seen, self.largest = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return out


def test_a_static_step_allocates_nothing_of_cache_size():
    """The growing cache's step makes a whole copy of a layer; the static one's makes none."""
    config = GPT2Config(block_size=512, vocab_size=32, n_layer=2, n_head=2, n_embd=64)
    model = tiny().__class__(config).eval()
    tokens, largest = some_tokens(1, 501, 32), {}
    for kind in CACHES:
        cache = CACHES[kind](config)
        with torch.inference_mode():
            model(tokens[:, :500], cache)
            with LargestNew() as mode:
                model(tokens[:, 500:], cache)
        largest[kind] = mode.largest
    layer_bytes = costs.cache_bytes(config, 501) // config.n_layer // 2
    assert largest["growing"] >= layer_bytes
    assert largest["static"] <= max(config.n_head * 501, 4 * config.n_embd) * 4


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cache_lies_where_it_was_asked_for_from_the_start(kind, dtype):
    """The meta device has shapes and no numbers: anything left on the CPU would show."""
    cache = CACHES[kind](TINY, 2, device="meta", dtype=dtype)
    for stored in (*cache.keys, *cache.values):
        assert stored.device.type == cache.device.type == "meta" and stored.dtype == dtype
    assert cache.padding is None and cache.position == 0
    cache.check(*[rows(2, device="meta", dtype=dtype)] * 2)


@both
def test_generation_makes_a_cache_on_the_models_device(kind):
    with torch.device("meta"):
        model = GPT2(TINY).double()
    cache = new_cache(model, kind, 2, 7)
    assert cache.device.type == "meta" and cache.dtype == torch.float64
    assert cache.capacity == (7 if kind == "static" else None)
