"""Levers on a decode step: other ways to multiply the same weights, each a small function.

They are what chapter 07 climbs by, from the simplest way to the engine's own. `rebuilt` gives a
model one of them, `Loop` makes a Decoder of it that `timing` and `parity` can take, and `prepared`
one that looks its weights up once.
"""

import contextlib
import copy
import io
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import step
from .caches import StaticCache
from .decoders import KvlibDecoder, from_kvlib
from .generate import new_cache
from .graph import again, eager, fixed
from .judge import DECLARED, Judge, gaps, run
from .model import GPT2
from .product import linear
from .samples import Samples
from .stopwatch import interleave
from .timing import fill, sweep

Rows = Callable[[Tensor], Tensor]  # (B, T, in) to (B, T, out)


def rebuilt(model: GPT2, form: str) -> GPT2:
    """`model` over the same tensors, each matrix multiplied as FORMS[form] says.

    A form takes a linear layer, or the embedding that is also the head, and gives a function of the
    rows to multiply. Weights changed later are not seen by forms that copy.
    """
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in model.parameters()})
    for module in twin.modules():
        if isinstance(module, nn.Linear):
            module.forward = FORMS[form](module)  # type: ignore[method-assign, assignment]
    head = FORMS[form](twin.wte)

    def forward(tokens: Tensor, cache=None, *, padding=None, last_only: bool = False) -> Tensor:
        x = twin.hidden(tokens, cache, padding=padding)
        return head(x[:, -1:] if last_only else x)

    twin.forward, twin.head = forward, head  # type: ignore[method-assign, assignment]
    return twin


def whole(module) -> Rows:
    """torch's own product, `F.linear`, with the whole weight at once, (out, in)."""
    weight, bias = module.weight, getattr(module, "bias", None)
    return lambda x: F.linear(x, weight, bias)


def separate(module) -> Rows:
    """As `whole`; query, key and value by three products, joined by a copy of their few numbers."""
    n_out, n_in = module.weight.shape
    if n_out != 3 * n_in:
        return whole(module)
    thirds = list(zip(module.weight.chunk(3), module.bias.chunk(3), strict=True))
    return lambda x: torch.cat([F.linear(x, weight, bias) for weight, bias in thirds], -1)


def transposed(module) -> Rows:
    """torch's own product with a copy of the weight that lies (in, out), as GPT-2 publishes it."""
    weight, bias = module.weight.detach().t().contiguous().t(), getattr(module, "bias", None)
    return lambda x: F.linear(x, weight, bias)


def split(module) -> Rows:
    """The product of `kvlib.product`: slices of the weight over the cores."""
    weight, bias = module.weight, getattr(module, "bias", None)
    return lambda x: linear(x, weight, bias)


def bfloat16(module) -> Rows:
    """torch's own product with a bfloat16 copy of the weight; the rows are rounded too.

    Where oneDNN multiplies such numbers, the copy has its layout, which it would else make anew at
    each call.
    """
    weight, bias = module.weight.detach().bfloat16(), getattr(module, "bias", None)
    bias = None if bias is None else bias.detach().bfloat16()
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        packed = torch.ops.mkldnn._reorder_linear_weight.default(weight)
        multiply = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: multiply(x.bfloat16(), packed, bias, "none", [], "").float()
    return lambda x: F.linear(x.bfloat16(), weight, bias).float()


FORMS: dict[str, Callable[..., Rows]] = step.FORMS | dict(
    whole=whole, separate=separate, transposed=transposed, split=split, bfloat16=bfloat16
)
# What a form with fewer bits is held to: a share of the largest logit, that of this type.
ROUGH = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.bfloat16}


class Loop:
    """A Decoder of any GPT2 with one of our caches, called module by module: no prepared step.

    With `grad`, torch keeps what a backward pass would need, as it does when nothing is said.
    """

    def __init__(self, model: GPT2, cache: str = "static", *, grad: bool = False):
        self.model, self.cache, self.grad = model, cache, grad
        self.vocab_size, self.block_size = model.config.vocab_size, model.config.block_size
        self.device = model.wte.weight.device

    def start(self, batch: int, capacity: int):
        return new_cache(self.model, self.cache, batch, capacity)

    def step(self, tokens: Tensor, state):
        return self.run(tokens, state, last_only=False)

    def last(self, tokens: Tensor, state):
        return self.run(tokens, state, last_only=True)

    def run(self, tokens: Tensor, state, last_only: bool):
        with torch.enable_grad() if self.grad else torch.inference_mode():
            return self.model(tokens, state, last_only=last_only).detach(), state

    def truncate(self, state, length: int):
        state.truncate(length)
        return state


def prepared(model: GPT2, form: str) -> KvlibDecoder:
    """A Decoder as `from_kvlib` gives, whose prepared step multiplies as FORMS[form] says."""
    decoder = from_kvlib(model)
    decoder.once = step.Step(model)
    decoder.once.form = FORMS[form]
    return decoder


def unusable(form: str) -> str:
    """Why this PyTorch or processor cannot multiply in `form`; empty where it can."""
    with contextlib.redirect_stderr(io.StringIO()):  # where torch announces that int8 will move
        try:
            FORMS[form](nn.Linear(64, 64))(torch.ones(1, 1, 64))
        except (ValueError, RuntimeError, AttributeError) as error:
            return str(error).splitlines()[0]
    return ""


