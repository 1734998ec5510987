"""What a model's cache stores for one token, read from any configuration. Imports no torch.

A layer stores vectors: one key and one value for each key-value head, or, with a latent cache, one
compressed vector that all heads share. A windowed layer keeps only the latest tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .config import GPT2Config

NAMES = {  # what each size is called in the configurations of the Hugging Face hub
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "width": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_size"),
    "positions": ("max_position_embeddings", "n_positions", "block_size", "max_seq_len"),
}
INNER = ("text_config", "llm_config", "language_config")  # where a multimodal model keeps its own
WINDOWED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
NO_CACHE = (
    "hybrid_override_pattern",
    "layers_block_type",
    "block_types",
    "mamba_d_state",
    "state_size",
    "ssm_state_size",
    "linear_attn_config",
)
RECURRENT = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma")
GEMMA = dict(num_attention_heads=8, num_key_value_heads=4, head_dim=256)
GEMMA3 = GEMMA | dict(max_position_embeddings=131072, sliding_window_pattern=6)
DEFAULTS = {  # what a published config.json may leave out, by its model_type
    "gemma2": dict(head_dim=256, sliding_window_pattern=2),
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "cohere2": dict(sliding_window_pattern=4),
}


@dataclass(frozen=True)
class Layer:
    """What a layer stores: `vectors` a token, as (how many, numbers in each), for `window` tokens.

    The keys come first, then the values; in a latent cache the latent, then the rotary key. A
    cache keeps a tensor for each. `window` None keeps every token. No vectors: the layer reads
    another layer's cache.
    """

    vectors: tuple[tuple[int, int], ...]
    window: int | None = None


@dataclass(frozen=True)
class Shape:
    """The layers of a cache, the heads that read it, and the model's positions, None if unknown."""

    layers: tuple[Layer, ...]
    heads: int
    kv_heads: int
    positions: int | None = None


def positive(**sizes) -> None:
    """Raise ValueError, naming the first of `sizes` that is not a positive integer."""
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a positive integer, not {value!r}")


def read(config: Any, *, expanded: bool = False) -> Shape:
    """The cache's shape for a GPT2Config, a Hugging Face configuration, its dict, or a Shape.

    A latent cache (multi-head latent attention) is counted as its paper stores it: one latent
    vector and one rotary key a token. `expanded=True` counts the keys and values of all heads
    instead, which an implementation that decompresses before it caches would hold. Falcon's
    `new_decoder_architecture` is counted as transformers stores it, each shared key and value once
    for every head that reads it.

    Raises ValueError where a size is missing, no positive integer, or impossible: more key-value
    heads than heads, heads they do not divide, a width the heads do not divide; and for layers that
    keep a state which is no cache of keys and values.
    """
    if isinstance(config, Shape):
        return config
    if isinstance(config, GPT2Config):
        layer = Layer(((config.n_head, config.head_dim),) * 2)
        return Shape((layer,) * config.n_layer, config.n_head, config.n_head, config.block_size)
    found = text_part(as_dict(config))
    refuse(found)
    count, heads = size(found, "layers"), size(found, "heads")
    if found.get("model_type") == "longcat_flash":
        count *= 2  # two attentions in each layer, each with a cache
    positions = maybe(found, "positions")
    kv_heads = key_value_heads(found, heads)
    vectors = layer_vectors(found, heads, kv_heads, expanded)
    shared = found.get("num_kv_shared_layers") or 0
    if type(shared) is not int or not 0 <= shared < count:
        raise ValueError(
            f"num_kv_shared_layers={shared!r} must be an integer from 0 to {count - 1}"
        )
    layers = [Layer(vectors, window) for window in windows(found, count)]
    own = [layer if i < count - shared else Layer(()) for i, layer in enumerate(layers)]
    return Shape(tuple(own), heads, kv_heads, positions)


def as_dict(config: Any) -> dict:
    """The configuration as a plain dict."""
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "to_dict"):
        return config.to_dict()
    raise ValueError(
        f"cannot read a configuration from {type(config).__name__}; give a GPT2Config, a Hugging "
        "Face configuration or the dict of its config.json"
    )


def text_part(found: dict) -> dict:
    """The part about the language model, where several are described, and its type's defaults."""
    kind = found.get("model_type")
    for name in INNER:
        if found.get(name) is not None:
            found = as_dict(found[name])
            break
    kind = found.get("model_type", kind)
    return DEFAULTS.get(str(kind), {}) | {"model_type": kind} | found


def refuse(found: dict) -> None:
    """Raise ValueError, by name, for a model whose state is no cache of keys and values alone."""
    if found.get("is_encoder_decoder"):
        raise ValueError("is_encoder_decoder=True: the encoder's keys are not counted here")
    recurrent = found["model_type"] in RECURRENT
    for name in ("model_type",) if recurrent else NO_CACHE:
        if found.get(name):
            raise ValueError(
                f"{name}={found[name]!r}: some layers keep a recurrent state, no cache"
            )


def size(found: dict, what: str) -> int:
    """The size called `what`, under whichever name the configuration has it."""
    value = maybe(found, what)
    if value is None:
        raise ValueError(
            f"no {what} in the configuration; expected one of {', '.join(NAMES[what])}"
        )
    return value


def maybe(found: dict, what: str) -> int | None:
    """The size called `what`; None where the configuration does not have it."""
    for name in NAMES[what]:
        if found.get(name) is not None:
            positive(**{name: found[name]})
            return found[name]
    return None


def key_value_heads(found: dict, heads: int) -> int:
    """Heads that have keys and values of their own: all, one (multi-query), or a divisor of all."""
    inner = found.get("attn_config")
    inner = as_dict(inner) if inner else {}
    if found.get("new_decoder_architecture"):
        return heads
    one = found.get("multi_query") and not found.get("multi_query_group_num")
    kv_heads = 1 if one else inner.get("kv_n_heads") or maybe(found, "kv_heads")
    if kv_heads is None:
        return heads
    positive(kv_heads=kv_heads)
    if kv_heads > heads or heads % kv_heads:
        raise ValueError(
            f"{kv_heads} key-value heads for {heads} heads: each must serve the same whole number "
            f"of heads; choose a divisor of {heads}"
        )
    return kv_heads


def layer_vectors(found: dict, heads: int, kv_heads: int, expanded: bool) -> tuple:
    """Vectors that a layer stores for one token, as (how many, numbers in each)."""
    if found.get("kv_lora_rank") is not None:
        latent, rotary = found["kv_lora_rank"], found.get("qk_rope_head_dim")
        positive(kv_lora_rank=latent, qk_rope_head_dim=rotary)
        if not expanded:
            return (1, latent), (1, rotary)
        plain, value = found.get("qk_nope_head_dim", 0), found.get("v_head_dim")
        positive(qk_nope_head_dim=plain, v_head_dim=value)
        return (heads, plain + rotary), (heads, value)
    head_dim = maybe(found, "head_dim")
    if head_dim is None:
        width = size(found, "width")
        if width % heads:
            raise ValueError(
                f"width {width} cannot be cut into {heads} equal heads; "
                f"choose a multiple of {heads}, or give head_dim"
            )
        head_dim = width // heads
    value = found.get("v_head_dim") or head_dim
    positive(v_head_dim=value)
    return (kv_heads, head_dim), (kv_heads, value)


def windows(found: dict, count: int) -> list[int | None]:
    """Most tokens that each of `count` layers keeps; None for all of them."""
    types = found.get("layer_types") or layer_types(found, count)
    if not isinstance(types, Iterable) or len(types := list(types)) != count:
        raise ValueError(f"layer_types={types!r} must name {count} layers, one type each")
    kept: list[int | None] = []
    for kind in types:
        if kind == "full_attention":
            kept.append(None)
            continue
        if kind not in tuple(WINDOWED):
            raise ValueError(
                f"layer type {kind!r} keeps no keys and values that grow with the tokens; "
                f"counted are full_attention, {', '.join(WINDOWED)}"
            )
        window = found.get(WINDOWED[kind])
        positive(**{WINDOWED[kind]: window})
        kept.append(window)
    return kept


def layer_types(found: dict, count: int) -> list[str]:
    """The type of each layer where the configuration does not list them.

    Gemma 2 alternates windowed and full layers, Gemma 3 has a full one in six, Cohere 2 one in
    four (`sliding_window_pattern`, or the default of the `model_type`); Qwen 2 switches its window
    on with `use_sliding_window`, from layer `max_window_layers` on. A window without any of these
    holds for every layer.
    """
    window = found.get("sliding_window")
    if window is None or found.get("use_sliding_window") is False:
        return ["full_attention"] * count
    every = found.get("sliding_window_pattern")
    if every is not None:
        positive(sliding_window_pattern=every)
    first = found.get("max_window_layers", 0) if found.get("use_sliding_window") else 0
    if type(first) is not int or first < 0:
        raise ValueError(f"max_window_layers must be an integer from 0 on, not {first!r}")
    return [
        "full_attention" if i < first or (every and (i + 1) % every == 0) else "sliding_attention"
        for i in range(count)
    ]
