"""Where the bytes of a generation are: measured to the byte, beside what the formula says.

On a CPU two witnesses watch every allocation (`kvlib.watch`) and at every checkpoint must agree on
what is alive. On a CUDA device the allocator's statistics give requested, allocated and reserved
bytes, and its snapshot lists every block, so that the cache is found twice: by subtraction, and by
address.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from . import costs
from .allocator import CachingAllocator, OutOfMemory
from .cuda import cuda_parts, cuda_trace, requested_on, workspace_bytes
from .watch import MARK, Watch, allocations, profiled, record, resident_bytes, storages, tensors

__all__ = [
    "CachingAllocator",
    "Checkpoint",
    "OutOfMemory",
    "Report",
    "Watch",
    "checkpoints",
    "cuda_parts",
    "cuda_trace",
    "record",
    "resident_bytes",
    "storages",
    "workspace_bytes",
]


@dataclass(frozen=True)
class Checkpoint:
    """Bytes at one length. The run's own: the model's weights are outside, and counted apart.

    `held_bytes`: storages reachable from the decoder's state. `requested_bytes`: all that the run
    has alive, the state's included. `seen_bytes`: the same by a second witness (dispatch on a CPU,
    the snapshot on CUDA). `peak_bytes`: most requested at once since the checkpoint before.
    `allocated_bytes`, `reserved_bytes`: what the allocator's blocks and segments hold, for the
    whole process on CUDA; a CPU allocator keeps no segments. `resident_bytes`: the whole process's
    memory, as the system counts it. `counter_bytes`: the part of `held_bytes` in counters, that is,
    in integers of no dimension, which are no rows. None: not to be had here.
    """

    tokens: int
    formula_bytes: int | None
    held_bytes: int
    requested_bytes: int
    seen_bytes: int
    peak_bytes: int
    allocated_bytes: int
    reserved_bytes: int | None
    resident_bytes: int | None
    counter_bytes: int = 0

    @property
    def difference(self) -> int | None:
        """Held minus formula; None where no configuration gave a formula."""
        return None if self.formula_bytes is None else self.held_bytes - self.formula_bytes

    @property
    def other_bytes(self) -> int:
        """What the run has alive besides its state: token ids, for example."""
        return self.requested_bytes - self.held_bytes


@dataclass
class Report:
    """The checkpoints of one run, with the bytes of the model and of the workspace beside them."""

    rows: list[Checkpoint] = field(default_factory=list)
    model_bytes: int = 0
    workspace_bytes: int = 0
    device: str = "cpu"

    @property
    def ok(self) -> bool:
        """True where the formula and the counters are all that is held, and both witnesses agree.

        At every checkpoint. A counter, such as the length that each layer of a static cache of
        transformers keeps in 8 bytes, belongs to the cache and to no token.
        """
        return all(
            row.difference == row.counter_bytes and row.seen_bytes == row.requested_bytes
            for row in self.rows
        )

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Checkpoint:
        return self.rows[index]

    def __str__(self) -> str:
        """A table of what is the same on every machine: the peaks are not.

        It names the counters where there are any.
        """
        names = ["tokens", "formula", "held", "difference", "requested"]
        counters = any(row.counter_bytes for row in self.rows)
        names += ["counters"] if counters else []
        lines = ["".join(f"{name:>14}" for name in names)]
        for row in self.rows:
            values: list[int | None] = [row.tokens, row.formula_bytes, row.held_bytes]
            values += [row.difference, row.requested_bytes]
            values += [row.counter_bytes] if counters else []
            cells = ["-" if value is None else f"{value:,}" for value in values]
            lines.append("".join(f"{cell:>14}" for cell in cells))
        return "\n".join(lines)


def checkpoints(
    decoder: Any,
    lengths: Sequence[int],
    *,
    batch: int = 1,
    config: Any = None,
    dtype_bytes: int | None = None,
    preallocated: bool | None = None,
) -> Report:
    """What the cache holds at each of `lengths` tokens, beside the formula, to the byte.

    Runs `decoder` once, from each length to the next in one step. `config` is anything that
    `shapes.read` takes, and `dtype_bytes` the bytes of a number in the cache; without them the
    decoder's model is asked. A `preallocated` cache is compared with the formula at the last
    length, any other with the formula at its own; a decoder whose `cache` is "static" counts as
    preallocated unless told otherwise.

    A windowed layer of transformers' dynamic cache keeps a view of the newest window - 1 tokens;
    the storage behind it still has all that the last step joined, up to window - 1 tokens and those
    of the step. So the formula's window is exact after a step of one token, and too little after a
    longer one.

    Raises ValueError where `lengths` are not growing positive integers or exceed the decoder's
    positions, or where there is a model whose configuration cannot be read.
    """
    lengths = check_lengths(lengths, decoder)
    costs.positive(batch=batch)
    model = getattr(decoder, "model", None)
    stored = list(weights(model)) if isinstance(model, nn.Module) else []
    if config is None:
        config = getattr(model, "config", None)
    if dtype_bytes is None:
        dtype_bytes = stored[0].element_size() if stored else 4
    if preallocated is None:
        preallocated = getattr(decoder, "cache", None) == "static"
    formula: list[int | None] = [None] * len(lengths)
    if config is not None:
        sizes = [lengths[-1]] * len(lengths) if preallocated else lengths
        formula = [costs.cache_bytes(config, tokens, batch, dtype_bytes) for tokens in sizes]
    device = torch.device(getattr(decoder, "device", "cpu"))
    run = run_cuda if device.type == "cuda" else run_cpu
    report = run(decoder, lengths, formula, batch, device)
    report.model_bytes = sum(storage.nbytes() for storage in storages(stored))
    return report


def check_lengths(lengths: Sequence[int], decoder: Any) -> list[int]:
    """`lengths` as a list; ValueError where a run cannot pass through them in order."""
    if not isinstance(lengths, Iterable):
        raise ValueError(f"lengths must be growing positive integers, not {lengths!r}")
    lengths = list(lengths)
    if not lengths:
        raise ValueError("no lengths; give at least one")
    for before, length in zip([0, *lengths], lengths, strict=False):
        if type(length) is not int or length <= before:
            raise ValueError(
                f"lengths must be growing positive integers, not {length!r} after {before}"
            )
    limit = getattr(decoder, "block_size", None)
    if limit is not None and lengths[-1] > limit:
        raise ValueError(
            f"length {lengths[-1]} exceeds the decoder's {limit} positions (block_size)"
        )
    return lengths


def counters(state: Any) -> int:
    """Bytes of the counters that are reachable from `state`: integers of no dimension."""
    whole = [t for t in tensors(state) if t.ndim == 0 and not t.is_floating_point()]
    return sum(s.nbytes() for s in storages(whole) if s.nbytes() <= 8)  # not one number of many


def weights(model: nn.Module) -> Iterable[Tensor]:
    """Parameters and buffers of `model`."""
    yield from model.parameters()
    yield from model.buffers()


def run_cpu(decoder, lengths: list[int], formula: list, batch: int, device) -> Report:
    """The report of one run on the CPU, watched by dispatch and by the profiler."""
    tokens = torch.zeros(batch, lengths[-1], dtype=torch.int64)
    seen = []
    with profiled() as prof, Watch() as watch:
        state, past = decoder.start(batch, lengths[-1]), 0
        for length in lengths:
            state = decoder.step(tokens[:, past:length], state)[1]
            past = length
            gc.collect()
            with record_function(f"{MARK}{length}"):
                held = sum(storage.nbytes() for storage in storages(state))
                counted = counters(state)
            seen.append((held, watch.live_bytes, resident_bytes(), counted))
    requested, peaks = totals(*allocations(prof))
    rows = [
        Checkpoint(tokens, exact, held, now, live, peak, now, None, resident, counted)
        for tokens, exact, (held, live, resident, counted), now, peak in zip(
            lengths, formula, seen, requested, peaks, strict=True
        )
    ]
    return Report(rows)


def totals(found: list, marks: list) -> tuple[list[int], list[int]]:
    """Bytes alive at each mark, and the most since the mark before."""
    alive, peaks, total, peak, i = [], [], 0, 0, 0
    for moment, _ in marks:
        while i < len(found) and found[i][0] < moment:
            total += found[i][2]
            peak = max(peak, total)
            i += 1
        alive.append(total)
        peaks.append(peak)
        peak = total
    return alive, peaks


def run_cuda(decoder, lengths: list[int], formula: list, batch: int, device) -> Report:
    """The report of one run on a CUDA device, from the allocator's statistics and snapshot.

    One short run first makes whatever is made once: the matrix library's workspace, the kernels.
    What it leaves behind is `workspace_bytes`, and the rows count from there.
    """
    tokens = torch.zeros(batch, lengths[-1], dtype=torch.int64, device=device)
    before = requested_on(device)
    state = decoder.step(tokens[:, :1], decoder.start(batch, lengths[-1]))[1]
    state = decoder.step(tokens[:, 1:2], state)[1] if lengths[-1] > 1 else state
    del state
    base = requested_on(device)
    rows = []
    state, past = decoder.start(batch, lengths[-1]), 0
    for length, exact in zip(lengths, formula, strict=True):
        torch.cuda.reset_peak_memory_stats(device)
        state = decoder.step(tokens[:, past:length], state)[1]
        past, now = length, requested_on(device)
        stats = torch.cuda.memory_stats(device)
        cache = storages(state)
        parts = cuda_parts(torch.cuda.memory_snapshot(), cache=cache)
        rows.append(
            Checkpoint(
                length,
                exact,
                sum(storage.nbytes() for storage in cache),
                now - base,
                parts["cache"],
                stats["requested_bytes.all.peak"] - base,
                stats["allocated_bytes.all.current"],
                stats["reserved_bytes.all.current"],
                resident_bytes(),
                counters(state),
            )
        )
    return Report(rows, workspace_bytes=base - before, device=str(device))
