"""Every decoder gives the logits of one uncached pass, whatever model and cache are behind it."""

import subprocess
import sys

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import kvlib
from kvlib import decoders, parity
from kvlib.lab import Lab

VOCAB, BLOCK = 97, 32
SMALL = dict(vocab_size=VOCAB, bos_token_id=None, eos_token_id=None)


def ours():
    return kvlib.GPT2(kvlib.GPT2Config(BLOCK, VOCAB, 2, 4, 32)).eval()


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_positions=BLOCK, n_layer=2, n_head=4, n_embd=32, **SMALL))


def llama():
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=BLOCK)
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, pad_token_id=0, **SMALL))


def opt():
    sizes = dict(hidden_size=32, ffn_dim=64, num_hidden_layers=2, word_embed_proj_dim=32)
    heads = dict(num_attention_heads=4, max_position_embeddings=BLOCK, pad_token_id=1)
    return OPTForCausalLM(OPTConfig(**sizes, **heads, **SMALL))


def gptj():
    sizes = dict(n_positions=BLOCK, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
    return GPTJForCausalLM(GPTJConfig(**sizes, **SMALL))


def mistral(window, length=BLOCK):
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, sliding_window=window)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=length)
    return MistralForCausalLM(MistralConfig(**sizes, **heads, pad_token_id=0, **SMALL))


def t5():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=VOCAB, d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8)
    )


def mamba():
    sizes = dict(hidden_size=32, num_hidden_layers=1, state_size=4, pad_token_id=0)
    return MambaForCausalLM(MambaConfig(**sizes, **SMALL))


KINDS = {
    "kvlib static": lambda: decoders.from_kvlib(ours()),
    "kvlib growing": lambda: decoders.from_kvlib(ours(), "growing"),
    "kvlib none": lambda: decoders.from_kvlib(ours(), None),
    "gpt2 dynamic": lambda: decoders.from_hf(gpt2()),
    "gpt2 static": lambda: decoders.from_hf(gpt2(), "static"),
    "llama dynamic": lambda: decoders.from_hf(llama()),
    "llama static": lambda: decoders.from_hf(llama(), "static"),
    "opt dynamic": lambda: decoders.from_hf(opt()),
    "opt static": lambda: decoders.from_hf(opt(), "static"),
}


@pytest.fixture(params=KINDS)
def decoder(request):
    torch.manual_seed(0)
    return KINDS[request.param]()


def tokens(rows, length, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (rows, length), generator=random)


def feed(decoder, ids, sizes, state, **first):
    found = []
    for piece in ids.split(sizes, dim=1):
        logits, state = decoder.step(piece, state, **first)
        found.append(logits)
        first = {}
    return torch.cat(found, dim=1), state


def test_chunks_give_the_logits_of_one_pass_without_a_cache(decoder):
    ids = tokens(3, 12)
    found, _ = feed(decoder, ids, [5, 1, 2, 4], decoder.start(3, 12))
    assert found.shape == (3, 12, decoder.vocab_size)
    assert (found - decoder.full(ids)).abs().max() < 1e-5


def test_padded_rows_give_the_logits_of_each_row_alone(decoder):
    ids, padding = tokens(3, 12), torch.tensor([3, 0, 5])
    found, _ = feed(decoder, ids, [6, 1, 5], decoder.start(3, 12), padding=padding)
    for row, pad in enumerate(padding.tolist()):
        alone = decoder.full(ids[row : row + 1, pad:])[0]
        assert (found[row, pad:] - alone).abs().max() < 1e-5


def test_truncate_and_continue_is_never_having_gone_further(decoder):
    ids = tokens(2, 12)
    _, state = feed(decoder, ids, [9, 3], decoder.start(2, 12))
    for keep in (7, 0):
        state = decoder.truncate(state, keep)
        other = tokens(2, 5, seed=1)
        found, state = decoder.step(other, state)
        right = decoder.full(torch.cat([ids[:, :keep], other], dim=1))[:, keep:]
        assert (found - right).abs().max() < 1e-5


@pytest.mark.parametrize("length", [-1, 5, 2.0])
def test_truncate_refuses_what_is_not_stored(decoder, length):
    _, state = decoder.step(tokens(1, 4), decoder.start(1, 8))
    with pytest.raises(ValueError, match="cannot keep"):
        decoder.truncate(state, length)


