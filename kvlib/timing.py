"""Seconds of every token of a generation, and of one decode step at any context.

- TTFT, time to first token: from the request to the first token, the prefill included.
- ITL, inter-token latency: from one token to the next.
- TPOT, time per output token: (end to end - TTFT) / (tokens - 1), the mean ITL of one generation.

All is measured as `kvlib.stopwatch` measures: after a warm-up, taking turns, synchronised, with
every sample kept.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import stopwatch
from .caches import GrowingCache, StaticCache
from .samples import Samples, Trace, table
from .shapes import positive
from .stopwatch import (
    check_counts,
    facts_of,
    interleave,
    measure,
    synchronize,
    undisturbed,
    warm_up,
)
from .watch import storages

__all__ = ["Samples", "Trace", "interleave", "measure", "profile", "sweep", "table", "trace"]
__all__ += ["prompts", "sweeps", "traces"]


def trace(
    decoder, prompt: Tensor, new_tokens: int, *, repeats: int = 5, warmup: int = 3, tf32=False
) -> Trace:
    """Seconds of every single token of a greedy generation, the first with its prefill.

    `prompt` is int64 (B, T); `repeats` generations of `new_tokens` each, and before them warm-up
    generations of three tokens. A decoder with a method `last` computes the logits of the last
    position alone.

    Raises ValueError where the tokens exceed the decoder's `block_size`.
    """
    how = dict(repeats=repeats, warmup=warmup, tf32=tf32)
    for made in traces({"": decoder}, prompt, new_tokens, **how):
        latest = made[""]
    return latest


def traces(
    decoders: Mapping[str, Any],
    prompt: Tensor,
    new_tokens: int,
    *,
    repeats: int = 5,
    warmup: int = 3,
    tf32: bool = False,
) -> Iterator[dict[str, Trace]]:
    """After each generation, the Trace of every decoder so far; the decoders take turns.

    The last one yielded has `repeats` runs of each. Whoever stops earlier keeps what was measured.
    """
    check_counts(repeats, warmup)
    positive(new_tokens=new_tokens)
    if not isinstance(prompt, Tensor) or prompt.dim() != 2 or not prompt.numel():
        shape = tuple(prompt.shape) if isinstance(prompt, Tensor) else type(prompt).__name__
        raise ValueError(f"the prompt must be a tensor of token ids (B, T), not {shape}")
    for decoder in decoders.values():
        check_room(decoder, prompt.shape[1] + new_tokens - 1)
    short = min(new_tokens, 3)
    done: dict[str, list] = {name: [] for name in decoders}
    held = dict.fromkeys(decoders, 0)
    device, (batch, length) = device_of(decoders), prompt.shape
    with undisturbed(device, tf32):
        facts = {name: conditions(decoder, device) for name, decoder in decoders.items()}
        warm = {
            name: warm_up(functools.partial(warm_run, decoder, prompt, short, device), warmup)
            for name, decoder in decoders.items()
        }
        for _ in range(repeats):
            for name, decoder in decoders.items():
                run, _, held[name] = generation(decoder, prompt, new_tokens, device)
                done[name].append(tuple(run))
                yield {
                    each: Trace(batch, length, tuple(runs), held[each], facts[each], warm[each])
                    for each, runs in done.items()
                    if runs
                }


def profile(
    decoder,
    *,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] = (19,),
    new_tokens: int = 50,
    repeats: int = 5,
    warmup: int = 3,
    seed: int = 0,
    tf32: bool = False,
) -> list[Trace]:
    """A Trace for each of `batches` and prompt length of `contexts`; `timing.table` prints them.

    A Trace gives TTFT, TPOT, ITL quantiles, and throughput with and without the prefill. The rows
    of a batch are distinct prompts, drawn from `seed`.
    """
    how = dict(repeats=repeats, warmup=warmup, tf32=tf32)
    return [
        trace(decoder, prompts(decoder, batch, context, seed), new_tokens, **how)
        for context in contexts
        for batch in batches
    ]


def sweep(
    decoders: Mapping[str, Any],
    contexts: Sequence[int],
    *,
    batch: int = 1,
    repeats: int = 5,
    warmup: int = 1,
    seed: int = 0,
    tf32: bool = False,
) -> dict[str, dict[int, Samples]]:
    """Samples of one decode step at each context: decoder -> context -> seconds per step.

    A step at context S reads one token and attends to S, its own included. Each decoder reads the
    longest context once, then is truncated from one context to the next; one that cannot be
    truncated reads every context anew. Our own caches read nothing: they are filled with random
    rows, on whose values no speed depends. None of this is timed, nor is the generation between
    contexts, so a long one can be sampled where running it in full would take too long.
    """
    how: dict[str, Any] = dict(batch=batch, repeats=repeats, warmup=warmup, seed=seed, tf32=tf32)
    for found in sweeps(decoders, contexts, **how):
        latest = found
    return {name: dict(sorted(samples.items())) for name, samples in latest.items()}


def sweeps(
    decoders: Mapping[str, Any],
    contexts: Sequence[int],
    *,
    batch: int,
    repeats: int,
    warmup: int,
    seed: int,
    tf32: bool,
) -> Iterator[dict[str, dict[int, Samples]]]:
    """After each context, from the longest on, what `sweep` has found so far."""
    check_counts(repeats, warmup)
    positive(batch=batch)
    if not contexts or min(contexts) < 1:
        raise ValueError(f"contexts must be positive numbers of tokens, not {list(contexts)}")
    device, longest = device_of(decoders), max(contexts)
    for decoder in decoders.values():
        check_room(decoder, longest)
    found: dict[str, dict[int, Samples]] = {name: {} for name in decoders}
    with undisturbed(device, tf32):
        facts = {name: conditions(decoder, device) for name, decoder in decoders.items()}
        steps = {
            name: Stepper(decoder, prompts(decoder, batch, longest, seed), device)
            for name, decoder in decoders.items()
        }
        for context in sorted(contexts, reverse=True):
            at = {name: functools.partial(step, context) for name, step in steps.items()}
            warm = {name: warm_up(run, warmup) for name, run in at.items()}
            runs = [{name: run() for name, run in at.items()} for _ in range(repeats)]
            for name in decoders:
                taken = tuple(run[name] for run in runs)
                found[name][context] = Samples(taken, warm[name], facts[name])
            yield found


class Stepper:
    """Seconds of one decode step at any context up to that of `tokens` (B, T): call it with it."""

    def __init__(self, decoder, tokens: Tensor, device):
        self.decoder, self.tokens, self.device = decoder, tokens, device
        self.read(tokens.shape[1])

    def read(self, length: int) -> None:
        """Make a new state that holds the first `length` tokens."""
        state = self.decoder.start(self.tokens.shape[0], self.tokens.shape[1])
        if isinstance(state, (GrowingCache, StaticCache)):
            fill(state, length)  # our caches need no prefill: speed does not depend on values
        elif length:
            _, state = last_step(self.decoder)(self.tokens[:, :length], state)
        self.state, self.length = state, length

    def __call__(self, context: int) -> float:
        if self.length != context - 1:
            self.rewind(context - 1)
        token, step = self.tokens[:, context - 1 : context], last_step(self.decoder)
        synchronize(self.device)
        began = stopwatch.clock()
        logits, self.state = step(token, self.state)
        best(logits, token, self.decoder)
        synchronize(self.device)
        self.length = context
        return stopwatch.clock() - began

    def rewind(self, length: int) -> None:
        """Bring the state to `length` tokens, by truncation where the decoder can."""
        if length < self.length and hasattr(self.decoder, "truncate"):
            with contextlib.suppress(NotImplementedError):
                self.state = self.decoder.truncate(self.state, length)
                self.length = length
                return
        self.read(length)


def fill(cache: GrowingCache | StaticCache, tokens: int) -> None:
    """Append `tokens` rows of random numbers to every layer of `cache`."""
    config = cache.config
    shape = (cache.batch, config.n_head, tokens, config.head_dim)
    rows = torch.randn(shape, device=cache.device).to(cache.dtype)
    for layer in range(config.n_layer):
        cache.update(layer, rows, rows)
    cache.advance(tokens)


def generation(decoder, prompt: Tensor, new_tokens: int, device) -> tuple[list[float], Tensor, int]:
    """Seconds of each new token of one greedy generation, the tokens (B, new_tokens), and the
    bytes its state ends with.
    """
    step, taken, made = last_step(decoder), [], []
    synchronize(device)
    last = stopwatch.clock()
    state, tokens = decoder.start(prompt.shape[0], prompt.shape[1] + new_tokens - 1), prompt
    for _ in range(new_tokens):
        logits, state = step(tokens, state)
        tokens = best(logits, tokens, decoder)
        synchronize(device)
        now = stopwatch.clock()
        taken.append(now - last)
        last = now
        made.append(tokens)
    return taken, torch.cat(made, 1), sum(storage.nbytes() for storage in storages(state))


def best(logits: Tensor, tokens: Tensor, decoder) -> Tensor:
    """The likeliest next tokens (B, 1) by a step's logits, (B, T, V) or the last's, (B, 1, V).

    Raises ValueError for another shape: it would be timed as if it were right.
    """
    found = tuple(getattr(logits, "shape", ()))
    owed = [(len(tokens), rows, decoder.vocab_size) for rows in (tokens.shape[1], 1)]
    if found not in owed:
        raise ValueError(f"a step gave logits of shape {found} where {owed[0]} is owed")
    return logits[:, -1:].argmax(-1)


def warm_run(decoder, prompt: Tensor, new_tokens: int, device) -> float:
    """Seconds of one short generation."""
    return sum(generation(decoder, prompt, new_tokens, device)[0])


def last_step(decoder) -> Callable:
    """The decoder's step for the last position's logits alone, where it has one."""
    return getattr(decoder, "last", decoder.step)


def prompts(decoder, batch: int, length: int, seed: int = 0) -> Tensor:
    """Seeded token ids (batch, length), each row another prompt, on the decoder's device."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, decoder.vocab_size, (batch, length), generator=random)
    return tokens.to(getattr(decoder, "device", "cpu"))


def device_of(decoders: Mapping[str, Any]):
    """The one device of all `decoders`; ValueError where there are several, or no decoders."""
    if not decoders:
        raise ValueError("there is no decoder to measure; give at least one")
    found = {str(getattr(decoder, "device", "cpu")) for decoder in decoders.values()}
    if "cuda" in found and len(found) > 1:  # the current one, by another name
        found = found - {"cuda"} | {f"cuda:{torch.cuda.current_device()}"}
    if len(found) != 1:
        raise ValueError(f"decoders on {sorted(found)} cannot take turns; put them on one device")
    return found.pop()


def conditions(decoder, device) -> dict:
    """The machine's facts and the decoder's number type, where its model tells."""
    model = getattr(decoder, "model", None)
    weight = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    dtype = None if weight is None else str(weight.dtype).removeprefix("torch.")
    return facts_of(device) | {"dtype": dtype}


def check_room(decoder, tokens: int) -> None:
    """Raise ValueError where `tokens` exceed the decoder's positions."""
    limit = getattr(decoder, "block_size", None)
    if limit is not None and tokens > limit:
        raise ValueError(
            f"{tokens} tokens exceed the decoder's {limit} positions (block_size); ask for fewer"
        )
