"""Cache sizes of any configuration equal the tensors that Hugging Face's own cache then holds."""

import subprocess
import sys

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from kvlib import GPT2Config, __main__, bill, costs, models, shapes
from kvlib.costs import FORMATS, Format

TINY = dict(
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=32,
    vocab_size=64,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=0,
)
GROUPED = dict(num_key_value_heads=2)
GPT2_LIKE = dict(n_embd=32, n_layer=3, n_head=4, vocab_size=64, bos_token_id=0, eos_token_id=1)
LATENT = dict(
    kv_lora_rank=8, q_lora_rank=None, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6
)
EXPERTS = dict(n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1)
FAMILIES = {
    "GPT2": GPT2_LIKE,
    "GPTBigCode": GPT2_LIKE | dict(multi_query=True),
    "GPTJ": GPT2_LIKE | dict(rotary_dim=4),
    "GPTNeoX": TINY,
    "Llama": TINY | GROUPED,
    "Mixtral": TINY | GROUPED | dict(num_local_experts=2),
    "Qwen2": TINY | GROUPED,
    "Qwen3": TINY | GROUPED | dict(head_dim=16),
    "Phi3": TINY | GROUPED,
    "StableLm": TINY | GROUPED,
    "Olmo": TINY | GROUPED,
    "Falcon": TINY | dict(multi_query=True, new_decoder_architecture=False),
    "Falcon, grouped": TINY | dict(num_kv_heads=2, new_decoder_architecture=True),
    "OPT": TINY | dict(ffn_dim=32, word_embed_proj_dim=32),
    "Bloom": dict(hidden_size=32, n_layer=3, n_head=4, vocab_size=64),
    "Mpt": dict(d_model=32, n_layers=3, n_heads=4, vocab_size=64),
    "Mistral": TINY | GROUPED | dict(sliding_window=6),
    "Gemma2": TINY | GROUPED | dict(sliding_window=6, head_dim=16),
    "Gemma3Text": TINY | GROUPED | dict(sliding_window=6, head_dim=16),
    "GptOss": TINY
    | GROUPED
    | dict(sliding_window=6, head_dim=8, num_local_experts=2, num_experts_per_tok=2),
    "DeepseekV3": TINY | LATENT | EXPERTS | dict(num_key_value_heads=4),
    "LongcatFlash": dict(
        vocab_size=64,
        hidden_size=32,
        num_layers=2,
        num_attention_heads=4,
        ffn_hidden_size=32,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        head_dim=4,
        v_head_dim=6,
        expert_ffn_hidden_size=16,
        moe_topk=2,
        n_routed_experts=4,
        zero_expert_num=2,
    ),
}


def built(family: str):
    """The configuration of one entry of FAMILIES."""
    return getattr(transformers, family.split(",")[0] + "Config")(**FAMILIES[family])


