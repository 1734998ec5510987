"""Weights: read from what transformers saves, never from pickle, and refused by name when wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config as HFConfig
from transformers import GPT2LMHeadModel

import kvlib
from kvlib import load, weights

SIZES = dict(n_layer=2, n_head=3, n_embd=24, n_positions=40, vocab_size=61)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(1)
    theirs = GPT2LMHeadModel(HFConfig(**SIZES)).eval()
    theirs.save_pretrained(tmp_path)
    return theirs, tmp_path


def test_a_directory_that_transformers_saved_is_read(saved):
    theirs, folder = saved
    tokens = torch.arange(30)[None]
    with torch.inference_mode():
        for where in (folder, str(folder)):
            assert (load(where)(tokens) - theirs(tokens).logits).abs().max() < 1e-5
    assert load(folder, dtype=torch.float64).wte.weight.dtype == torch.float64
    assert not load(folder).training


def test_the_model_is_a_copy(saved):
    theirs, _ = saved
    ours = kvlib.from_hf(theirs)
    with torch.no_grad():
        ours.wte.weight.zero_()
    assert theirs.transformer.wte.weight.abs().sum() > 0


def test_a_tensor_of_the_wrong_shape_is_named(saved):
    _, folder = saved
    state = load_file(folder / "model.safetensors")
    state["transformer.h.1.mlp.c_fc.weight"] = torch.zeros(24, 95)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="h.1.mlp.c_fc.weight"):
        load(folder)


def test_a_missing_tensor_is_named(saved):
    _, folder = saved
    state = load_file(folder / "model.safetensors")
    del state["transformer.h.1.mlp.c_fc.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="h.1.mlp.c_fc.weight"):
        load(folder)


def test_pickle_is_not_read(saved):
    theirs, folder = saved
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="Three ways"):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [
        dict(activation_function="gelu"),
        dict(n_inner=100),
        dict(layer_norm_epsilon=1e-6),
        dict(scale_attn_weights=False),
        dict(scale_attn_by_inverse_layer_idx=True),
        dict(tie_word_embeddings=False),
    ],
)
def test_what_gpt2_cannot_represent_is_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        kvlib.from_hf(GPT2LMHeadModel(HFConfig(**SIZES, **change)))


def test_an_untied_head_is_refused():
    theirs = GPT2LMHeadModel(HFConfig(**SIZES))
    theirs.lm_head.weight = torch.nn.Parameter(torch.zeros(61, 24))
    with pytest.raises(ValueError, match="lm_head"):
        kvlib.from_hf(theirs)


def test_another_family_is_refused():
    from transformers import LlamaConfig, LlamaForCausalLM

    small = dict(hidden_size=24, intermediate_size=32, num_hidden_layers=1, vocab_size=61)
    llama = LlamaForCausalLM(LlamaConfig(num_attention_heads=3, **small))
    with pytest.raises(ValueError, match="model_type"):
        kvlib.from_hf(llama)


def test_unknown_names_and_weights_are_refused():
    with pytest.raises(ValueError, match="no directory"):
        load("gpt-5")
    with pytest.raises(ValueError, match="pretrained"):
        load("gpt2", weights="best")
    with pytest.raises(ValueError, match="gpt2-xl"):
        load("gpt-5", weights="random")


def test_without_network_the_error_lists_the_ways_to_proceed(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path), raising=False
    )
    with pytest.raises(OSError, match="Three ways"):
        load("gpt2")


def test_the_hub_is_asked_for_safetensors_at_the_pinned_revision(monkeypatch):
    asked = {}

    def from_pretrained(where, **options):
        asked.update(where=where, **options)
        return GPT2LMHeadModel(HFConfig(**SIZES)), dict(mismatched_keys=[], missing_keys=[])

    monkeypatch.setattr(GPT2LMHeadModel, "from_pretrained", from_pretrained)
    load("gpt2")
    assert asked["where"] == "openai-community/gpt2"
    assert asked["revision"] == "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    assert asked["use_safetensors"] is True and asked["trust_remote_code"] is False


def test_nano_is_small_and_its_file_holds_what_its_configuration_says():
    model = load("nano")
    assert model.config == kvlib.GPT2Config.preset("nano")
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert (weights.NANO / "model.safetensors").stat().st_size < 30e6
    assert json.loads((weights.NANO / "config.json").read_text()) == vars(model.config)


def test_a_model_of_another_kind_is_named(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(ValueError, match="'llama'.*decoders.from_hf"):
        load(folder)


def test_the_chapters_model_is_random_or_the_checkpoint_that_is_named(saved, monkeypatch):
    theirs, folder = saved
    monkeypatch.delenv("KVLIB_GPT2", raising=False)
    assert kvlib.full_size(device="meta").config == kvlib.GPT2Config.preset("gpt2")
    monkeypatch.setenv("KVLIB_GPT2", str(folder))
    with pytest.raises(ValueError, match="the chapters count and predict for that of gpt2"):
        kvlib.full_size()
    monkeypatch.setattr(kvlib.GPT2Config, "preset", lambda name: load(folder).config)
    assert torch.equal(kvlib.full_size().wte.weight, theirs.transformer.wte.weight)
