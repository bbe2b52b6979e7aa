"""A language model small enough to be made on the spot: random weights, a real vocabulary, one GGUF file.

For llama.cpp where Tidegate meets an engine nobody here wrote. The text it produces is made-up words of pure
ASCII and never ends by itself, so that an answer has exactly `max_tokens` tokens and loss shows. The weights are
drawn in llama.cpp's own row order, so the rotary permutation that converters apply to Q and K has nothing to
permute. Needs the extra `engine-llamacpp` (gguf, numpy); the same seed gives the same bytes.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from numpy.typing import NDArray

CONTEXT_TOKENS: Final = 131_072
EMBEDDING: Final = 128
LAYERS: Final = 2
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = EMBEDDING // HEADS
FEED_FORWARD: Final = 256
ENDINGS: Final = 12
"""Words that begin with the same syllable."""

SPECIALS: Final = ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>")
BOS: Final = 0
EOS: Final = 1
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPACE: Final = "Ġ"
"""How byte-level BPE writes a blank."""

_CONSTANT: Final = 8.0
"""Value of the residual stream's first component, which no layer writes to: a bias for the output layer."""
_BARRED: Final = -30.0
"""Output weight on that component for tokens which must not be produced."""

Weights = NDArray[np.float32]


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level BPE vocabulary (GPT-2's mapping)."""
    kept = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    letters, moved = [], 256
    for byte in range(256):
        letters.append(chr(byte if byte in kept else moved))
        moved += byte not in kept
    return letters


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens in order of their ids, and BPE merges in order of rank: bytes, syllables, words of two syllables."""
    syllables = [a + b for a, b in product("bdfgklmnprstvz", "aeiou")]
    openings = [SPACE + syllable for syllable in syllables]
    count = len(syllables)
    words = [(openings[i], syllables[(7 * i + 11 * j) % count]) for i in range(count) for j in range(ENDINGS)]
    merges = [f"{s[0]} {s[1]}" for s in syllables] + [f"{SPACE} {s}" for s in syllables]
    merges += [f"{opening} {ending}" for opening, ending in words]
    tokens = [*SPECIALS, *byte_letters(), *syllables, *openings, *(a + b for a, b in words)]
    return tokens, merges


def write_tiny_model(path: Path, seed: int = 1) -> None:
    """Writes the model, about 2 MB, to `path`."""
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, tokens, merges)
    for name, weights in _weights(tokens, np.random.default_rng(seed)).items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, tokens: list[str], merges: list[str]) -> None:
    writer.add_name("tidegate-tiny")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    plain, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_token_types([control if token in SPECIALS else plain for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def _weights(tokens: list[str], random: np.random.Generator) -> dict[str, Weights]:
    embedding = _matrix(random, len(tokens), EMBEDDING, gain=EMBEDDING**0.5)
    embedding[:, 0] = _CONSTANT
    output = _matrix(random, len(tokens), EMBEDDING, gain=4.0)
    output[:, 0] = [0.0 if token.startswith(SPACE) and token != SPACE else _BARRED for token in tokens]
    ones = np.ones(EMBEDDING, np.float32)
    weights = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": output}
    for layer in range(LAYERS):
        weights |= {f"blk.{layer}.{name}.weight": values for name, values in _block(random).items()}
    return weights


def _block(random: np.random.Generator) -> dict[str, Weights]:
    ones = np.ones(EMBEDDING, np.float32)
    block = {
        "attn_norm": ones,
        "attn_q": _matrix(random, EMBEDDING, EMBEDDING),
        "attn_k": _matrix(random, KV_HEADS * HEAD, EMBEDDING),
        "attn_v": _matrix(random, KV_HEADS * HEAD, EMBEDDING),
        "attn_output": _matrix(random, EMBEDDING, EMBEDDING),
        "ffn_norm": ones,
        "ffn_gate": _matrix(random, FEED_FORWARD, EMBEDDING),
        "ffn_up": _matrix(random, FEED_FORWARD, EMBEDDING),
        "ffn_down": _matrix(random, EMBEDDING, FEED_FORWARD),
    }
    block["attn_output"][0] = block["ffn_down"][0] = 0.0
    return block


def _matrix(random: np.random.Generator, rows: int, columns: int, gain: float = 1.0) -> Weights:
    return random.standard_normal((rows, columns), np.float32) * np.float32(gain / columns**0.5)
