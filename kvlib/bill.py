"""What a model, a context and a batch need in memory, line by line, and what fits. No torch here.

The bill counts what is certain: the weights, the cache, and the second copy that a growing cache
makes of one tensor at a time, at most its largest. Activations, the matrix library's workspace, the
device's own context and the allocator's rounding come on top, so a tenth of the device is left for
them.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import costs, models
from .costs import FORMATS, Format, number_format
from .shapes import positive, read

USABLE = (9, 10)  # the share of a device that weights and cache may take


@dataclass(frozen=True)
class Bill:
    """Bytes of one model at one context and batch, and of the device they go to, if any."""

    model: str
    tokens: int
    batch: int
    dtype: str
    weights_dtype: str
    parameters: int
    weight_bytes: int
    token_bytes: int
    cache_bytes: int
    copy_bytes: int
    positions: int | None
    card: str | None = None
    card_bytes: int | None = None
    most_tokens: int | None = None
    most_batch: int | None = None

    @property
    def total_bytes(self) -> int:
        """Weights and cache; where the cache grows by copying, the peak is `copy_bytes`."""
        return self.weight_bytes + self.cache_bytes

    @property
    def usable_bytes(self) -> int | None:
        """What weights and cache may take of the device; None without one."""
        return None if self.card_bytes is None else self.card_bytes * USABLE[0] // USABLE[1]

    @property
    def fits(self) -> bool | None:
        """True where weights and cache fit the usable part; None without a device."""
        return None if self.usable_bytes is None else self.total_bytes <= self.usable_bytes

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {self.batch:,} x {self.tokens:,} tokens, cache in {self.dtype}",
            line(f"weights ({self.parameters:,} in {self.weights_dtype})", self.weight_bytes),
            line("cache, per token and sequence", self.token_bytes),
            line("cache, all of it", self.cache_bytes),
            line("weights and cache", self.total_bytes),
            line("at the peak, if the cache grows by copying", self.copy_bytes),
        ]
        if self.usable_bytes is not None:
            lines += [
                line(f"{self.card}, of which {USABLE[0]}/{USABLE[1]} is", self.usable_bytes),
                f"  {'fits' if self.fits else 'does not fit'}; {self.room()}",
            ]
        return "\n".join(lines)

    def room(self) -> str:
        """What would fit at most, in words."""
        if not self.most_batch and not self.most_tokens:
            return "not even the weights and one token"
        longest = "any number of" if self.most_tokens is None else f"{self.most_tokens:,}"
        limit = "" if self.positions is None else f" (the model has {self.positions:,} positions)"
        return (
            f"room for {self.batch:,} x {longest} tokens{limit}, "
            f"or {self.most_batch:,} x {self.tokens:,} tokens"
        )


def line(what: str, nbytes: int) -> str:
    """One line of the bill, in bytes and in binary units."""
    return f"  {what:<52}{nbytes:>22,} bytes {in_words(nbytes):>12}"


def in_words(nbytes: int) -> str:
    """`nbytes` in the largest binary unit that leaves at least 1, with two decimals."""
    size, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.2f} {units[0]}" if units[0] != "bytes" else f"{nbytes} bytes"


def stored_bytes(numbers: int, how: Format) -> int:
    """Bytes of `numbers` weights stored as `how`, with the scales of its groups."""
    scales = -(-numbers // how.group) * how.scale_bytes if how.group else 0
    return -(-numbers * how.bits // 8) + scales


def bill(
    model: str,
    tokens: int,
    batch: int = 1,
    dtype: str = "float16",
    card: str | None = None,
    weights_dtype: str | None = None,
    config: Any = None,
    parameters: int | None = None,
) -> Bill:
    """The Bill of a published model, or of any `config` with its count of `parameters`.

    `dtype` is the cache's; the weights have the same, or bfloat16 where that one carries scales.

    Raises ValueError for an unknown model, dtype or device, for sizes that are no positive
    integers, for a config without a count of parameters, and for more tokens than the model has
    positions.
    """
    positive(tokens=tokens, batch=batch)
    if config is None:
        found = models.model(model)
        config = found["config"]
        parameters = found["parameters"] if parameters is None else parameters
    if parameters is None:
        raise ValueError(
            f"no weights to count for {model}; give the number of parameters (--parameters)"
        )
    positive(parameters=parameters)
    shape, numbers = read(config), number_format(dtype)
    if shape.positions is not None and tokens > shape.positions:
        raise ValueError(
            f"{tokens} tokens, and {model} has {shape.positions} positions; ask for fewer tokens"
        )
    weights_dtype = weights_dtype or ("bfloat16" if numbers.scale_bytes else dtype)
    weight_bytes = stored_bytes(parameters, number_format(weights_dtype))
    tensors = costs.cache_bytes_per_tensor(shape, tokens, batch, dtype=dtype)
    cache_bytes = sum(map(sum, tensors))
    device = None if card is None else models.card(card)["bytes"]
    room = None if device is None else device * USABLE[0] // USABLE[1] - weight_bytes
    return Bill(
        model,
        tokens,
        batch,
        dtype,
        weights_dtype,
        parameters,
        weight_bytes,
        costs.cache_bytes_per_token(shape, dtype=dtype),
        cache_bytes,
        cache_bytes + weight_bytes + max(max(layer, default=0) for layer in tensors),
        shape.positions,
        card,
        device,
        None if room is None else costs.most_tokens(shape, room, batch, dtype=dtype),
        None if room is None else max(0, room // (cache_bytes // batch)),
    )


def stored_parameters(folder: Path) -> int | None:
    """Numbers in the safetensors files of `folder`, from their headers; None where it has none.

    Raises ValueError, naming the file, for one that is no such file.
    """
    from safetensors import SafetensorError, safe_open

    found = 0
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as tensors:
                names = tensors.keys()
                found += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
        except SafetensorError as error:
            raise ValueError(f"{path} is no whole safetensors file: {error}") from error
    return found or None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of `folder` that hold each weight once.

    Those that its index names; without one all but a `consolidated` copy, or that copy alone.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = read_object(index).get("weight_map")
        if not isinstance(listed, dict):
            raise ValueError(f"{index} has no weight_map")
        return sorted({folder / str(name) for name in listed.values()})
    every = sorted(folder.glob("*.safetensors"))
    return [path for path in every if not path.name.startswith("consolidated")] or every


def read_object(path: Path) -> dict:
    """The JSON object in the file at `path`; ValueError where it holds anything else or nothing."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{path} holds {str(found)[:40]}; expected an object with a model's sizes")
    return found


