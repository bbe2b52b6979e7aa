"""A model's `config.json` → what decides its memory.

Read: Llama, Qwen, Mistral, Mixtral, DeepSeek (MLA), gpt-oss and whatever shares their keys, also below `text_config`.
Parameter counts follow from the shapes; tests hold them against the published ones.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.errors import BadInputError


class Mla(msgspec.Struct, frozen=True):
    """DeepSeek's latent attention: one compressed vector a token and layer, the same on every GPU."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int
    """0: queries are not compressed."""


class Experts(msgspec.Struct, frozen=True):
    """A mixture of experts. `dense_layers` come first and have none."""

    count: int
    per_token: int
    width: int
    shared_width: int
    dense_layers: int


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a decoder. `sliding_layers` of the `layers` keep only `window_tokens` of KV."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    """Of a dense layer's feed-forward block."""
    vocabulary: int
    tied: bool
    max_positions: int
    rope_scaling: str
    """Kind of RoPE scaling; empty for none."""
    weights: str
    """Number format of the checkpoint: bf16, fp32, fp8, int4, int8, mxfp4."""
    attention_bias: bool = False
    sliding_layers: int = 0
    window_tokens: int = 0
    mla: Mla | None = None
    experts: Experts | None = None

    @property
    def embedding_parameters(self) -> int:
        """Input embedding and output head: kept in 16 bits by every quantization here."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def attention_parameters(self) -> int:
        """Of all layers."""
        if self.mla is not None:
            return self.layers * _mla_parameters(self, self.mla)
        queries = self.heads * self.head_dim
        keys = self.kv_heads * self.head_dim
        biases = queries + 2 * keys if self.attention_bias else 0
        return self.layers * (self.hidden * (2 * queries + 2 * keys) + biases)

    @property
    def dense_parameters(self) -> int:
        """Feed-forward blocks without experts, shared experts and routers."""
        experts = self.experts
        if experts is None:
            return self.layers * 3 * self.hidden * self.width
        moe_layers = self.layers - experts.dense_layers
        shared = moe_layers * (3 * self.hidden * experts.shared_width + self.hidden * experts.count)
        return experts.dense_layers * 3 * self.hidden * self.width + shared

    @property
    def expert_parameters(self) -> int:
        """All routed experts."""
        experts = self.experts
        if experts is None:
            return 0
        return (self.layers - experts.dense_layers) * experts.count * 3 * self.hidden * experts.width

    @property
    def parameters(self) -> int:
        """Everything."""
        norms = self.hidden * (2 * self.layers + 1)
        return (
            self.embedding_parameters
            + self.attention_parameters
            + self.dense_parameters
            + self.expert_parameters
            + norms
        )

    @property
    def active_parameters(self) -> int:
        """What one token passes through, without the embeddings."""
        share = self.experts.per_token / self.experts.count if self.experts else 0.0
        return self.attention_parameters + self.dense_parameters + int(self.expert_parameters * share)

    @property
    def context_limit(self) -> int:
        """Longest context the positions were made for."""
        return self.max_positions


def _mla_parameters(shape: ModelShape, mla: Mla) -> int:
    query_width = shape.heads * (mla.nope_dim + mla.rope_dim)
    queries = shape.hidden * query_width
    if mla.query_rank:
        queries = shape.hidden * mla.query_rank + mla.query_rank * query_width
    compress = shape.hidden * (mla.kv_rank + mla.rope_dim)
    expand = mla.kv_rank * shape.heads * (mla.nope_dim + mla.value_dim)
    return queries + compress + expand + shape.heads * mla.value_dim * shape.hidden


def read_shape(config: Any, name: str = "config.json") -> ModelShape:
    """The shape a parsed `config.json` describes. Raises BadInputError that names the missing or senseless key."""
    if not isinstance(config, dict):
        raise BadInputError(f"{name} is not a model configuration", hint="give the config.json of the model's folder")
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    reader = _Reader({**config, **inner}, name)
    heads = reader.count("num_attention_heads", "n_head")
    hidden = reader.count("hidden_size", "n_embd")
    layers = reader.count("num_hidden_layers", "n_layer")
    sliding, window = _sliding(reader, layers)
    return ModelShape(
        architecture=reader.architecture(),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=reader.count("num_key_value_heads", default=heads),
        head_dim=reader.count("head_dim", default=max(1, hidden // heads)),
        width=reader.count("intermediate_size", default=4 * hidden),
        vocabulary=reader.count("vocab_size"),
        tied=bool(reader.get("tie_word_embeddings", False)),
        max_positions=reader.count("max_position_embeddings", "n_positions", default=0, least=0),
        rope_scaling=reader.rope_scaling(),
        weights=reader.weights(),
        attention_bias=bool(reader.get("attention_bias") or "Qwen2" in reader.architecture()),
        sliding_layers=sliding,
        window_tokens=window,
        mla=_mla(reader),
        experts=_experts(reader),
    )


class _Reader:
    """Typed access to a configuration that may be wrong."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self._config = config
        self._name = name

    def get(self, key: str, default: Any = None) -> Any:
        value = self._config.get(key)
        return default if value is None else value

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        for key in keys:
            value = self._config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**9:
                hint = "check that the file is whole and belongs to a language model"
                raise BadInputError(f"{self._name}: {key} is {value!r}, not a count", hint=hint)
            return value
        if default is None:
            hint = "known are Llama, Qwen, Mistral, Mixtral, DeepSeek and gpt-oss shapes"
            raise BadInputError(f"{self._name} has no {keys[0]}", hint=hint)
        return default

    def architecture(self) -> str:
        names = self.get("architectures", [])
        return str(names[0]) if isinstance(names, list) and names else str(self.get("model_type", "unknown"))

    def rope_scaling(self) -> str:
        scaling = self.get("rope_scaling") or self.get("rope_parameters")
        if not isinstance(scaling, dict):
            return ""
        kind = str(scaling.get("rope_type") or scaling.get("type") or "")
        return "" if kind in ("default", "None") else kind

    def weights(self) -> str:
        quantized = self.get("quantization_config") or self.get("compression_config")
        if isinstance(quantized, dict):
            return _quantization(quantized)
        dtype = str(self.get("dtype") or self.get("torch_dtype") or "bfloat16")
        return "fp32" if "32" in dtype else "bf16"