def held(config, tokens: int, batch: int) -> int:
    """Bytes in the cache of a random Hugging Face model that has read `tokens` one at a time."""
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    cache = transformers.DynamicCache(config=config)
    with torch.inference_mode():
        for _ in range(tokens):
            model(torch.zeros(batch, 1, dtype=torch.int64), cache=cache, use_cache=True)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_formula_equals_what_hugging_face_holds(family):
    config = built(family)
    shape = shapes.read(config)
    # a window of W keys includes the newest, so transformers keeps W - 1 between two steps
    kept = [
        shapes.Layer(layer.vectors, layer.window and layer.window - 1) for layer in shape.layers
    ]
    shape = shapes.Shape(tuple(kept), shape.heads, shape.kv_heads, shape.positions)
    for tokens, batch in [(3, 2), (9, 1)]:
        assert held(config, tokens, batch) == costs.cache_bytes(shape, tokens, batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_object_and_dict_read_the_same(family):
    config = built(family)
    assert shapes.read(config) == shapes.read(config.to_dict())


def test_multimodal_configuration_is_read_by_its_text_part():
    text = dict(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    assert shapes.read(dict(text_config=text, hidden_size=999)) == shapes.read(text)


GEMMA_3_4B = dict(  # what the published file says of the text model, and no more
    hidden_size=2560,
    intermediate_size=10240,
    model_type="gemma3_text",
    num_hidden_layers=34,
    rope_scaling=dict(factor=8.0, rope_type="linear"),
    sliding_window=1024,
)
GEMMA_3_27B = dict(
    head_dim=128,
    hidden_size=5376,
    intermediate_size=21504,
    model_type="gemma3_text",
    num_attention_heads=32,
    num_hidden_layers=62,
    num_key_value_heads=16,
    sliding_window=1024,
)


@pytest.mark.parametrize("text", [GEMMA_3_4B, GEMMA_3_27B])
def test_a_published_gemma_3_file_is_read_with_the_defaults_of_its_type(text):
    raw = dict(model_type="gemma3", text_config=text)
    theirs = transformers.Gemma3Config(text_config=dict(text))
    assert shapes.read(raw) == shapes.read(theirs) == shapes.read(text)
    full = [layer.window for layer in shapes.read(raw).layers].count(None)
    assert full == text["num_hidden_layers"] // 6
    del (unnamed := dict(text))["model_type"]
    assert shapes.read(dict(model_type="gemma3", text_config=unnamed)) == shapes.read(text)


def test_the_published_gemma_3_file_and_the_table_agree():
    table = models.model("Gemma-3-27B")["config"]
    assert costs.cache_bytes(GEMMA_3_27B, 8192, 1, 2) == costs.cache_bytes(table, 8192, 1, 2)


RECURRENT = ["Mamba", "Mamba2", "FalconMamba", "Rwkv", "xLSTM", "RecurrentGemma", "KimiLinear"]


@pytest.mark.parametrize("family", RECURRENT)
def test_a_recurrent_state_is_refused_by_name(family):
    config = getattr(transformers, family + "Config")()
    for form in (config, config.to_dict()):
        with pytest.raises(ValueError, match="recurrent state|linear_attention"):
            shapes.read(form)


def test_latent_cache_stores_one_vector_for_all_heads():
    config = models.model("DeepSeek-V3")["config"]
    assert costs.cache_bytes_per_token(config, 2) == 61 * (512 + 64) * 2
    assert costs.cache_bytes_per_token(shapes.read(config, expanded=True), 2) == (
        61 * 128 * (192 + 128) * 2
    )


def test_patterns_of_windows():
    base = dict(num_hidden_layers=6, hidden_size=8, num_attention_heads=2, sliding_window=5)

    def windows(**more):
        return [layer.window for layer in shapes.read(base | more).layers]

    assert windows() == [5] * 6
    assert windows(model_type="gemma2") == [5, None] * 3
    assert windows(sliding_window_pattern=3) == [5, 5, None] * 2
    assert windows(model_type="cohere2", num_hidden_layers=8) == [5, 5, 5, None] * 2
    assert windows(use_sliding_window=False) == [None] * 6
    assert windows(use_sliding_window=True, max_window_layers=4) == [None] * 4 + [5, 5]
    assert windows(layer_types=["full_attention"] * 6) == [None] * 6
    chunked = dict(layer_types=["chunked_attention"] * 6, attention_chunk_size=7)
    assert windows(**chunked) == [7] * 6


def test_layers_that_share_a_cache_store_nothing():
    config = dict(num_hidden_layers=4, hidden_size=8, num_attention_heads=2)
    shared = costs.cache_bytes_per_layer(config | dict(num_kv_shared_layers=3), 10)
    assert shared == (10 * 2 * 8 * 4, 0, 0, 0)


def test_formats_with_scales():
    gpt2 = GPT2Config()
    vectors = 2 * 12 * 12  # keys and values, layers, heads: 64 numbers each
    assert costs.cache_bytes_per_token(gpt2, dtype="q8_0") == vectors * 2 * 34
    assert costs.cache_bytes_per_token(gpt2, dtype="q4_0") == vectors * 2 * 18
    assert costs.cache_bytes_per_token(gpt2, dtype="int8") == vectors * (64 + 4)
    assert costs.cache_bytes_per_token(gpt2, dtype="int4") == vectors * (32 + 2 * 4)
    assert costs.cache_bytes_per_token(gpt2, dtype=torch.bfloat16) == 36_864
    assert costs.cache_bytes_per_token(gpt2, dtype=Format(3)) == vectors * 24
    for name, numbers in FORMATS.items():
        size = costs.cache_bytes(gpt2, 7, 3, dtype=name)
        assert size == 21 * vectors * numbers.vector_bytes(64)


WINDOWED = dict(
    num_hidden_layers=3,
    hidden_size=8,
    num_attention_heads=2,
    sliding_window=10,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)


@given(budget=st.integers(-5, 20_000), batch=st.integers(1, 4), full=st.booleans())
def test_most_tokens_is_the_last_that_fits(budget, batch, full):
    config = WINDOWED if full else WINDOWED | dict(layer_types=["sliding_attention"] * 3)
    most = costs.most_tokens(config, budget, batch)
    if most is None:
        assert costs.cache_bytes(config, 10**9, batch) <= budget
        return
    assert most == 0 or costs.cache_bytes(config, most, batch) <= budget
    assert costs.cache_bytes(config, most + 1, batch) > budget


def test_published_models_are_consistent():
    for name, found in models.MODELS.items():
        shape = shapes.read(found["config"])
        per_layer = costs.cache_bytes_per_layer(shape, 1000, 2, 2)
        assert sum(per_layer) == costs.cache_bytes(shape, 1000, 2, 2), name
        assert shape.positions and found["source"] and found["parameters"] > 10**6, name


COUNTED = {  # sizes of the published models that decide the parameters and not the cache
    "SmolLM2-135M": ("Llama", dict(intermediate_size=1536, vocab_size=49152)),
    "Qwen2.5-0.5B": ("Qwen2", dict(intermediate_size=4864, vocab_size=151936)),
    "Llama-3.2-1B": ("Llama", dict(intermediate_size=8192, vocab_size=128256)),
    "Llama-2-7B": ("Llama", dict(intermediate_size=11008, vocab_size=32000)),
    "Llama-3.1-8B": ("Llama", dict(intermediate_size=14336, vocab_size=128256)),
    "Llama-3.1-70B": ("Llama", dict(intermediate_size=28672, vocab_size=128256)),
    "CodeLlama-34B": ("Llama", dict(intermediate_size=22016, vocab_size=32000)),
    "Mistral-7B-v0.1": ("Mistral", dict(intermediate_size=14336, vocab_size=32000)),
    "Mixtral-8x7B": ("Mixtral", dict(intermediate_size=14336, vocab_size=32000)),
    "Qwen3-8B": ("Qwen3", dict(intermediate_size=12288, vocab_size=151936)),
    "Gemma-2-9B": ("Gemma2", dict(intermediate_size=14336, vocab_size=256000)),
    "Gemma-3-27B": ("Gemma3Text", dict(intermediate_size=21504, vocab_size=262208)),
    "Falcon-7B": ("Falcon", dict(vocab_size=65024)),
    "StarCoder": (
        "GPTBigCode",
        dict(n_inner=24576, vocab_size=49152, bos_token_id=0, eos_token_id=0),
    ),
    "gpt-oss-20b": ("GptOss", dict(num_local_experts=32)),
    "DeepSeek-V3": ("DeepseekV3", dict()),
}
TIED = ("SmolLM2-135M", "Qwen2.5-0.5B", "Llama-3.2-1B")


@pytest.mark.parametrize("name", COUNTED)
def test_parameter_counts_of_published_models(name):
    family, more = COUNTED[name]
    if name in TIED:
        more = more | dict(tie_word_embeddings=True)
    config = getattr(transformers, family + "Config")(**models.model(name)["config"] | more)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == models.model(name)["parameters"]


def test_bill_adds_up():
    made = bill.bill("gpt2", 1024, 1, "float32", "A40 48GB")
    assert (made.weight_bytes, made.cache_bytes) == (497_759_232, 75_497_472)
    assert made.copy_bytes == made.total_bytes + 1024 * 3072
    assert made.fits and made.usable_bytes == 43_200_000_000
    assert costs.cache_bytes(GPT2Config(), 1024, made.most_batch) <= 43_200_000_000 - 497_759_232
    assert not bill.bill("Llama-3.1-70B", 10, 1, "bfloat16", "phone 8GB").fits
    assert bill.bill("Llama-3.1-8B", 10, 1, "q4_0", None, "q4_0").weight_bytes == (
        8_030_261_248 // 32 * 18
    )


def test_a_growing_cache_copies_one_tensor_at_a_time():
    made = bill.bill("DeepSeek-V3", 1024, 1, "bfloat16")  # the latents are the larger tensor
    assert made.copy_bytes - made.total_bytes == 1_048_576 == 1024 * 512 * 2
    per_tensor = costs.cache_bytes_per_tensor(models.model("DeepSeek-V3")["config"], 3, 2, 2)
    assert per_tensor == ((3 * 2 * 512 * 2, 3 * 2 * 64 * 2),) * 61


def test_command_line(capsys, tmp_path):
    assert __main__.main(["memory", "--card", "a40 48gb"]) == 0
    out = capsys.readouterr().out
    assert "73,728" in out and "75,497,472" in out and "fits" in out
    assert __main__.main(["memory", "--model", "Llama-3.1-70B", "--card", "phone 8GB"]) == 1
    assert __main__.main(["memory", "--list"]) == 0
    file = tmp_path / "config.json"
    file.write_text('{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 2000}')
    assert __main__.main(["memory", "--model", str(file), "--parameters", "100"]) == 0
    assert f"{2 * 2 * 8 * 4:,} bytes" in capsys.readouterr().out


def test_no_torch_is_needed():
    code = (
        "import sys; from kvlib import bill, costs, models, shapes, allocator\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


GOOD = dict(num_hidden_layers=2, hidden_size=8, num_attention_heads=4)
IMPOSSIBLE = [
    (dict(num_hidden_layers=0), "0"),
    (dict(num_hidden_layers=-3), "-3"),
    (dict(num_hidden_layers=2.0), "2.0"),
    (dict(num_hidden_layers="2"), "'2'"),
    (dict(num_hidden_layers=True), "True"),
    (dict(num_attention_heads=0), "0"),
    (dict(num_attention_heads=3), "multiple of 3"),
    (dict(num_attention_heads=None), "num_attention_heads"),
    (dict(hidden_size=None), "hidden_size"),
    (dict(hidden_size=-8), "-8"),
    (dict(hidden_size=float("nan")), "nan"),
    (dict(num_key_value_heads=8), "8 key-value heads for 4"),
    (dict(num_key_value_heads=3), "divisor of 4"),
    (dict(num_key_value_heads=0), "0"),
    (dict(num_key_value_heads=-1), "-1"),
    (dict(head_dim=0), "head_dim"),
    (dict(head_dim=1.5), "1.5"),
    (dict(v_head_dim=-2), "-2"),
    (dict(kv_lora_rank=8), "qk_rope_head_dim"),
    (dict(kv_lora_rank=0, qk_rope_head_dim=4), "0"),
    (dict(sliding_window=0), "sliding_window"),
    (dict(sliding_window=-4), "-4"),
    (dict(layer_types=["full_attention"]), "2 layers"),
    (dict(layer_types=["full_attention", "linear_attention"]), "linear_attention"),
    (dict(layer_types=["full_attention", "sliding_attention"]), "sliding_window"),
    (dict(layer_types=7), "7"),
    (dict(layer_types=[["full_attention"], []]), "full_attention"),
    (dict(sliding_window=4, sliding_window_pattern="LLLG"), "LLLG"),
    (dict(sliding_window=4, sliding_window_pattern=-1), "-1"),
    (dict(sliding_window=4, use_sliding_window=True, max_window_layers=None), "None"),
    (dict(sliding_window=4, use_sliding_window=True, max_window_layers=-2), "-2"),
    (dict(model_type="rwkv"), "rwkv"),
    (dict(state_size=128), "state_size"),
    (dict(num_kv_shared_layers=2), "2"),
    (dict(num_kv_shared_layers=-1), "-1"),
    (dict(is_encoder_decoder=True), "is_encoder_decoder"),
    (dict(mamba_d_state=16), "mamba_d_state"),
    (dict(max_position_embeddings=0), "max_position_embeddings"),
]


@pytest.mark.parametrize(("change", "named"), IMPOSSIBLE)
def test_impossible_configurations_name_the_value(change, named):
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        shapes.read(GOOD | change)


GPT2_124M = GPT2Config()
BAD_CALLS = [
    (lambda: shapes.read(None), "NoneType"),
    (lambda: shapes.read("gpt2"), "str"),
    (lambda: shapes.read(dict()), "layers"),
    (lambda: shapes.read(transformers.T5Config()), "is_encoder_decoder"),
    (lambda: shapes.read(transformers.MambaConfig()), "mamba"),
    (lambda: costs.cache_bytes(GPT2_124M, 0), "tokens"),
    (lambda: costs.cache_bytes(GPT2_124M, -1), "-1"),
    (lambda: costs.cache_bytes(GPT2_124M, 1e3), "1000.0"),
    (lambda: costs.cache_bytes(GPT2_124M, float("inf")), "inf"),
    (lambda: costs.cache_bytes(GPT2_124M, 10, 0), "batch"),
    (lambda: costs.cache_bytes(GPT2_124M, 10, 1, 0), "dtype_bytes"),
    (lambda: costs.cache_bytes(GPT2_124M, 10, 1, 0.5), "0.5"),
    (lambda: costs.cache_bytes(GPT2_124M, 2**63), "ask for fewer"),
    (lambda: costs.cache_bytes(GPT2_124M, 10**30, 10**30), "ask for fewer"),
    (lambda: costs.cache_bytes_per_token(GPT2_124M, dtype="float17"), "float17"),
    (lambda: costs.cache_bytes_per_token(GPT2_124M, dtype="torch.int64"), "int64"),
    (lambda: costs.cache_bytes_per_token(GPT2_124M, dtype=Format(0)), "bits"),
    (lambda: costs.cache_bytes_per_token(GPT2_124M, dtype=Format(4, 48, 2)), "48"),
    (lambda: costs.most_tokens(GPT2_124M, 1.5), "1.5"),
    (lambda: costs.most_tokens(GPT2_124M, 2**63), "budget_bytes"),
    (lambda: costs.most_tokens(GPT2_124M, 10, 0), "batch"),
    (lambda: models.model("gpt5"), "gpt5"),
    (lambda: models.model(None), "None"),
    (lambda: models.card("A41"), "A41"),
    (lambda: bill.bill("gpt2", 1025), "1024 positions"),
    (lambda: bill.bill("gpt2", 10, dtype="int3"), "int3"),
    (lambda: bill.bill("gpt2", 10, card="TPU"), "TPU"),
    (lambda: bill.bill("mine", 10, config=GOOD), "--parameters"),
    (lambda: bill.bill("gpt2", 10, parameters=0), "parameters"),
    (lambda: bill.bill("mine", 10, config=GOOD, parameters=-1), "-1"),
]


@pytest.mark.parametrize(("call", "named"), BAD_CALLS)
def test_bad_calls_name_the_value(call, named):
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        call()


def test_a_directory_is_billed_by_what_is_stored_in_it(capsys, tmp_path):
    """A directory that transformers saved needs no --parameters: the file's header has them."""
    from transformers import GPT2Config as HFConfig
    from transformers import GPT2LMHeadModel

    theirs = GPT2LMHeadModel(HFConfig(n_layer=2, n_head=2, n_embd=16, n_positions=64))
    theirs.save_pretrained(tmp_path)
    assert __main__.main(["memory", "--model", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "1 x 64 tokens" in printed and f"weights ({theirs.num_parameters():,}" in printed


def test_a_weight_that_stands_in_two_files_is_counted_once(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    def store(name, count):
        save_file(dict(w=np.zeros(count, np.float32)), tmp_path / name)

    assert bill.stored_parameters(tmp_path) is None
    store("consolidated.safetensors", 30)
    assert bill.stored_parameters(tmp_path) == 30  # all there is
    store("model-1.safetensors", 10)
    store("model-2.safetensors", 20)
    assert bill.stored_parameters(tmp_path) == 30
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}')
    assert bill.stored_parameters(tmp_path) == 10
    index.write_text('{"metadata": {}}')
    with pytest.raises(ValueError, match="weight_map"):
        bill.stored_parameters(tmp_path)
    index.unlink()
    (tmp_path / "model-2.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match="model-2.safetensors"):
        bill.stored_parameters(tmp_path)


SIZES = '{"n_layer": 2, "n_head": 2, "n_embd": 8}'


@pytest.mark.parametrize(
    ("text", "more", "named"),
    [
        (b"{}", [], "expected an object"),
        (b"null", [], "expected an object"),
        (b'"x"', [], "expected an object"),
        (b"{", [], "no JSON"),
        (b"\xff\xfe", [], "no JSON"),
        (SIZES.encode(), [], "--parameters"),
        (SIZES.encode(), ["--parameters", "0"], "0"),
    ],
)
def test_a_bad_file_is_named(text, more, named, tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_bytes(text)
    assert __main__.main(["memory", "--model", str(file), *more]) == 2
    error = capsys.readouterr().err
    assert named in error and ("config.json" in error or more)
