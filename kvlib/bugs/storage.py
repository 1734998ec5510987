"""Bugs in the storage: rows, types, batches, the end, rollback, and what states share."""

import torch
import torch.nn.functional as F

from ..caches import GrowingCache, StaticCache
from ..decoders import KvlibDecoder
from .plant import CHUNKS, LAST, ONE, PROMPT, planted

# Storage


@planted("reversed-concat", "storage", CHUNKS, "new rows are put before the old ones")
class ReversedConcat(GrowingCache):
    def update(self, layer, k, v):
        self.keys[layer] = torch.cat([k, self.keys[layer]], dim=2)
        self.values[layer] = torch.cat([v, self.values[layer]], dim=2)
        return self.keys[layer], self.values[layer]


@planted("values-are-keys", "storage", ONE, "keys are written where values belong")
class ValuesAreKeys(StaticCache):
    def update(self, layer, k, v):
        return super().update(layer, k, k)


@planted("head-transpose", "storage", PROMPT, "heads and tokens change places in the storage")
class HeadTranspose(StaticCache):
    def update(self, layer, k, v):
        k, v = (rows.transpose(1, 2).reshape(rows.shape) for rows in (k, v))
        return super().update(layer, k, v)


@planted("slice-before-write", "storage", ONE, "a new token does not attend to itself")
class SliceBeforeWrite(StaticCache):
    def update(self, layer, k, v):
        keys, values = super().update(layer, k, v)
        end = self.length if self.length and k.shape[2] == 1 else None
        return keys[:, :, :end], values[:, :, :end]


class Zeroed(StaticCache):
    """A static cache whose unwritten rows are zeros: reading one gives the same each time."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.keys.zero_()
        self.values.zero_()


@planted("unwritten-rows", "storage", ONE, "decode attends to rows nobody has written")
class UnwrittenRows(Zeroed):
    def update(self, layer, k, v):
        keys, values = super().update(layer, k, v)
        return (self.keys[layer], self.values[layer]) if k.shape[2] == 1 else (keys, values)


@planted("scrambled-resize", "storage", LAST, "growing past 128 rows mixes heads and tokens")
class ScrambledResize(GrowingCache):
    def update(self, layer, k, v):
        keys = self.keys[layer]
        if keys.shape[2] < 128 <= keys.shape[2] + k.shape[2]:
            self.keys[layer] = keys.transpose(1, 2).reshape(keys.shape)
        return super().update(layer, k, v)


@planted("normed-again", "storage", ONE, "stored keys are normalised anew at every step")
class NormedAgain(GrowingCache):
    def update(self, layer, k, v):
        self.keys[layer] = F.normalize(self.keys[layer], dim=-1)
        return super().update(layer, k, v)


@planted("tail-fed-twice", "storage", PROMPT, "the last prompt token is read a second time")
class TailFedTwice(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        tail = vars(state).pop("tail", None)
        if tail is not None:
            super().step(tail, state)
        elif tokens.shape[1] > 1:
            state.tail = tokens[:, -1:]
        return super().step(tokens, state, padding)


@planted("input-overwritten", "storage", "caller's tensors", "the next token replaces the input")
class InputOverwritten(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        logits, state = super().step(tokens, state, padding)
        tokens[:, -1] = logits[:, -1].argmax(-1)
        return logits, state


# Data type


@planted("half-cache", "dtype", ONE, "keys and values are stored in float16")
class HalfCache(StaticCache):
    narrow = torch.float16

    def update(self, layer, k, v):
        self.keys, self.values = self.keys.to(self.narrow), self.values.to(self.narrow)
        self.dtype = self.narrow
        keys, values = super().update(layer, k.to(self.narrow), v.to(self.narrow))
        return keys.to(k.dtype), values.to(v.dtype)


@planted("float32-cache", "dtype", "cache dtype", "the cache is float32 whatever the model is")
class Float32Cache(HalfCache):
    narrow = torch.float32


# Batch


@planted("row-0-for-all", "batch", "rows independent", "every row reads the first row's past")
class Row0ForAll(StaticCache):
    def update(self, layer, k, v):
        return super().update(layer, k[:1].expand_as(k), v[:1].expand_as(v))


@planted(
    "one-prompt-for-all", "batch", "rows independent", "equal first tokens pass for equal rows"
)
class OnePromptForAll(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        if not state.length and padding is None and (tokens[:, 0] == tokens[0, 0]).all():
            tokens = tokens[:1].expand_as(tokens)
        return super().step(tokens, state, padding)


# Limit


@planted("write-past-the-end", "limit", "past the capacity", "rows past the end vanish")
class WritePastTheEnd(StaticCache):
    def check(self, k, v):
        pass


@planted("silent-restart", "limit", "past the last position", "a full cache is emptied unasked")
class SilentRestart(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        if state.length + tokens.shape[1] > self.block_size:
            state.reset()
        return super().step(tokens, state, padding)


# Rollback


@planted("truncate-0-keeps-all", "rollback", "truncate to nothing", "0 is taken for 'not given'")
class Truncate0KeepsAll(StaticCache):
    def truncate(self, length):
        super().truncate(length or self.length)


@planted("truncate-unchecked", "rollback", "truncate too far", "any length is accepted")
class TruncateUnchecked(StaticCache):
    def truncate(self, length):
        self.length = length


@planted("row-left-behind", "rollback", "truncate and continue", "one row too many is kept")
class RowLeftBehind(StaticCache):
    def truncate(self, length):
        super().truncate(length)
        self.length += length > 0


@planted("whole-blocks", "rollback", "truncate and continue", "only blocks of 4 rows are kept")
class WholeBlocks(StaticCache):
    def truncate(self, length):
        super().truncate(length)
        self.length -= length % 4


@planted("wiped", "rollback", "truncate and continue", "a rollback forgets everything")
class Wiped(StaticCache):
    def truncate(self, length):
        super().truncate(length)
        super().truncate(0)


# Sharing


@planted("not-cleared", "sharing", "fresh state", "a new prompt goes on after the last one")
class NotCleared(KvlibDecoder):
    def start(self, batch, capacity):
        earlier = vars(self).get("earlier")
        if earlier is None or (earlier.batch, earlier.dtype) != (
            batch,
            self.model.wte.weight.dtype,
        ):
            self.earlier = super().start(batch, self.block_size)
        return self.earlier


@planted("shared-buffer", "sharing", "two states", "two states write into the same storage")
class SharedBuffer(KvlibDecoder):
    def start(self, batch, capacity):
        state = super().start(batch, capacity)
        pool = vars(self).setdefault("pool", {})
        rows = pool.setdefault((batch, capacity, state.dtype), (state.keys, state.values))
        state.keys, state.values = rows
        return state


@planted("prefix-of-another", "sharing", "fresh state", "a weak hash returns another prompt's rows")
class PrefixOfAnother(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        if state.length or padding is not None:
            return super().step(tokens, state, padding)
        known = vars(self).setdefault("known", {})
        key = (*tokens.shape, int(tokens.sum()), state.dtype)  # a sum: order does not matter
        if key not in known:
            known[key] = super().step(tokens, self.start(*tokens.shape))
        logits, block = known[key]
        for layer in range(len(block.keys)):
            state.update(layer, block.keys[layer], block.values[layer])
        state.advance(tokens.shape[1])
        return logits.clone(), state
