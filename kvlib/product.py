"""The matrix product of a linear layer, kept busy on every core when there are few rows."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .machine import processor

FEW_ROWS = 64  # from here on the plain product is as fast

# Whether a product of a few rows by a narrow matrix (out, in) reads that where it lies. MKL's does
# on Intel's processors; elsewhere it copies the matrix on the right first, unless there is one row,
# so the weight has to stand on the left.
IN_PLACE = torch.backends.mkl.is_available() and "Intel" in processor()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) by (out, in) to (..., out); exact up to the order of sums.

    A decode step has one row, or one a sequence, and reading the weight is what it costs. PyTorch's
    float32 product on a CPU may give one row to one core, which cannot draw the whole bandwidth of
    the memory, and for a few rows it may first copy the weight into another layout. So the weight
    is cut along `out` into slices, which are views, and the product becomes a batch of smaller ones
    that are shared out over the cores and read the weight where it lies; what is left over after
    the last whole slice is multiplied plainly. The bias is added in the same operator: a step makes
    dozens of these calls, and each operator has its price. Many rows, one thread, another device or
    another dtype take the plain product.
    """
    return multiplier(weight, bias, x.numel() // weight.shape[1])(x)


def multiplier(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """`linear` by this weight for x of `rows` rows, as a function of x: the views are made once."""
    n_out, n_in = weight.shape
    width = slice_width(rows, n_out)
    if not width or weight.dtype != torch.float32 or not weight.is_cpu:
        return lambda x: F.linear(x, weight, bias)
    whole = n_out - n_out % width
    if whole < n_out:
        first, last = (None, None) if bias is None else (bias[:whole], bias[whole:])
        most, rest = multiplier(weight[:whole], first, rows), weight[whole:]
        return lambda x: torch.cat((most(x), F.linear(x, rest, last)), dim=-1)
    slices = weight.view(-1, width, n_in)
    if rows == 1 or IN_PLACE:
        right, add = slices.transpose(1, 2), None if bias is None else bias.view(-1, 1, width)

        def on_the_left(x: Tensor) -> Tensor:
            y = product(x.reshape(rows, n_in).expand(len(right), -1, -1), right, add)
            return y.transpose(0, 1).reshape(*x.shape[:-1], n_out)

        return on_the_left
    add = None if bias is None else bias.view(-1, width, 1)

    def on_the_right(x: Tensor) -> Tensor:
        y = product(slices, x.reshape(rows, n_in).t().expand(len(slices), -1, -1), add)
        return y.view(n_out, rows).t().contiguous().view(*x.shape[:-1], n_out)

    return on_the_right


def product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """a @ b for a batch of matrices, plus a `bias` that broadcasts, in one operator."""
    return torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)


@torch.compiler.assume_constant_result  # else torch.compile cuts its graph at each product
def slice_width(rows: int, n_out: int) -> int:
    """Outputs in a slice of the weight; 0 where the plain product is as fast.

    A slice a thread, or narrower where narrow ones are read in place: the widths that were fastest
    there of 32 to 384. With three rows or fewer the plain product reads in place by itself.
    """
    threads = torch.get_num_threads()
    if threads == 1 or rows > FEW_ROWS:
        return 0
    if not IN_PLACE:
        return n_out // threads
    return min(96 if rows < 16 else 192, n_out // threads) if rows > 3 else 0
