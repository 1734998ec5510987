"""The tokenizer is tiktoken's gpt2, read from our own files, and text is only ever text."""

import shutil

import pytest

from kvlib import tokenizer


def test_known_ids():
    encoding = tokenizer()
    assert encoding.n_vocab == 50257 and encoding.name == "gpt2"
    assert encoding.encode_ordinary("Hello world") == [15496, 995]
    assert encoding.decode([15496, 995]) == "Hello world"


@pytest.mark.parametrize("text", ["", " ", "\n\n", "naïve café", "日本語", "a\u0000b", "🙂🙃"])
def test_text_comes_back(text):
    encoding = tokenizer()
    assert encoding.decode(encoding.encode_ordinary(text)) == text


def test_end_of_text_in_a_prompt_is_letters():
    encoding = tokenizer()
    assert 50256 not in encoding.encode_ordinary("<|endoftext|>")
    assert encoding.encode("<|endoftext|>", allowed_special="all") == [50256]
    with pytest.raises(ValueError):
        encoding.encode("<|endoftext|>")


def test_no_network_and_no_cache_are_needed(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    build = tokenizer.__wrapped__
    assert build().encode_ordinary("Hello world") == [15496, 995]


def test_a_damaged_file_is_refused_by_its_checksum(monkeypatch, tmp_path):
    from kvlib.tokenizer import FILES

    for name in ("vocab.bpe", "encoder.json"):
        shutil.copy(FILES / name, tmp_path)
    with open(tmp_path / "vocab.bpe", "a") as file:
        file.write("x y\n")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(tokenizer.__wrapped__.__globals__, "FILES", tmp_path)
    with pytest.raises(ValueError, match="[Hh]ash"):
        tokenizer.__wrapped__()
