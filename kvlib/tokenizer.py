"""GPT-2's byte-pair encoding, read by tiktoken from files that ship with this package."""

from functools import cache
from pathlib import Path

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import ENDOFTEXT, r50k_pat_str

FILES = Path(__file__).parent / "data" / "tokenizer"
END_OF_TEXT = 50256


@cache
def tokenizer() -> tiktoken.Encoding:
    """tiktoken's `gpt2` encoding (50,257 ids), without network; its own checksums are enforced.

    Use `encode_ordinary` for text from outside: it reads `<|endoftext|>` as the letters it is
    made of, where `encode` refuses it unless `allowed_special` names it.
    """
    ranks = data_gym_to_mergeable_bpe_ranks(
        vocab_bpe_file=str(FILES / "vocab.bpe"),
        encoder_json_file=str(FILES / "encoder.json"),
        vocab_bpe_hash="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        encoder_json_hash="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    )
    return tiktoken.Encoding(
        "gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={ENDOFTEXT: END_OF_TEXT},
        explicit_n_vocab=END_OF_TEXT + 1,
    )
