# SPDX-License-Identifier: Apache-2.0
"""A byte tokenizer: six special tokens, then the 256 bytes in the order of their printable stand-ins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<user>", "<assistant>", "<mask>")
END_TOKEN = SPECIAL_TOKENS.index("<eos>")


def _stand_ins() -> dict[int, str]:
    """The byte-level alphabet of GPT-2: a printable byte stands for itself, the n-th other byte is U+0100 + n."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_ALPHABET = sorted(_stand_ins().values())
_TOKEN_OF_BYTE = {byte: len(SPECIAL_TOKENS) + _ALPHABET.index(character) for byte, character in _stand_ins().items()}
_BYTE_OF_TOKEN = {token: byte for byte, token in _TOKEN_OF_BYTE.items()}


def encode(text: str) -> list[int]:
    """Token ids of a text, one for each byte of its UTF-8 form, as ``tokenizer.json`` gives them."""
    return [_TOKEN_OF_BYTE[byte] for byte in text.encode()]


def decode(token_ids: Iterable[int]) -> str:
    """Text of token ids; raises KeyError on a special token."""
    return bytes(_BYTE_OF_TOKEN[token] for token in token_ids).decode()


def tokenizer_json() -> dict[str, Any]:
    """``tokenizer.json`` in the format of Hugging Face's tokenizers, version 1.0."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token, content in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {content: token for token, content in enumerate([*SPECIAL_TOKENS, *_ALPHABET])},
            "merges": [],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """``tokenizer_config.json``, with a chat template of nothing but the turns' text, for the model to go on from.

    Settings that a chat client passes to the template, such as ``enable_thinking``, change nothing.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "additional_special_tokens": list(SPECIAL_TOKENS[3:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }
