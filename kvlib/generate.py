"""Text, one token at a time: greedy or sampled, with any cache or none."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .caches import Cache, GrowingCache, StaticCache
from .model import GPT2, check_ids, check_tokens
from .step import Step

LIMITS = ("raise", "stop", "reprefill")


def new_cache(model: GPT2, kind: str | None, batch: int, capacity: int) -> Cache | None:
    """An empty cache for `model`: "static" of `capacity` rows, "growing", or None for none."""
    weight = model.wte.weight
    if kind is None:
        return None
    if kind == "static":
        return StaticCache(model.config, batch, capacity, device=weight.device, dtype=weight.dtype)
    if kind == "growing":
        return GrowingCache(model.config, batch, device=weight.device, dtype=weight.dtype)
    raise ValueError(f"no cache {kind!r}; choose 'static', 'growing' or None")


def pick(logits: Tensor, temperature: float, top_k: int | None, random) -> Tensor:
    """Next token (B,) from logits (B, V): the largest at temperature 0, else a sample."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None:
        kept, ids = logits.topk(min(top_k, logits.shape[-1]))
        chosen = torch.multinomial((kept / temperature).softmax(-1), 1, generator=random)
        return ids.gather(-1, chosen)[:, 0]
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=random)[:, 0]


def check_request(
    model: GPT2, tokens: Tensor, max_new_tokens: int, temperature, top_k, on_limit: str
) -> None:
    """Raise ValueError or IndexError, before the first step, for a request that cannot be met."""
    check_tokens(model.config, tokens, None, None)
    check_ids(tokens, model.config.vocab_size)
    if type(max_new_tokens) is not int or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be an integer from 0 on, not {max_new_tokens!r}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be a finite number from 0 on, not {temperature!r}")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ValueError(f"top_k must be a positive integer or None, not {top_k!r}")
    if on_limit not in LIMITS:
        raise ValueError(f"on_limit must be one of {LIMITS}, not {on_limit!r}")
    room = model.config.block_size + 1 - tokens.shape[1]  # the last token is chosen, never read
    if on_limit == "raise" and max_new_tokens > room:
        raise IndexError(
            f"{tokens.shape[1]} prompt + {max_new_tokens} new tokens need more positions than the "
            f"model's {model.config.block_size}: at most {room} new tokens fit; "
            "ask for fewer, or pass on_limit='stop' or 'reprefill'"
        )


def stream(
    model: GPT2,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    cache: str | None = "static",
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | None = None,
    on_limit: str = "raise",
) -> Iterator[Tensor]:
    """Each next token (B,) as soon as it is chosen; the arguments are `generate`'s.

    The request is checked here, before the first token is asked for.
    """
    check_request(model, tokens, max_new_tokens, temperature, top_k, on_limit)
    random = None if seed is None else torch.Generator(tokens.device).manual_seed(seed)
    rows = min(tokens.shape[1] + max_new_tokens, model.config.block_size)
    store = new_cache(model, cache, tokens.shape[0], rows)
    return steps(model, tokens, max_new_tokens, store, (temperature, top_k, random), on_limit)


def steps(
    model: GPT2, tokens: Tensor, count: int, store: Cache | None, how: tuple, on_limit: str
) -> Iterator[Tensor]:
    """`count` next tokens (B,): prefill with the prompt, then decode one token at a time."""
    block = model.config.block_size
    step = Step(model)
    context = new = tokens  # context: all tokens the model sees; new: those not yet in the cache
    for _ in range(count):
        if context.shape[1] > block:
            if on_limit == "stop":
                return
            context = new = context[:, -max(1, block // 2) :]
            if store is not None:
                store.reset()
        with torch.inference_mode():
            logits = step(context if store is None else new, store)
            new = pick(logits[:, -1], *how)[:, None]
        context = torch.cat([context, new], dim=1)
        yield new[:, 0].clone()


def generate(
    model: GPT2,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    cache: str | None = "static",
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | None = None,
    on_limit: str = "raise",
) -> Tensor:
    """Prompt and continuation, int64 (B, T + max_new_tokens); fewer columns with on_limit="stop".

    `tokens` (B, T) is the prompt. `temperature` 0 takes the most likely token; above 0 it samples,
    from the `top_k` most likely if given, repeatably if `seed` is given.

    The model has `block_size` positions. `on_limit` says what a request past them does: "raise"
    refuses it before the first step, "stop" ends there, "reprefill" keeps the last
    `block_size // 2` tokens and starts a new cache with them.

    Raises ValueError or IndexError, before the first step, for anything it cannot do as asked.
    """
    new = stream(
        model,
        tokens,
        max_new_tokens,
        cache=cache,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        on_limit=on_limit,
    )
    return torch.cat([tokens, *(token[:, None] for token in new)], dim=1)


def add_arguments(parser) -> None:
    """The options of `python -m kvlib generate`."""
    parser.add_argument("prompt", help="text to continue")
    parser.add_argument(
        "--model", default="nano", help="nano, gpt2, or a directory (default: nano)"
    )
    parser.add_argument("--weights", choices=["pretrained", "random"], default="pretrained")
    parser.add_argument("--new", type=int, default=100, metavar="N", help="tokens (default: 100)")
    parser.add_argument("--cache", choices=["static", "growing", "none"], default="static")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-k", type=int, help="sample among the k most likely")
    parser.add_argument("--seed", type=int, help="repeat the same sample")
    parser.add_argument("--on-limit", choices=LIMITS, default="raise")
    parser.add_argument("--device", default="cpu")


def main(args) -> int:
    """Print the prompt and its continuation, each token as soon as it is chosen."""
    import codecs

    from .tokenizer import tokenizer
    from .weights import load

    ids = tokenizer().encode_ordinary(args.prompt)
    model = load(args.model, weights=args.weights, device=args.device)
    tokens = torch.tensor([ids], dtype=torch.int64, device=args.device)
    how = dict(temperature=args.temperature, top_k=args.top_k, seed=args.seed)
    how.update(cache=None if args.cache == "none" else args.cache, on_limit=args.on_limit)
    text = codecs.getincrementaldecoder("utf-8")("replace")  # a token may end inside a letter
    print(args.prompt, end="", flush=True)
    for token in stream(model, tokens, args.new, **how):
        piece = tokenizer().decode_single_token_bytes(int(token))
        print(text.decode(piece), end="", flush=True)
    print(text.decode(b"", final=True))
    return 0
