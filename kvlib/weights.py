"""Weights for the model: random, shipped here, from a directory, or from the Hugging Face hub."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .config import PRESETS, GPT2Config
from .model import GPT2

NANO = Path(__file__).parent / "data" / "nano"
REVISIONS = {
    "gpt2": ("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
}
WAYS = (
    "Three ways to proceed: load(name, weights='random') needs no file; "
    "load('/path/to/a/save_pretrained/directory') reads one of yours; "
    "with a network, the hub's copy is fetched once and kept."
)


def load(
    name_or_dir: str | Path,
    *,
    weights: str = "pretrained",
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> GPT2:
    """A GPT2 in eval mode, by name or from a directory that `save_pretrained` wrote.

    `weights="random"`: GPT-2's own initialisation of the named preset, from `seed`, the same
    whatever the number of threads; no file is read. `weights="pretrained"`: "nano" is shipped with
    this package; "gpt2" is read from the hub at a pinned revision; a directory is read as it is.
    Only safetensors are read, and no code that comes with a model is run.

    Raises ValueError for an unknown name, a model that GPT2 cannot represent, or a tensor of the
    wrong shape; OSError, with the ways to proceed, where the files are not to be had.
    """
    if weights not in ("pretrained", "random"):
        raise ValueError(f"weights must be 'pretrained' or 'random', not {weights!r}")
    if weights == "random":
        with torch.device("meta"):
            model = GPT2(GPT2Config.preset(str(name_or_dir)))
        model = model.to_empty(device="cpu")
        model.initialise(seed)
    elif name_or_dir == "nano":
        model = load_folder(NANO)
    elif trained_here(Path(name_or_dir)):
        model = load_folder(Path(name_or_dir))
    else:
        model = load_transformers(name_or_dir)
    return model.to(device=device, dtype=dtype).eval()


def full_size(**how) -> GPT2:
    """GPT-2 at full size, as the chapters measure it: seeded random weights, or a checkpoint's.

    The environment variable KVLIB_GPT2 names the checkpoint, a directory or "gpt2" for the hub's.
    `how` goes to `load`. Raises ValueError where the checkpoint is not of the shape of "gpt2".
    """
    named = os.environ.get("KVLIB_GPT2")
    model = load(named, **how) if named else load("gpt2", weights="random", **how)
    if model.config != GPT2Config.preset("gpt2"):
        raise ValueError(
            f"KVLIB_GPT2 names {named!r}, whose shape is {model.config}; the chapters count and "
            "predict for that of gpt2: name a checkpoint of that shape, or unset the variable"
        )
    return model


def trained_here(folder: Path) -> bool:
    """True where `folder` holds a model in our own form, not in that of transformers."""
    config = folder / "config.json"
    return config.is_file() and "model_type" not in json.loads(config.read_text())


def load_folder(folder: Path) -> GPT2:
    """A model that `python -m kvlib train` wrote: float16 on disk, float32 in memory."""
    from safetensors.torch import load_file

    config = GPT2Config(**json.loads((folder / "config.json").read_text()))
    state = load_file(folder / "model.safetensors")
    return with_state(config, {name: tensor.float() for name, tensor in state.items()})


def load_transformers(name_or_dir: str | Path) -> GPT2:
    """The model that `transformers` reads from a directory or, pinned, from the hub."""
    if Path(name_or_dir).is_dir():
        where, revision = str(name_or_dir), None
        config = Path(name_or_dir, "config.json")
        kind = json.loads(config.read_text()).get("model_type") if config.is_file() else "gpt2"
        if kind != "gpt2":
            raise ValueError(
                f"{name_or_dir} holds a model of type {kind!r}, and GPT2 is 'gpt2' alone; load it "
                "with transformers and give it to decoders.from_hf, which parity and timing take"
            )
    elif name_or_dir in REVISIONS:
        where, revision = REVISIONS[str(name_or_dir)]
    else:
        raise ValueError(
            f"{str(name_or_dir)!r} is no directory and no name with a pinned revision "
            f"({', '.join(['nano', *REVISIONS])}); with weights='random', "
            f"any of {', '.join(PRESETS)}"
        )
    from transformers import GPT2LMHeadModel

    try:
        hf_model, info = GPT2LMHeadModel.from_pretrained(
            where,
            revision=revision,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused below
            output_loading_info=True,
        )
    except OSError as error:
        raise OSError(f"cannot read {name_or_dir}: {error}\n{WAYS}") from error
    wrong = [f"{name} has another shape: {shapes}" for name, *shapes in info["mismatched_keys"]]
    wrong += [f"{name} is missing" for name in info["missing_keys"]]
    if wrong:  # transformers would have filled them with random numbers
        raise ValueError(f"{name_or_dir} does not fit its own configuration: {'; '.join(wrong)}")
    return from_hf(hf_model)


def from_hf(hf_model: nn.Module) -> GPT2:
    """A GPT2 with copies of the weights of a Hugging Face `GPT2LMHeadModel`, in eval mode.

    Raises ValueError, by name, for what GPT2 cannot represent: another activation, inner width,
    norm epsilon or attention scaling, an untied head; and for a tensor of another shape.
    """
    check_representable(hf_model.config)
    theirs: Any = hf_model.config
    config = GPT2Config(
        theirs.n_positions, theirs.vocab_size, theirs.n_layer, theirs.n_head, theirs.n_embd
    )
    state = hf_model.state_dict()
    head = state.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, state["transformer.wte.weight"]):
        raise ValueError("lm_head.weight differs from wte.weight; GPT2 ties them (untied head)")
    ours = {}
    for name, tensor in state.items():
        matrix = ".h." in name and tensor.dim() == 2  # theirs are (in, out), ours (out, in)
        ours[name.removeprefix("transformer.")] = (tensor.t() if matrix else tensor).clone(
            memory_format=torch.contiguous_format
        )
    return with_state(config, ours)


def check_representable(theirs) -> None:
    """Raise ValueError, by name, where a Hugging Face configuration asks for what GPT2 lacks."""
    required = dict(
        model_type=("gpt2",),
        activation_function=("gelu_new", "gelu_pytorch_tanh"),
        n_inner=(None, 4 * theirs.n_embd) if hasattr(theirs, "n_embd") else (None,),
        layer_norm_epsilon=(1e-5,),
        scale_attn_weights=(True,),
        scale_attn_by_inverse_layer_idx=(False,),
        add_cross_attention=(False,),
        tie_word_embeddings=(True,),
    )
    for name, allowed in required.items():
        value = getattr(theirs, name, None)
        if value not in allowed:
            raise ValueError(f"{name}={value!r}: GPT2 can only represent {allowed[-1]!r}")


def with_state(config: GPT2Config, state: dict) -> GPT2:
    """A GPT2 that holds the tensors of `state`; ValueError names a missing or misshapen one."""
    with torch.device("meta"):
        model = GPT2(config)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in expected.keys() | found.keys():
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"{name} has shape {found.get(name, 'none (missing)')} "
                f"where {config} expects {expected.get(name, 'no such tensor')}"
            )
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True).eval()
