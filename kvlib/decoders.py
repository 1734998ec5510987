"""One face for every model that decodes: ours, Hugging Face's, or a reader's own.

A `Decoder` has `vocab_size`, `block_size` (None where positions have no end), `device`,
`start(batch, capacity) -> state` and `step(tokens, state) -> (logits, state)`, which consumes its
state. Any object with `vocab_size`, `start` and `step` will do. These powers are optional, and a
method that raises NotImplementedError is a power the decoder lacks:

- `step(tokens, state, padding=)`: leading padding of each row, given with the first tokens
- `last(tokens, state) -> (logits, state)`: a step that computes the logits (B, 1, V) of the last
  position alone
- `truncate(state, n) -> state`: keep the first n tokens
- `full(tokens) -> logits`: one pass with no cache at all
- `to_float64() -> Decoder`: a copy in double precision
- `peer() -> Decoder`: another implementation of the same weights

So are these attributes: `dtype`, the type it computes in; `length`, how many tokens to test where
positions have no end; `on_limit`, what it does past `block_size` unless that is to "raise".
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .generate import new_cache
from .model import GPT2
from .step import Step, check_form


class Decoder(Protocol):
    """What the lab asks of a model: tokens (B, T) in, logits (B, T, V) out, a state between."""

    vocab_size: int

    def start(self, batch: int, capacity: int) -> Any: ...
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


class KvlibDecoder:
    """A GPT2 with one of our caches; with none (cache=None) it recomputes the whole past.

    `form` is that of the weights which a step reads, of one token a sequence: see `Step`.
    """

    def __init__(self, model: GPT2, cache: str | None, form: str = "float32"):
        self.model, self.cache, self.form = model, cache, form
        self.once: Step | None = None  # made at the first step of `model`
        self.vocab_size, self.block_size = model.config.vocab_size, model.config.block_size
        new_cache(model, cache, 1, 1)  # an unknown cache or form is refused here,
        check_form(form)  # not at the first step

    @property
    def device(self) -> torch.device:
        return self.model.wte.weight.device

    def start(self, batch: int, capacity: int):
        if self.cache is None:
            return torch.empty(batch, 0, dtype=torch.int64, device=self.device), None
        return new_cache(self.model, self.cache, batch, capacity)

    def step(self, tokens: Tensor, state, padding: Tensor | None = None):
        return self.run(tokens, state, padding, last_only=False)

    def last(self, tokens: Tensor, state):
        return self.run(tokens, state, None, last_only=True)

    def run(self, tokens: Tensor, state, padding: Tensor | None, last_only: bool):
        with torch.inference_mode():
            if self.cache is not None:
                if tokens.shape[1] == 1 and padding is None:
                    return self.fast(tokens, state), state
                return self.model(tokens, state, padding=padding, last_only=last_only), state
            past, padding = state[0], state[1] if padding is None else padding
            seen = torch.cat([past, tokens], dim=1)
            logits = self.model(seen, padding=padding, last_only=last_only)
            return logits[:, -1 if last_only else past.shape[1] :], (seen, padding)

    def fast(self, tokens: Tensor, state) -> Tensor:
        if self.once is None or self.once.model is not self.model:
            self.once = Step(self.model, self.form)
        return self.once(tokens, state)

    def truncate(self, state, length: int):
        if self.cache is not None:
            state.truncate(length)
            return state
        seen, padding = state
        check_length(length, seen.shape[1])
        return seen[:, :length], padding if length else None

    def full(self, tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.model(tokens)

    def to_float64(self) -> "KvlibDecoder":
        return with_model(self, copy.deepcopy(self.model).double())

    def peer(self) -> "HFDecoder":
        return HFDecoder(to_hf(self.model), "dynamic")


class HFDecoder:
    """A Hugging Face causal language model with its own dynamic or static cache."""

    def __init__(self, model, cache: str):
        if cache not in ("dynamic", "static"):
            raise ValueError(f"no cache {cache!r}; choose 'dynamic' or 'static'")
        check_causal(model)
        self.model, self.cache = model.eval(), cache
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        # Only tables of positions end: rotary ones go on past the length a model was trained at.
        self.length = getattr(config, "max_position_embeddings", None)
        self.window = getattr(config, "sliding_window", None)
        self.block_size = self.length if table_of_positions(model, self.length) else None
        self.takes = set(inspect.signature(model.forward).parameters)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def start(self, batch: int, capacity: int):
        from transformers import DynamicCache, StaticCache

        if self.cache == "static":
            store = StaticCache(config=self.model.config, max_cache_len=capacity)
        else:
            store = DynamicCache(config=self.model.config)
        return store, 0, None  # cache, tokens it holds, padding of each row

    def step(self, tokens: Tensor, state, padding: Tensor | None = None):
        return self.run(tokens, state, padding, last_only=False)

    def last(self, tokens: Tensor, state):
        return self.run(tokens, state, None, last_only=True)

    def run(self, tokens: Tensor, state, padding: Tensor | None, last_only: bool):
        store, past, first = state
        padding = first if padding is None else padding
        end = past + tokens.shape[1]
        seen = torch.arange(end, device=tokens.device).expand(tokens.shape[0], end)
        real = seen >= 0 if padding is None else seen >= padding[:, None]
        inputs = {"attention_mask": real.long(), "use_cache": True}
        inputs["cache" if "cache" in self.takes else "past_key_values"] = store
        if padding is not None and "position_ids" in self.takes:
            inputs["position_ids"] = (seen[:, past:] - padding[:, None]).clamp(min=0)
        if last_only and "logits_to_keep" in self.takes:
            inputs["logits_to_keep"] = 1
        with torch.inference_mode():
            logits = self.model(tokens, **inputs).logits
        return logits[:, -1:] if last_only else logits, (store, end, padding)

    def truncate(self, state, length: int):
        store, stored, padding = state
        check_length(length, stored)
        if not store.is_croppable:
            raise NotImplementedError(f"{type(store).__name__} of this model cannot be cropped")
        try:
            store.crop(length - stored)
        except RuntimeError as error:  # a sliding window has forgotten what would come back
            raise NotImplementedError(f"this cache cannot be cropped: {error}") from error
        return store, length, padding if length else None

    def full(self, tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            real = torch.ones_like(tokens)  # without it, ids that pad elsewhere draw a warning
            return self.model(tokens, attention_mask=real, use_cache=False).logits

    def to_float64(self) -> "HFDecoder":
        return with_model(self, copy.deepcopy(self.model).double())


class PastDecoder:
    """A function in tuple-of-past style: fn(tokens, past) -> (logits, past), past None at first."""

    def __init__(self, fn: Callable, vocab_size: int, block_size: int | None, device):
        self.fn, self.vocab_size, self.block_size = fn, vocab_size, block_size
        self.device = torch.device(device)

    def start(self, batch: int, capacity: int):
        return None

    def step(self, tokens: Tensor, state):
        with torch.inference_mode():
            return self.fn(tokens, state)


def from_kvlib(model: GPT2, cache: str | None = "static", *, form: str = "float32") -> KvlibDecoder:
    """A Decoder of our model with cache "static" or "growing"; None recomputes everything.

    `form` "packed" keeps a second copy of the weights for batches, and "float16" or "int8" lets a
    step read them in fewer bytes, on a CPU; its logits then differ from the model's. See `Step`.
    """
    return KvlibDecoder(model, cache, form)


def from_hf(hf_model, cache: str = "dynamic") -> HFDecoder:
    """A Decoder of a Hugging Face causal language model, with cache "dynamic" or "static".

    The model is put in eval mode. Raises ValueError for one that is no decoder with a cache of keys
    and values: an encoder-decoder, or a recurrent model.
    """
    return HFDecoder(hf_model, cache)


def from_past(
    fn: Callable, *, vocab_size: int, block_size: int | None = None, device="cpu"
) -> PastDecoder:
    """A Decoder of fn(tokens, past) -> (logits, past); `past` is None with the first tokens.

    `device` is where `fn` wants its tokens.
    """
    return PastDecoder(fn, vocab_size, block_size, device)


def to_hf(model: GPT2) -> nn.Module:
    """Hugging Face's `GPT2LMHeadModel` over the very tensors of `model`: no weight is copied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ours = model.config
    config = GPT2Config(
        n_positions=ours.block_size,
        vocab_size=ours.vocab_size,
        n_layer=ours.n_layer,
        n_head=ours.n_head,
        n_embd=ours.n_embd,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        theirs = GPT2LMHeadModel(config)
    state = {  # their matrices are (in, out), ours (out, in)
        name: tensor.t() if name.startswith("h.") and tensor.dim() == 2 else tensor
        for name, tensor in model.state_dict().items()
    }
    theirs.transformer.load_state_dict(state, assign=True)
    theirs.tie_weights()
    return theirs.eval()


def with_model(decoder, model: nn.Module):
    """A decoder like `decoder`, in class and settings, that runs `model`."""
    twin = copy.copy(decoder)
    twin.model = model
    return twin


def table_of_positions(model: nn.Module, length: int | None) -> bool:
    """Whether positions are rows of a table, which ends, rather than computed, which does not.

    The table is learned, or computed once and kept in a buffer of `length` rows.
    """
    learned = any(
        isinstance(module, nn.Embedding) and ("wpe" in name or "position" in name)
        for name, module in model.named_modules()
    )
    return learned or any(
        "embed_positions" in name and buffer.dim() == 2 and len(buffer) == length
        for name, buffer in model.named_buffers()
    )


def check_causal(model: nn.Module) -> None:
    """Raise ValueError where a Hugging Face model does not decode with keys and values alone."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder; give a causal language model")
    if getattr(model, "_is_stateful", False):
        raise ValueError(f"{name} keeps a recurrent state, not only keys and values to cut and pad")


def check_length(length: int, stored: int) -> None:
    """Raise ValueError where `length` tokens cannot be kept of `stored`."""
    if type(length) is not int or not 0 <= length <= stored:
        raise ValueError(
            f"cannot keep {length!r} tokens of {stored}; give an integer from 0 to {stored}"
        )