def add_arguments(parser) -> None:
    """The options of `python -m kvlib memory`."""
    parser.add_argument(
        "--model",
        default="gpt2",
        help="a published model, a config.json, or a directory that holds one (default: gpt2)",
    )
    parser.add_argument("--parameters", type=int, help="how many, for a config.json")
    parser.add_argument("--tokens", type=int, help="context (default: 1024, or all positions)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default: 1)")
    parser.add_argument("--dtype", default="float32", help=f"the cache's: {', '.join(FORMATS)}")
    parser.add_argument("--weights-dtype", help="the weights' (default: the cache's, or bfloat16)")
    parser.add_argument("--card", help="a device, by name, for what fits")
    parser.add_argument(
        "--record", metavar="FILE", help="instead: record the allocator of a CUDA device, as JSON"
    )
    parser.add_argument("--list", action="store_true", help="list models and devices, and stop")


def main(args) -> int:
    """Print the bill; 0 where it fits or no device is named, 1 where it does not fit."""
    if args.list:
        print("models: " + ", ".join(models.MODELS))
        print("devices: " + ", ".join(models.CARDS))
        return 0
    if args.record:
        from .cuda import record_generation

        Path(args.record).write_text(json.dumps(record_generation()))
        return 0
    path, config, parameters = Path(args.model), None, args.parameters
    if path.is_dir():
        parameters = stored_parameters(path) if parameters is None else parameters
        path = path / "config.json"
    if path.suffix == ".json":
        config = read_object(path)
    tokens = args.tokens
    if tokens is None:
        known = models.model(args.model)["config"] if config is None else config
        positions = read(known).positions
        tokens = min(1024, positions or 1024)
    how = dict(card=args.card, weights_dtype=args.weights_dtype)
    how.update(config=config, parameters=parameters)
    made = bill(args.model, tokens, args.batch, args.dtype, **how)
    print(made)
    return 1 if made.fits is False else 0
