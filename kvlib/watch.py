"""Two witnesses of every allocation on a CPU: torch's dispatch, and the profiler's memory events.

Dispatch sees each tensor that an operation returns, and a weak reference to its storage tells when
it dies. The profiler's events come from the allocator itself and include the temporaries inside a
kernel, which no tensor outside ever shows. Neither sees memory that a library (oneDNN, the threads'
stacks) takes from the system on its own: that is in `resident_bytes` only.
"""

import contextlib
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from .allocator import Event

MARK = "kvlib checkpoint "


class Watch(TorchDispatchMode):
    """While active: every storage that an operation makes, with its bytes and the operation.

    `live` maps a storage to (bytes, operation); `live_bytes` is their sum and `peak_bytes` the most
    it was. Storages that existed before are not counted, nor are views of them. What `torch.tensor`
    makes counts as made by `aten.lift_fresh`; so does memory that `torch.from_numpy` shares, though
    it was numpy's before.
    """

    def __init__(self):
        super().__init__()
        self.live: dict[int, tuple[int, str]] = {}
        self.references: dict[int, weakref.ref] = {}
        self.live_bytes = self.peak_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        fresh = func is torch.ops.aten.lift_fresh.default  # its argument was made out of sight
        given = set() if fresh else {id(storage) for storage in storages((args, kwargs))}
        for storage in storages(out):
            if id(storage) not in given and id(storage) not in self.live:
                self.enter(storage, str(func))
        return out

    def enter(self, storage: torch.UntypedStorage, operation: str) -> None:
        """Count `storage` until it dies."""
        key, nbytes = id(storage), storage.nbytes()
        self.live[key] = (nbytes, operation)
        self.references[key] = weakref.ref(storage, lambda _: self.leave(key))
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def leave(self, key: int) -> None:
        """Stop counting the storage with this key."""
        nbytes, _ = self.live.pop(key)
        del self.references[key]
        self.live_bytes -= nbytes


def storages(thing: Any) -> list[torch.UntypedStorage]:
    """Every storage of at least a byte that is reachable from `thing`, each once.

    Tensors in tuples, lists, dicts and the attributes of objects count; modules, that is weights,
    do not.
    """
    found = {id(storage): storage for storage in map(Tensor.untyped_storage, tensors(thing))}
    return [storage for storage in found.values() if storage.nbytes()]


def tensors(thing: Any) -> Iterator[Tensor]:
    """Every tensor that is reachable from `thing`, as `storages` looks for them."""
    seen: set[int] = set()
    stack = [thing]
    while stack:
        item = stack.pop()
        if item is None or isinstance(item, (str, int, float, nn.Module)) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (dict, list, tuple, set)):
            stack.extend(item.values() if isinstance(item, dict) else item)
        elif hasattr(item, "__dict__") and not isinstance(item, type):
            stack.extend(vars(item).values())


@contextlib.contextmanager
def profiled() -> Iterator[profile]:
    """A profiler, at work inside the `with`, that records memory events on the CPU."""
    prof = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with quiet():
        prof.start()
    try:
        yield prof
    finally:
        with quiet():
            prof.stop()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discards what is written to the process's standard error inside the `with`.

    The profiler's library reports each start and stop there, with the time, below Python.
    """
    sys.stderr.flush()
    saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nothing)


def allocations(prof: profile) -> tuple[list[tuple[int, int, int]], list[tuple[int, str]]]:
    """The profiler's memory events as (time, address, bytes), and the marks as (time, name).

    Bytes are negative where memory is freed; both lists are in order of time.
    """
    assert prof.profiler is not None and prof.profiler.kineto_results is not None
    found, marks = [], []
    stack = list(prof.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        details: Any = event.typed[1]
        if event.typed[0].name == "Allocation":
            found.append((event.start_time_ns, details.ptr, details.alloc_size))
        elif event.name.startswith(MARK):
            marks.append((event.start_time_ns, event.name.removeprefix(MARK)))
    return sorted(found, key=lambda entry: entry[0]), sorted(marks)


def record(fn: Callable[[], Any]) -> list[Event]:
    """The requests that fn() makes of the CPU allocator, temporaries included, for `replay`.

    Memory taken before is unknown here, so its being freed is left out.
    """
    with profiled() as prof:
        result = fn()
        del result
        gc.collect()
    events: list[Event] = []
    alive: dict[int, int] = {}
    for _, address, nbytes in allocations(prof)[0]:
        if nbytes > 0:
            alive[address] = len(events)
            events.append(("malloc", alive[address], nbytes))
        elif address in alive:
            events.append(("free", alive.pop(address), 0))
    return events


def resident_bytes() -> int | None:
    """Bytes of this process that are in main memory; None where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    import resource

    return pages * resource.getpagesize()
