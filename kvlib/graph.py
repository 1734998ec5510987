"""A decode step whose shapes never change, so that a GPU can record it once and replay it whole.

An ordinary step reads `length` rows, and `length` is a number in Python: each step has other shapes
and every operator must be called anew. Here the position is a tensor, the row is written where it
says, and attention reads all rows of the storage under a mask. Nothing that Python knows changes
from step to step, so its calls can be recorded as a CUDA graph and made by one.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import bench, costs
from .caches import StaticCache
from .model import GPT2
from .product import linear
from .samples import Samples
from .stopwatch import facts_of, undisturbed
from .timing import fill


class FixedStep:
    """`FixedStep(model, batch, capacity)(tokens)`: logits (B, 1, V) after one more token a row.

    It holds its own keys and values, for `capacity` tokens (None: `block_size`), all of which each
    step reads: it costs the bytes of a full cache. `load` takes over what a StaticCache holds. The
    model's weights must stay where they are once a graph is captured.

    Raises ValueError where the capacity exceeds the model's positions or tokens are not (B, 1), and
    IndexError where the storage is full.
    """

    @torch.no_grad()
    def __init__(self, model: GPT2, batch: int = 1, capacity: int | None = None):
        config, weight = model.config, model.wte.weight
        rows = config.block_size if capacity is None else capacity
        if not 1 <= rows <= config.block_size:
            raise ValueError(f"capacity {rows} must be from 1 to block_size, {config.block_size}")
        self.model, self.batch, self.capacity, self.length = model, batch, rows, 0
        shape = (batch, config.n_head, rows, config.head_dim)
        # Zeros, for a row not yet written has weight 0, and 0 times nan would be nan. A tensor a
        # layer, for torch.compile's kernels copy the whole of what they write a part of.
        self.keys = [weight.new_zeros(shape) for _ in range(config.n_layer)]
        self.values = [weight.new_zeros(shape) for _ in range(config.n_layer)]
        self.rows = torch.arange(rows, device=weight.device)
        self.tokens = torch.zeros(batch, 1, dtype=torch.int64, device=weight.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=weight.device)
        # A rebuilt model brings its own product for the head.
        self.head = getattr(model, "head", partial(linear, weight=weight))
        self.run: Callable[[], Tensor] = self.forward
        self.graph: torch.cuda.CUDAGraph | None = None

    def forward(self) -> Tensor:
        """Logits for `tokens` at `position`, both tensors that stay where they are."""
        x = self.model.wte(self.tokens) + self.model.wpe(self.position)  # (B, 1, C)
        mask = (self.rows <= self.position)[None]  # (1, capacity): the row now written, and older
        for block in self.model.h:
            x = block(x, self, mask)
        self.position.add_(1)
        return self.head(self.model.ln_f(x))

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of `layer`, (B, H, capacity, D), with these written at `position`."""
        self.keys[layer].index_copy_(2, self.position, k)
        self.values[layer].index_copy_(2, self.position, v)
        return self.keys[layer], self.values[layer]

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        if tokens.shape != self.tokens.shape:
            raise ValueError(
                f"tokens must be {tuple(self.tokens.shape)}, not {tuple(tokens.shape)}"
            )
        self.check_room()
        self.tokens.copy_(tokens)
        if self.graph is None:
            logits = self.run()
        else:
            self.graph.replay()
            logits = self.logits.clone()  # the next replay writes over it
        self.length += 1
        return logits

    def check_room(self) -> None:
        """Raise IndexError where no row is left: the device would not notice."""
        if self.length >= self.capacity:
            raise IndexError(f"all {self.capacity} rows are written; make the capacity larger")

    @torch.no_grad()
    def load(self, cache) -> None:
        """Take over the rows of a StaticCache of the same model and batch."""
        n = cache.length
        for mine, theirs in ((self.keys, cache.keys), (self.values, cache.values)):
            for layer, rows in enumerate(theirs):
                mine[layer][:, :, :n] = rows[:, :, :n]
        self.length = n
        self.position.fill_(n)

    def truncate(self, length: int) -> None:
        """Go on after the first `length` rows, 0 to all; later ones are written over."""
        if type(length) is not int or not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length!r} rows of {self.length}; give 0 to that many")
        self.length = length
        self.position.fill_(length)

    def compile(self) -> None:
        """Have torch.compile write kernels for the step, at its first call."""
        self.run = torch.compile(self.forward)

    @torch.no_grad()
    def capture(self) -> None:
        """Record the step as a CUDA graph, which later calls replay; one row must be left."""
        self.check_room()
        length, aside = self.length, torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # what is done once, as taking a workspace, is not recorded
            for _ in range(3):
                self.run()
                self.position.fill_(length)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # nothing runs in here: calls are written down
            self.logits = self.run()
        self.graph = graph


