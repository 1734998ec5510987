"""The CUDA allocator's own account: statistics, the snapshot's blocks, a recorded history.

Nothing here runs without a CUDA device except `workspace_bytes` and the two readers, which take the
plain lists that PyTorch's snapshot consists of.
"""

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .allocator import Event
from .machine import facts


def workspace_bytes(setting: str = ":4096:2:16:8") -> int:
    """Bytes of the matrix library's workspace that PyTorch reserves for CUBLAS_WORKSPACE_CONFIG.

    The setting lists pairs `:size:count` with sizes in KiB. The default here is PyTorch's for GPUs
    before Hopper; from Hopper on it is `:4096:8` (aten/src/ATen/cuda/CublasHandlePool.cpp).
    """
    parts = setting.split(":")
    if (
        len(parts) < 3
        or parts[0]
        or len(parts) % 2 == 0
        or not all(p.isdecimal() for p in parts[1:])
    ):
        raise ValueError(f"setting {setting!r} is not of the form ':size:count', pairs repeated")
    numbers = [int(part) for part in parts[1:]]
    return sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True)) * 1024


def requested_on(device) -> int:
    """Requested bytes now in use on a CUDA device, once all its work is done."""
    gc.collect()
    torch.cuda.synchronize(device)
    return torch.cuda.memory_stats(device)["requested_bytes.all.current"]


def cuda_parts(segments: list[dict], **groups: Iterable[torch.UntypedStorage]) -> dict[str, int]:
    """Requested bytes of each named group of storages, and "other", by the snapshot's own records.

    `segments` is what `torch.cuda.memory_snapshot()` returns. A block belongs to the group one of
    whose storages starts inside it.
    """
    owners = {s.data_ptr(): name for name, members in groups.items() for s in members}
    parts = dict.fromkeys([*groups, "other"], 0)
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "active_allocated":
                continue
            name = owners.get(block["address"], "other")
            parts[name] += block["requested_size"]
    return parts


def cuda_trace(entries: Iterable[dict]) -> tuple[list[Event], list[int]]:
    """Events for `allocator.replay`, and the sizes of the segments that were taken, in order.

    `entries` is one device's list in `torch.cuda.memory._snapshot()["device_traces"]`, recorded
    after `torch.cuda.memory._record_memory_history()` on an empty cache.
    """
    events: list[Event] = []
    segments: list[int] = []
    alive: dict[int, int] = {}
    for entry in entries:
        address, size = entry["addr"], entry["size"]
        if entry["action"] == "alloc":
            alive[address] = len(events)
            events.append(("malloc", alive[address], size))
        elif entry["action"] == "free_completed" and address in alive:
            events.append(("free", alive.pop(address), 0))
        elif entry["action"] == "segment_alloc":
            segments.append(size)
    return events, segments


def record_cuda(fn: Callable[[], Any], device: str = "cuda") -> dict:
    """The allocator's history while fn() runs from an empty cache, and the bytes at its end.

    A dict for JSON: `trace` for `cuda_trace`, `requested_bytes`, `allocated_bytes` and
    `reserved_bytes`, and the `machine`. Run it in a process that holds nothing on the device.
    """
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(context=None)
    fn()
    torch.cuda.synchronize(device)
    index = torch.device(device).index or 0
    entries = torch.cuda.memory._snapshot()["device_traces"][index]
    torch.cuda.memory._record_memory_history(enabled=None)
    stats = torch.cuda.memory_stats(device)
    kinds = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    return dict(
        machine=facts(device),
        trace=[{key: entry[key] for key in ("action", "addr", "size")} for entry in entries],
        **{kind: stats[f"{kind}.all.current"] for kind in kinds},
    )


def record_generation(prompt: int = 64, new_tokens: int = 64) -> dict:
    """What `record_cuda` returns for random GPT-2 with a growing cache, its weights included.

    Raises ValueError where there is no CUDA device.
    """
    from .generate import stream
    from .weights import load

    if not torch.cuda.is_available():
        raise ValueError("no CUDA device here; a recording of its allocator needs one")

    def run():
        model = load("gpt2", weights="random", device="cuda")
        tokens = torch.zeros(1, prompt, dtype=torch.int64, device="cuda")
        for _ in stream(model, tokens, new_tokens, cache="growing"):
            pass

    return record_cuda(run)
