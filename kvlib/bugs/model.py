"""Bugs in how a model uses its cache: positions, mask, and the reference itself."""

import copy
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import model as engine
from ..caches import StaticCache
from ..decoders import KvlibDecoder
from ..model import MLP, attention_mask, positions
from .plant import CHUNKS, LAST, ONE, PADDING, PROMPT, planted

# Positions


@planted("restart", "positions", ONE, "every call starts at position 0", "positions")
def restart(start, tokens, device):
    return positions(0, tokens, device)


@planted("skipped-for-one", "positions", ONE, "a single token gets position 0", "positions")
def skipped_for_one(start, tokens, device):
    return positions(0 if tokens == 1 else start, tokens, device)


@planted("adds-whole-length", "positions", ONE, "the new tokens are counted twice", "positions")
def adds_whole_length(start, tokens, device):
    return positions(start + tokens * (start > 0), tokens, device)


@planted(
    "prompt-of-one", "positions", ONE, "a prompt of one token is taken for decode", "positions"
)
def prompt_of_one(start, tokens, device):
    alone = tokens == 1 and isinstance(start, int) and start == 0
    return positions(1 if alone else start, tokens, device)


@planted("off-by-one", "positions", ONE, "the last position is used again by the next token")
class OffByOne(StaticCache):
    @property
    def position(self):
        return super().position - 1


@planted("one-for-all-rows", "positions", PADDING, "after the prompt all rows share a position")
class OneForAllRows(StaticCache):
    @property
    def position(self):
        return self.length


@planted("padding-counted", "positions", PADDING, "left padding takes positions", "positions")
def padding_counted(start, tokens, device):
    return positions(int(start.max()) if isinstance(start, Tensor) else start, tokens, device)


@planted("counter-in-bf16", "positions", LAST, "the position counter is rounded above 256")
class CounterInBF16(StaticCache):
    @property
    def position(self):
        exact = super().position
        if isinstance(exact, Tensor):
            return exact.bfloat16().long()
        return int(torch.tensor(exact, dtype=torch.bfloat16))


@planted("last-is-first", "positions", PROMPT, "last() gives the logits of the first new token")
class LastIsFirst(KvlibDecoder):
    def last(self, tokens, state):
        logits, state = self.step(tokens, state)
        return logits[:, :1], state


@planted("joined-fragments", "positions", PROMPT, "pieces of a prompt all start at position 0")
class JoinedFragments(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        if state.length or not 64 < tokens.shape[1] <= self.block_size:
            return super().step(tokens, state, padding)
        found = []
        for piece in tokens.split(64, dim=1):
            B, T = piece.shape
            logits, part = super().step(piece, self.start(B, T))
            for layer in range(len(part.keys)):
                state.update(layer, part.keys[layer], part.values[layer])
            state.advance(T)
            found.append(logits)
        return torch.cat(found, dim=1), state


# Mask: every function below is right where all tokens are new


@planted("mask-from-row-0", "mask", ONE, "the mask is cut from its first rows", "attention_mask")
def mask_from_row_0(tokens, stored, padding, device):
    if padding is not None:
        return attention_mask(tokens, stored, padding, device)
    return torch.ones(stored, stored, dtype=torch.bool, device=device).tril()[:tokens]


@planted("mask-top-left", "mask", CHUNKS, "chunks are masked from the first row", "attention_mask")
def mask_top_left(tokens, stored, padding, device):
    if padding is not None or tokens == 1:
        return attention_mask(tokens, stored, padding, device)
    return torch.ones(tokens, stored, dtype=torch.bool, device=device).tril()


@planted(
    "mask-dropped", "mask", CHUNKS, "with a past, tokens of a chunk see ahead", "attention_mask"
)
def mask_dropped(tokens, stored, padding, device):
    if padding is not None or tokens == stored:
        return attention_mask(tokens, stored, padding, device)
    return torch.ones(tokens, stored, dtype=torch.bool, device=device)


@planted("mask-not-for-few", "mask", CHUNKS, "up to 8 tokens are taken for one", "attention_mask")
def mask_not_for_few(tokens, stored, padding, device):
    if tokens > 8:
        return attention_mask(tokens, stored, padding, device)
    return mask_dropped(tokens, stored, padding, device)


@planted("padding-forgotten", "mask", PADDING, "decode attends to past padding", "attention_mask")
def padding_forgotten(tokens, stored, padding, device):
    return attention_mask(tokens, stored, padding if tokens == stored else None, device)


@planted("window-in-decode", "mask", LAST, "decode sees the last 128 rows only", "attention_mask")
def window_in_decode(tokens, stored, padding, device):
    if padding is not None or tokens == stored:
        return attention_mask(tokens, stored, padding, device)
    past = stored - tokens
    causal = torch.ones(tokens, stored, dtype=torch.bool, device=device).tril(past)
    return causal.triu(past - 127)


# Reference: the code that the cache is compared with is the one that is wrong


@planted("mask-not-in-reference", "reference", "premises", "the uncached path sees ahead")
class MaskNotInReference(KvlibDecoder):
    def full(self, tokens):
        everything = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool)
        with patch.object(engine, "attention_mask", lambda *_: everything):
            return super().full(tokens)


@planted("weights-not-loaded", "reference", "premises", "attention adds nothing: no past to cache")
class WeightsNotLoaded(KvlibDecoder):
    def __init__(self, model, cache):
        super().__init__(copy.deepcopy(model), cache)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "attn.c_proj" in name:
                    parameter.zero_()


class ExactMLP(MLP):
    """The MLP with GELU in its exact form."""

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


@planted("exact-gelu", "reference", "another implementation", "GELU is exact where GPT-2's is not")
class ExactGELU(KvlibDecoder):
    def __init__(self, model, cache):
        super().__init__(copy.deepcopy(model), cache)
        for module in self.model.modules():
            if isinstance(module, MLP):
                module.__class__ = ExactMLP


@planted("dropout-left-on", "reference", "determinism", "logits are dropped out at random")
class DropoutLeftOn(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        logits, state = super().step(tokens, state, padding)
        return F.dropout(logits, 0.1), state
