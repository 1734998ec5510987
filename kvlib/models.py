"""Published models and devices, as data: what the memory bill is made out for. Imports no torch.

Each model has the keys of its published `config.json` that decide the size of a cache, under the
names used there, its parameter count and its source. The counts are those of the text model with
tied tables counted once; a test builds each shape and counts again.
"""

from .config import PRESETS, GPT2Config
from .costs import parameters

HUB = "https://huggingface.co/"


def llama(layers: int, width: int, heads: int, kv_heads: int, positions: int, **more) -> dict:
    """The keys that configurations of Llama and its many relatives share."""
    return dict(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=positions,
        **more,
    )


MODELS = {
    name: dict(
        config=GPT2Config.preset(name),
        parameters=parameters(GPT2Config.preset(name)),
        source="this package" if name == "nano" else HUB + "openai-community/" + name,
    )
    for name in PRESETS
}
for name, count, source, config in [
    ("SmolLM2-135M", 134_515_008, "HuggingFaceTB/SmolLM2-135M", llama(30, 576, 9, 3, 8192)),
    ("Qwen2.5-0.5B", 494_032_768, "Qwen/Qwen2.5-0.5B", llama(24, 896, 14, 2, 32768)),
    (
        "Llama-3.2-1B",
        1_235_814_400,
        "meta-llama/Llama-3.2-1B",
        llama(16, 2048, 32, 8, 131072, head_dim=64),
    ),
    (
        "Falcon-7B",
        6_921_720_704,
        "tiiuae/falcon-7b",
        dict(
            num_hidden_layers=32,
            hidden_size=4544,
            num_attention_heads=71,
            multi_query=True,
            new_decoder_architecture=False,
            max_position_embeddings=2048,
        ),
    ),
    ("Llama-2-7B", 6_738_415_616, "meta-llama/Llama-2-7b-hf", llama(32, 4096, 32, 32, 4096)),
    (
        "Mistral-7B-v0.1",
        7_241_732_096,
        "mistralai/Mistral-7B-v0.1",
        llama(32, 4096, 32, 8, 32768, sliding_window=4096),
    ),
    ("Llama-3.1-8B", 8_030_261_248, "meta-llama/Llama-3.1-8B", llama(32, 4096, 32, 8, 131072)),
    (
        "Qwen3-8B",
        8_190_735_360,
        "Qwen/Qwen3-8B",
        llama(36, 4096, 32, 8, 40960, head_dim=128),
    ),
    (
        "Gemma-2-9B",
        9_241_705_984,
        "google/gemma-2-9b",
        llama(42, 3584, 16, 8, 8192, head_dim=256, sliding_window=4096, model_type="gemma2"),
    ),
    (
        "StarCoder",
        15_517_456_384,
        "bigcode/starcoder",
        dict(n_layer=40, n_embd=6144, n_head=48, multi_query=True, n_positions=8192),
    ),
    (
        "gpt-oss-20b",
        20_914_757_184,
        "openai/gpt-oss-20b",
        llama(
            24,
            2880,
            64,
            8,
            131072,
            head_dim=64,
            sliding_window=128,
            layer_types=["sliding_attention", "full_attention"] * 12,
        ),
    ),
    (
        "Gemma-3-27B",
        27_009_346_304,
        "google/gemma-3-27b-pt",
        llama(
            62, 5376, 32, 16, 131072, head_dim=128, sliding_window=1024, sliding_window_pattern=6
        ),
    ),
    ("CodeLlama-34B", 33_743_970_304, "codellama/CodeLlama-34b-hf", llama(48, 8192, 64, 8, 16384)),
    ("Mixtral-8x7B", 46_702_792_704, "mistralai/Mixtral-8x7B-v0.1", llama(32, 4096, 32, 8, 32768)),
    ("Llama-3.1-70B", 70_553_706_496, "meta-llama/Llama-3.1-70B", llama(80, 8192, 64, 8, 131072)),
    (
        "DeepSeek-V3",
        671_026_404_352,
        "deepseek-ai/DeepSeek-V3",
        llama(
            61,
            7168,
            128,
            128,
            163840,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
        ),
    ),
]:
    MODELS[name] = dict(config=config, parameters=count, source=HUB + source)

# Memory as sold, in decimal gigabytes. A device reports its own number, which may differ by some
# per cent either way; `torch.cuda.mem_get_info()` gives it.
GB = 10**9
NVIDIA = "https://www.nvidia.com/en-us/data-center/"
CARDS = {
    "phone 8GB": dict(bytes=8 * GB, source="a size common in phones"),
    "laptop 16GB": dict(bytes=16 * GB, source="a size common in laptops"),
    "T4 16GB": dict(bytes=16 * GB, source=NVIDIA + "tesla-t4/"),
    "L4 24GB": dict(bytes=24 * GB, source=NVIDIA + "l4/"),
    "RTX 4090 24GB": dict(
        bytes=24 * GB,
        source="https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/rtx-4090/",
    ),
    "A40 48GB": dict(bytes=48 * GB, source=NVIDIA + "a40/"),
    "A100 80GB": dict(bytes=80 * GB, source=NVIDIA + "a100/"),
    "H100 80GB": dict(bytes=80 * GB, source=NVIDIA + "h100/"),
    "H200 141GB": dict(bytes=141 * GB, source=NVIDIA + "h200/"),
}


def model(name: str) -> dict:
    """The entry (config, parameters, source) called `name`, in any case; ValueError lists them."""
    return entry(MODELS, "model", name)


def card(name: str) -> dict:
    """The entry (bytes, source) of the device called `name`, in any case; ValueError lists them."""
    return entry(CARDS, "card", name)


def entry(table: dict, what: str, name: str) -> dict:
    """The entry of `table` whose name is `name`, spaces and case aside."""
    plain = {key.lower().replace(" ", ""): value for key, value in table.items()}
    found = plain.get(str(name).lower().replace(" ", ""))
    if found is None:
        raise ValueError(f"no {what} {name!r}; choose one of {', '.join(table)}")
    return found