def parities(rungs: Mapping[str, Any], reference, tokens: Tensor, chunks) -> dict[str, tuple]:
    """(largest logit difference from the float64 judge, tolerance) of each of `rungs`.

    Each reads `tokens` (B, T) in pieces of sizes `chunks`. The tolerance is the judge's, measured
    on `reference`; where a name says that bits are fewer, it is the declared share of that type.
    """
    judge, found = Judge(reference, tokens, None), {}
    for name, decoder in rungs.items():
        gap = float(gaps(run(decoder, tokens, chunks), judge.right).max())
        rough = DECLARED[ROUGH[name]] * judge.scale if name in ROUGH else None
        found[name] = gap, judge.tolerance if rough is None else rough
    return found


def verdicts(parity: Mapping[str, tuple]) -> str:
    """What `parities` found, a line a rung: pass or FAIL."""
    lines = [
        f"{name:<22}off by {gap:.1e}, tolerance {tolerance:.1e}: "
        + ("pass" if gap <= tolerance else "FAIL")
        for name, (gap, tolerance) in parity.items()
    ]
    return "\n".join(lines)


def steps(decoders: Mapping[str, Any], context: int, **how) -> dict[str, Samples]:
    """Samples of one step of each decoder at `context`; `how` is for `timing.sweep`."""
    return {name: at[context] for name, at in sweep(decoders, [context], **how).items()}


def prefills(model: GPT2, length: int, *, repeats: int = 5) -> dict[str, Samples]:
    """Samples of a prefill of `length` tokens with all logits, the last alone, and packed weights.

    The last is left out where there is no oneDNN.
    """
    tokens = torch.randint(model.config.vocab_size, (1, length))
    ways: dict[str, Callable] = {
        "prefill: all logits": lambda: model(tokens),
        "prefill: last logits": lambda: model(tokens, last_only=True),
    }
    if not unusable("packed"):
        packed = rebuilt(model, "packed")
        ways["prefill: packed"] = lambda: packed(tokens, last_only=True)
    return interleave(ways, repeats=repeats)


def ratios(seconds: Mapping[str, Any], over: Mapping[str, str]) -> dict[str, Any]:
    """Time before over time after, for each name but the first.

    Before is the row above, or the one that `over` names. The times are numbers, or arrays with one
    for each round.
    """
    names = list(seconds)
    return {name: seconds[over.get(name, above)] / seconds[name] for above, name in pairwise(names)}


def gains(samples: Mapping[str, Samples], over: Mapping[str, str]) -> dict[str, float]:
    """The `ratios` of what ran in the same round, and of those the median."""
    runs = {name: np.array(found.runs_s) for name, found in samples.items()}
    return {name: float(np.median(found)) for name, found in ratios(runs, over).items()}


def table(samples: Mapping[str, Samples], predicted: Mapping, measured: Mapping) -> str:
    """Median ms of each rung, and its gain over the one before, predicted and measured."""
    lines = [f"{'':<22}{'ms':>8}{'predicted gain':>16}{'measured':>10}"]
    for name in dict.fromkeys([*samples, *measured]):
        ms = f"{1e3 * samples[name].median_s:.1f}" if name in samples else "-"
        cells = [f"{gain[name]:.2f}" if name in gain else "-" for gain in (predicted, measured)]
        lines.append(f"{name:<22}{ms:>8}{cells[0]:>16}{cells[1]:>10}")
    return "\n".join(lines)


def nats(decoder, ids: Tensor, prompt: int) -> float:
    """Mean loss in nats a token of `ids` (N,) after the first `prompt`, decoded one at a time."""
    state = decoder.start(1, len(ids))
    logits, state = decoder.step(ids[None, :prompt], state)
    losses = []
    for token in ids[prompt:]:
        losses.append(F.cross_entropy(logits[:, -1], token[None]))
        logits, state = decoder.step(token.view(1, 1), state)
    return float(torch.stack(losses).mean())


def compiler() -> str | None:
    """The C++ compiler that torch.compile would call on a CPU; None where there is none."""
    return next((path for path in map(shutil.which, ("c++", "g++", "clang++")) if path), None)


def compiled_gain(model: GPT2, context: int, *, repeats: int = 9) -> tuple:
    """Gain of a compiled step with fixed shapes over the prepared step, of the same round, and the
    (distance, tolerance) of its logits from the prepared step's.

    Compiling takes up to a minute and, on a CPU, a C++ compiler.
    """
    cache = StaticCache(model.config, capacity=context)
    fill(cache, context - 1)
    token = torch.zeros(1, 1, dtype=torch.int64)
    ways = {
        "prepared": partial(eager, step.Step(model), cache, token),
        "compiled": partial(again, fixed(model, cache, "compiled"), token),
    }
    with torch.inference_mode():
        right = ways["prepared"]()
    gap = float((ways["compiled"]() - right).abs().max())
    gain = gains(interleave(ways, repeats=repeats), {})["compiled"]
    return gain, (gap, DECLARED[right.dtype] * float(right.abs().max()))
