"""The matrix product of a linear layer, kept busy on every core when there are few rows."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 64  # from here on the plain product is as fast
MOST_SLICES = 64


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) by (out, in) to (..., out); exact up to the order of sums.

    A decode step has one row, or one a sequence, and reading the weight is what it costs. PyTorch's
    float32 product on a CPU gives one row to one core, which cannot draw the whole bandwidth of the
    memory, and for a few rows it first copies the weight into another layout. So the weight is cut
    along `out` into slices, a batched product with a slice or more a core; and where there are
    several rows it stands on the left, (weight @ x.T).T, and is read where it lies. The bias is
    added in the same operator: a step makes dozens of these calls, and each operator has its price.
    Many rows, one thread, another device or another dtype take the plain product.
    """
    n_out, n_in = weight.shape
    rows = x.numel() // n_in
    parts = slices(n_out, torch.get_num_threads())
    if rows > FEW_ROWS or parts == 1 or x.dtype != torch.float32 or not x.is_cpu:
        return F.linear(x, weight, bias)
    cut = weight.view(parts, -1, n_in)  # (parts, out / parts, in)
    if rows == 1:
        row = x.view(1, 1, n_in).expand(parts, 1, n_in)
        y = product(row, cut.transpose(1, 2), None if bias is None else bias.view(parts, 1, -1))
    else:
        columns = x.reshape(rows, n_in).t().expand(parts, n_in, rows)
        y = product(cut, columns, None if bias is None else bias.view(parts, -1, 1))
        y = y.view(n_out, rows).t().contiguous()
    return y.view(x.shape[:-1] + (n_out,))


def product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """a @ b for a batch of matrices, plus a `bias` that broadcasts, in one operator."""
    return torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)


@lru_cache
def slices(n_out: int, threads: int) -> int:
    """Into how many equal slices to cut: the fewest that give every thread one; 1 if none do."""
    return next((n for n in range(threads, MOST_SLICES + 1) if n_out % n == 0), 1)