def test_the_float64_copy_leaves_the_original_as_it_was(decoder):
    twin = decoder.to_float64()
    assert twin.full(tokens(1, 4)).dtype == torch.float64
    assert decoder.full(tokens(1, 4)).dtype == torch.float32
    assert type(twin) is type(decoder) and twin.model is not decoder.model


@pytest.mark.parametrize(
    ("make", "block"), [(ours, BLOCK), (gpt2, BLOCK), (opt, BLOCK), (gptj, BLOCK)]
)
def test_a_table_of_positions_is_a_limit(make, block):
    model = make()
    from_model = decoders.from_kvlib if make is ours else decoders.from_hf
    assert from_model(model).block_size == block
    with pytest.raises(IndexError):
        from_model(model).full(tokens(1, block + 3))


def test_rotary_positions_have_no_limit():
    decoder = decoders.from_hf(llama())
    assert decoder.block_size is None
    assert decoder.full(tokens(1, BLOCK + 1)).isfinite().all()


@pytest.mark.parametrize(("make", "what"), [(t5, "encoder-decoder"), (mamba, "recurrent state")])
def test_a_model_that_is_no_decoder_with_keys_and_values_is_refused_by_name(make, what):
    model = make()
    with pytest.raises(ValueError, match=rf"{type(model).__name__}.*{what}"):
        decoders.from_hf(model)


def test_a_window_that_cannot_be_rolled_back_is_a_power_that_is_lacking():
    torch.manual_seed(0)
    report = parity.check(decoders.from_hf(mistral(window=8)))
    assert report.ok, report
    assert report["truncate and continue"].verdict == "not applicable"
    assert report["left padding"].verdict == "pass"


@pytest.mark.parametrize(("length", "tested"), [(32, 32), (5000, 1024)])
def test_rotary_models_are_tested_to_the_length_they_were_made_for(length, tested):
    decoder = decoders.from_hf(mistral(window=2048, length=length))
    assert decoder.block_size is None and Lab(decoder).limit == tested
    report = parity.check(decoder, checks=["past the last position"])
    assert f"tested to {tested} tokens, within its window of 2048" in report.summary()


def test_a_function_gets_its_tokens_where_it_wants_them():
    decoder = decoders.from_past(lambda ids, past: None, vocab_size=VOCAB, device="meta")
    assert decoder.device.type == "meta" and Lab(decoder).draw(1, 3, 0).is_meta


def test_the_peer_is_hugging_face_over_the_same_memory():
    decoder = decoders.from_kvlib(ours())
    peer = decoder.peer()
    assert peer.model.lm_head.weight.data_ptr() == decoder.model.wte.weight.data_ptr()
    assert (peer.full(tokens(2, 9)) - decoder.full(tokens(2, 9))).abs().max() < 1e-6


def test_a_function_of_tokens_and_past_is_a_decoder():
    def fn(ids, past):
        count = 0 if past is None else past
        return torch.zeros(*ids.shape, VOCAB) + count, count + ids.shape[1]

    decoder = decoders.from_past(fn, vocab_size=VOCAB)
    logits, state = decoder.step(tokens(1, 3), decoder.start(1, 8))
    logits, state = decoder.step(tokens(1, 1), state)
    assert state == 4 and logits[0, 0, 0] == 3 and decoder.block_size is None


@pytest.mark.parametrize("make", [decoders.from_kvlib, decoders.from_hf])
def test_an_unknown_cache_is_refused_when_the_decoder_is_made(make):
    with pytest.raises(ValueError, match="choose"):
        make(ours(), "elastic")


def test_nothing_is_printed_and_no_warning_shown():
    """transformers warns of deprecated arguments and of ids that pad: neither reaches a reader."""
    program = (
        "import warnings; warnings.simplefilter('error')\n"
        "import torch; from transformers import LlamaConfig, LlamaForCausalLM\n"
        "from kvlib import decoders\n"
        "config = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=64,"
        " num_hidden_layers=1, num_attention_heads=2, pad_token_id=0)\n"
        "decoder = decoders.from_hf(LlamaForCausalLM(config))\n"
        "decoder.full(torch.zeros(1, 4, dtype=torch.int64))\n"
        "decoder.step(torch.zeros(1, 4, dtype=torch.int64), decoder.start(1, 4))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
