"""Seconds of any call, measured so that they mean something.

Warm-up comes first, by count and until it brings nothing more. Then what is compared takes turns,
run by run, so that a machine that slows down slows all of it down. The device is synchronised
before a clock is read; garbage collector, autograd and TF32 are out of the way; every sample is
kept, with the machine it was taken on.
"""

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import machine
from .samples import Samples
from .shapes import positive

SETTLED = 0.05  # warm is a run that beats the best before it by no more than this share
MOST = 4  # times the runs asked for, at most, until a warm-up is called off

clock = time.perf_counter


def measure(
    fn: Callable[[], Any], *, repeats: int = 5, warmup: int = 3, device="cpu", tf32: bool = False
) -> Samples:
    """Samples of fn(), in seconds per call: `repeats` of them, after at least `warmup` more.

    `device` is synchronised around every call: the name of a torch device, or any object with a
    method `synchronize`. Warm-up goes on until a call is no more than 5% faster than the fastest
    before it, to four times `warmup` at most; 0 is none. Gradients are off; `tf32` allows CUDA to
    round the factors of a product to 11 bits. The Samples' machine has as `dtype` what torch makes
    new tensors of; what fn computes in is not known here.

    Raises ValueError where `repeats` is no positive integer or `warmup` is negative.
    """
    how = dict(repeats=repeats, warmup=warmup, device=device, tf32=tf32)
    return interleave({"fn": fn}, **how)["fn"]


def interleave(
    fns: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 5,
    warmup: int = 3,
    device="cpu",
    tf32: bool = False,
) -> dict[str, Samples]:
    """Samples of each of `fns` as by `measure`, one call of each in turn."""
    check_counts(repeats, warmup)
    runs: dict[str, list[float]] = {name: [] for name in fns}
    with undisturbed(device, tf32):
        facts = facts_of(device)
        warm = {
            name: warm_up(functools.partial(seconds, fn, device), warmup)
            for name, fn in fns.items()
        }
        for _ in range(repeats):
            for name, fn in fns.items():
                runs[name].append(seconds(fn, device))
    return {name: Samples(tuple(runs[name]), warm[name], facts) for name in fns}


def warm_up(run: Callable[[], float], count: int) -> int:
    """How many times `run` was called: at least `count`, and until it gets no faster."""
    best, made = float("inf"), 0
    while made < MOST * count:
        taken = run()
        made += 1
        if made >= count and taken >= best * (1 - SETTLED):
            break
        best = min(best, taken)
    return made


def seconds(fn: Callable[[], Any], device) -> float:
    """Seconds from calling fn() until `device` has done all it was asked to."""
    synchronize(device)
    began = clock()
    result = fn()
    synchronize(device)
    taken = clock() - began
    del result  # so that freeing it is not timed
    return taken


def synchronize(device) -> None:
    """Wait until `device` has finished its work; a CPU has when it returns."""
    if hasattr(device, "synchronize"):
        device.synchronize()
        return
    device = torch.device(device)
    if device.type == "mps":  # there is one, and the call takes no name
        torch.mps.synchronize()
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


@contextlib.contextmanager
def undisturbed(device, tf32: bool = False) -> Iterator[None]:
    """Inside the `with`: no garbage collection, no autograd, and on CUDA TF32 as asked; then all
    as before.
    """
    collecting, products = gc.isenabled(), torch.backends.cuda.matmul
    on_cuda, before = str(device).startswith("cuda"), products.fp32_precision
    gc.collect()
    gc.disable()
    if on_cuda:
        products.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        with torch.no_grad():
            yield
    finally:
        if on_cuda:
            products.fp32_precision = before
        if collecting:
            gc.enable()


def facts_of(device) -> dict:
    """The machine's facts and torch's default number type, `dtype`; of a device that is not
    torch's, those of the CPU and its name. `float32_products` is the type to which a CPU's float32
    products are rounded, where `torch.set_float32_matmul_precision` has asked for that.
    """
    simulated = hasattr(device, "synchronize")
    facts = machine.facts("cpu" if simulated else device)
    facts["dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
    rounded = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    if facts["device"] == "cpu" and rounded in ("tf32", "bf16"):
        facts["float32_products"] = rounded
    return facts | {"device": type(device).__name__} if simulated else facts


def check_counts(repeats: int, warmup: int) -> None:
    """Raise ValueError where nothing would be measured."""
    positive(repeats=repeats)
    if type(warmup) is not int or warmup < 0:
        raise ValueError(f"warmup must be an integer from 0 on, not {warmup!r}")
