"""The matrix product of a linear layer, kept busy on every core when there are few rows."""

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
    several rows it stands on the left, (weight @ x.T).T, and is read where it lies. Many rows, one
    thread, another device or another dtype take the plain product.
    """
    n_out, n_in = weight.shape
    rows = x.numel() // n_in
    parts = slices(n_out)
    if rows > FEW_ROWS or parts == 1 or x.device.type != "cpu" or x.dtype != torch.float32:
        return F.linear(x, weight, bias)
    cut = weight.view(parts, -1, n_in)  # (parts, out / parts, in)
    flat = x.reshape(rows, n_in)
    if rows == 1:
        y = torch.bmm(flat.expand(parts, 1, n_in), cut.transpose(1, 2)).view(1, n_out)
    else:
        y = torch.bmm(cut, flat.t().expand(parts, n_in, rows)).view(n_out, rows).t().contiguous()
    y = y if bias is None else y + bias
    return y.view(*x.shape[:-1], n_out)


def slices(n_out: int) -> int:
    """Into how many equal slices to cut: the fewest that give every thread one; 1 if none do."""
    threads = torch.get_num_threads()
    return next((n for n in range(threads, MOST_SLICES + 1) if n_out % n == 0), 1)
