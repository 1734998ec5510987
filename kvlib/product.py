"""Matrix products that keep every core busy when there is one row."""

import torch
import torch.nn.functional as F
from torch import Tensor


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight + bias, (..., in) by (in, out) to (..., out); exact up to the order of the sum.

    A decode step multiplies one row, and reading the weight is all it costs. PyTorch gives that
    product to one core, which cannot draw the whole bandwidth of the memory. So one row on a CPU
    is cut along `in` into a slice a thread: a batched product, one slice a core, and then a sum.
    Any other shape or device takes the plain product.
    """
    n_in, n_out = weight.shape
    parts = slices(x, n_in)
    if parts == 1:
        rows = x.reshape(-1, n_in)
        y = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
        return y.view(*x.shape[:-1], n_out)
    y = torch.bmm(x.view(parts, 1, n_in // parts), weight.view(parts, n_in // parts, n_out)).sum(0)
    return (y if bias is None else y + bias).view(*x.shape[:-1], n_out)


def matmul_t(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T, (..., in) by (out, in) to (..., out): the tied head, read along its rows.

    One row on a CPU is cut along `out`, a slice a thread; the rows left over are multiplied apart.
    """
    parts = slices(x, x.shape[-1])
    if parts == 1:
        return F.linear(x, weight)
    n_out, n_in = weight.shape
    even = n_out - n_out % parts
    column = x.reshape(n_in, 1)
    y = torch.bmm(weight[:even].view(parts, -1, n_in), column.expand(parts, n_in, 1)).view(-1)
    return torch.cat([y, (weight[even:] @ column).view(-1)]).view(*x.shape[:-1], n_out)


def slices(x: Tensor, n_in: int) -> int:
    """How many slices the product over `n_in` terms is cut into: 1 for the plain product."""
    parts = torch.get_num_threads()
    one_row = x.numel() == n_in and x.device.type == "cpu" and x.dtype == torch.float32
    return parts if one_row and n_in % parts == 0 else 1