def _quantization(quantized: dict[str, Any]) -> str:
    method = str(quantized.get("quant_method", "")).lower()
    if method in ("fp8", "fbgemm_fp8", "mxfp4"):
        return "fp8" if "fp8" in method else method
    text = str(quantized).lower()
    if method in ("awq", "gptq", "gptq_marlin", "bitsandbytes") or "int4" in text or "'num_bits': 4" in text:
        return "int8" if quantized.get("bits") == 8 or quantized.get("load_in_8bit") else "int4"
    if "fp8" in text or "'type': 'float'" in text:
        return "fp8"
    return "int8" if "int8" in text or "'num_bits': 8" in text else "bf16"


def _sliding(reader: _Reader, layers: int) -> tuple[int, int]:
    """Layers that keep a window only, and its length. Mistral's single window makes all layers slide."""
    window = reader.get("sliding_window")
    if not isinstance(window, int) or isinstance(window, bool) or window <= 0:
        return 0, 0
    kinds = reader.get("layer_types")
    if isinstance(kinds, list):
        return sum("sliding" in str(kind) for kind in kinds), window
    if reader.get("use_sliding_window", True) is False:
        return 0, 0
    return (layers, window) if "Mistral" in reader.architecture() else (0, 0)


def _mla(reader: _Reader) -> Mla | None:
    if reader.get("kv_lora_rank") is None:
        return None
    return Mla(
        kv_rank=reader.count("kv_lora_rank"),
        rope_dim=reader.count("qk_rope_head_dim"),
        nope_dim=reader.count("qk_nope_head_dim"),
        value_dim=reader.count("v_head_dim"),
        query_rank=reader.count("q_lora_rank", default=0),
    )


def _experts(reader: _Reader) -> Experts | None:
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    if all(reader.get(key) is None for key in keys):
        return None
    width = reader.count("moe_intermediate_size", "intermediate_size")
    shared = reader.count("n_shared_experts", default=0, least=0)
    return Experts(
        count=reader.count(*keys),
        per_token=reader.count("num_experts_per_tok", "experts_per_token", default=1),
        width=width,
        shared_width=reader.count("shared_expert_intermediate_size", default=shared * width, least=0),
        dense_layers=reader.count("first_k_dense_replace", default=0, least=0),
    )