class FixedDecoder:
    """A Decoder whose state is a FixedStep, which reads a prompt token by token.

    `graph` captures each new state, on a CUDA device.
    """

    def __init__(self, model: GPT2, *, graph: bool = False):
        self.model, self.graph = model, graph
        self.vocab_size, self.block_size = model.config.vocab_size, model.config.block_size
        self.device = model.wte.weight.device

    def start(self, batch: int, capacity: int) -> FixedStep:
        state = FixedStep(self.model, batch, capacity)
        if self.graph:
            state.capture()
        return state

    def step(self, tokens: Tensor, state: FixedStep) -> tuple[Tensor, FixedStep]:
        return torch.cat([state(token) for token in tokens.split(1, dim=1)], dim=1), state

    def truncate(self, state: FixedStep, length: int) -> FixedStep:
        state.truncate(length)
        return state


def event_times(fns: Mapping[str, Callable], *, repeats: int = 20, warmup: int = 5):
    """Samples of each fn() by CUDA events, in seconds: from its first kernel to its last, gaps too.

    An event is a mark in the device's own queue, so no call waits while the others are timed. The
    functions take turns, `repeats` times, after `warmup` calls of each.
    """
    taken: dict[str, list[float]] = {name: [] for name in fns}
    with undisturbed("cuda"):
        for fn in fns.values():
            for _ in range(warmup):
                fn()
        for _ in range(repeats):
            for name, fn in fns.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                fn()
                end.record()
                end.synchronize()
                taken[name].append(1e-3 * start.elapsed_time(end))
        facts = facts_of("cuda")
    return {name: Samples(tuple(runs), warmup, facts) for name, runs in taken.items()}


@torch.no_grad()
def record_floor(model: GPT2, context: int = 500, *, repeats: int = 20) -> dict[str, Any]:
    """One step of `model`, on its CUDA device, five ways, as plain values for figures/measured/.

    Eager as written; with fixed shapes; as a graph; compiled; compiled and as a graph. Each is
    timed by events at the same context, its logits held against the first's, and beside them stands
    a plain read of as many bytes. Raises ValueError where the model is on no CUDA device.
    """
    if model.wte.weight.device.type != "cuda":
        raise ValueError(f"the model is on {model.wte.weight.device}; load it with device='cuda'")
    cache = StaticCache(model.config, capacity=context, device="cuda")
    fill(cache, context - 1)
    token = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    numbers = torch.ones(costs.decode_bytes(model.config, context) // 4, device="cuda")
    fns: dict[str, Callable] = {"read": numbers.sum, "eager": partial(eager, model, cache, token)}
    ways, gaps, missing = fixed_ways(model, cache, token)
    samples = event_times(fns | ways, repeats=repeats)
    rows = [
        dict(way=name, gap=gaps.get(name), **found.as_json()) for name, found in samples.items()
    ]
    facts = samples["eager"].machine | {"dtype": str(model.wte.weight.dtype).split(".")[1]}
    return dict(kind="floor", machine=facts, context=context, missing=missing, rows=rows)


@torch.no_grad()
def fixed_ways(model: GPT2, cache: StaticCache, token: Tensor) -> tuple[dict, dict, dict]:
    """The ways of a FixedStep that run here: name -> call, name -> its logits' largest distance
    from the eager step's; and name -> reason of those that do not.
    """
    calls, gaps, missing = {}, {}, {}
    right = eager(model, cache, token)
    for name in ("fixed", "graph", "compiled", "compiled graph"):
        try:
            call = partial(again, fixed(model, cache, name), token)
            gaps[name] = float((call() - right).abs().max())
            calls[name] = call
        except RuntimeError as error:  # a compiler that is missing must not cost the other rows
            missing[name] = str(error).partition("\n")[0]
    return calls, gaps, missing


def fixed(model: GPT2, cache: StaticCache, way: str) -> FixedStep:
    """A FixedStep that holds the rows of `cache` and has room for one more, made in this `way`."""
    step = FixedStep(model, cache.batch, cache.length + 1)
    step.load(cache)
    if "compiled" in way:
        step.compile()
    if "graph" in way:
        step.capture()
    return step


def eager(model: Callable, cache: StaticCache, token: Tensor) -> Tensor:
    """Logits of one step of a GPT2 or a Step from the state of `cache`, which it is left in."""
    length = cache.length
    logits = model(token, cache)
    cache.truncate(length)
    return logits


def again(step: FixedStep, token: Tensor) -> Tensor:
    """Logits of one step from the state that `step` is in, which it is left in."""
    length = step.length
    logits = step(token)
    step.truncate(length)
    return logits


def save(recording: dict, folder: str | Path) -> Path:
    """The file in `folder` that a recording of `record_floor` was written to."""
    name = f"{bench.machine_name(recording['machine'])}-floor.json"
    return bench.save(recording, Path(folder) / name)
