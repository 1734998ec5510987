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
def in_place(request, monkeypatch):
    """Either kind of processor, whatever this one is."""
    monkeypatch.setattr(product, "IN_PLACE", request.param)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_out, n_in", [(24, 8), (61, 7), (29 * 5, 16), (1, 3)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 5), (13, 5), (2, 40)])
def test_equal_to_the_plain_product(threads, in_place, dtype, n_out, n_in, shape):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, n_in, generator=random, dtype=dtype)
    weight = torch.randn(n_out, n_in, generator=random, dtype=dtype)
    bias = torch.randn(n_out, generator=random, dtype=dtype)
    for b in (None, bias):
        got = product.linear(x, weight, b)
        assert got.shape == (*shape, n_out) and got.is_contiguous()
        assert torch.allclose(got, F.linear(x, weight, b), atol=1e-4, rtol=1e-5)


def test_gradients_are_those_of_the_plain_product(threads, in_place):
    random = torch.Generator().manual_seed(0)
    for rows in (1, 5):
        x, weight = (torch.randn(n, 6, generator=random, requires_grad=True) for n in (rows, 8))
        got = torch.autograd.grad(product.linear(x, weight).square().sum(), (x, weight))
        want = torch.autograd.grad(F.linear(x, weight).square().sum(), (x, weight))
        for a, b in zip(got, want, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_no_copy_of_the_weight_is_made(in_place):
    """A slice is a view: a change of the weight is seen at once, so nothing can go stale."""
    weight, x = torch.ones(4, 3), torch.ones(1, 3)
    assert product.linear(x, weight).tolist() == [[3] * 4]
    weight.mul_(2)
    assert product.linear(x, weight).tolist() == [[6] * 4]


def test_slices_keep_every_thread_busy(in_place, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    widths = [product.slice_width(rows, 768) for rows in (1, 8, 16, 65)]
    assert widths == ([0, 96, 192, 0] if in_place else [384, 384, 384, 0])
    for threads in (1, 2, 7, 32, 96):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for n_out in (1, 61, 768, 50257):
            for rows in (1, 4, 16, 64):
                width = product.slice_width(rows, n_out)
                assert width == 0 or n_out // width >= threads > 1, "a core would stand idle"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 4, 65])
def test_the_weight_stands_where_it_is_read_in_place(threads, in_place, monkeypatch, rows, dtype):
    """On the right for one row, or where narrow slices are not copied; else on the left."""
    calls, multiply = [], product.product

    def seen(a, b, bias):
        calls.append((tuple(a.shape), tuple(b.shape)))
        return multiply(a, b, bias)

    monkeypatch.setattr(product, "product", seen)
    product.linear(torch.ones(rows, 8, dtype=dtype), torch.ones(400, 8, dtype=dtype))
    on_the_right = {1: [], 4: [((4, 4, 8), (4, 8, 96))], 65: []}
    on_the_left = {1: [((2, 1, 8), (2, 8, 200))], 4: [((2, 200, 8), (2, 8, 4))], 65: []}
    few = threads == 2 and dtype == torch.float32
    assert calls == ((on_the_right if in_place else on_the_left)[rows] if few else [])


def test_a_compiled_product_is_one_graph(threads, in_place):
    """Asking for the threads cut it at every product, and a compiled step was half as fast."""
    x, weight = torch.randn(5, 8), torch.randn(61, 8)
    found = torch._dynamo.explain(product.linear)(x, weight)
    assert found.graph_count == 1 and found.graph_break_count == 0
