"""The fast product is the plain one, whatever the rows, sizes, threads and dtype."""

import pytest
import torch
import torch.nn.functional as F

from kvlib import product


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=[False, True])
def reads_in_place(request, monkeypatch):
    """Either kind of processor, whatever this one is."""
    monkeypatch.setattr(product, "reads_in_place", lambda: request.param)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_out, n_in", [(24, 8), (61, 7), (29 * 5, 16), (1, 3)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 5), (13, 5), (2, 40)])
def test_equal_to_the_plain_product(threads, reads_in_place, dtype, n_out, n_in, shape):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, n_in, generator=random, dtype=dtype)
    weight = torch.randn(n_out, n_in, generator=random, dtype=dtype)
    bias = torch.randn(n_out, generator=random, dtype=dtype)
    for b in (None, bias):
        got = product.linear(x, weight, b)
        assert got.shape == (*shape, n_out) and got.is_contiguous()
        assert torch.allclose(got, F.linear(x, weight, b), atol=1e-4, rtol=1e-5)


def test_gradients_are_those_of_the_plain_product(threads, reads_in_place):
    random = torch.Generator().manual_seed(0)
    for rows in (1, 5):
        x, weight = (torch.randn(n, 6, generator=random, requires_grad=True) for n in (rows, 8))
        got = torch.autograd.grad(product.linear(x, weight).square().sum(), (x, weight))
        want = torch.autograd.grad(F.linear(x, weight).square().sum(), (x, weight))
        for a, b in zip(got, want, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_no_copy_of_the_weight_is_made(reads_in_place):
    """A slice is a view: a change of the weight is seen at once, so nothing can go stale."""
    weight, x = torch.ones(4, 3), torch.ones(1, 3)
    assert product.linear(x, weight).tolist() == [[3] * 4]
    weight.mul_(2)
    assert product.linear(x, weight).tolist() == [[6] * 4]


def test_slices_keep_every_thread_busy(threads, reads_in_place):
    width = product.slice_width(8, 768, threads)
    if threads == 1:
        assert width == 0
    else:
        assert width == (96 if reads_in_place else 384)
        assert product.slice_width(16, 768, threads) == (192 if reads_in_place else 384)
        assert product.slice_width(1, 768, threads) == (0 if reads_in_place else 384)
    for n_out in (1, 61, 768, 50257):
        for rows in (1, 4, 16, 64):
            for many in (2, 7, 32, 96):
                width = product.slice_width(rows, n_out, many)
                assert width == 0 or n_out // width >= many, "a core would stand idle"
    assert product.slice_width(65, 768, 2) == 0
