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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_out, n_in", [(24, 8), (61, 7), (29 * 5, 16), (1, 3)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 5), (13, 5), (2, 40)])
def test_equal_to_the_plain_product(threads, dtype, n_out, n_in, shape):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, n_in, generator=random, dtype=dtype)
    weight = torch.randn(n_out, n_in, generator=random, dtype=dtype)
    bias = torch.randn(n_out, generator=random, dtype=dtype)
    for b in (None, bias):
        got = product.linear(x, weight, b)
        assert got.shape == (*shape, n_out) and got.is_contiguous()
        assert torch.allclose(got, F.linear(x, weight, b), atol=1e-4, rtol=1e-5)


def test_gradients_are_those_of_the_plain_product(threads):
    random = torch.Generator().manual_seed(0)
    for rows in (1, 3):
        x, weight = (torch.randn(n, 6, generator=random, requires_grad=True) for n in (rows, 8))
        got = torch.autograd.grad(product.linear(x, weight).square().sum(), (x, weight))
        want = torch.autograd.grad(F.linear(x, weight).square().sum(), (x, weight))
        for a, b in zip(got, want, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_no_copy_of_the_weight_is_made():
    """A slice is a view: a change of the weight is seen at once, so nothing can go stale."""
    weight, x = torch.ones(4, 3), torch.ones(1, 3)
    assert product.linear(x, weight).tolist() == [[3] * 4]
    weight.mul_(2)
    assert product.linear(x, weight).tolist() == [[6] * 4]


def test_slices_give_every_thread_one(threads):
    assert product.slices(768, threads) == threads
    assert product.slices(50257, threads) == (29 if threads > 1 else 1)
    assert product.slices(61, threads) == (61 if threads > 1 else 1)
    assert product.slices(67, threads) == 1  # a prime past the most slices
