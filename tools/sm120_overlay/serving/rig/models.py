"""Checkpoints without weights: the JSON files that upstream reads before it loads anything.

Shapes are those of the published `config.json` of each model, written down by hand from public facts; a field that
no decision of upstream's depends on is left out. The forms in which ModelOpt writes a quantization are the ones that
upstream's own parsers name (`ModelConfig._parse_quant_hf_config`, `ModelOptFp4Config.from_config`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

GROUP_SIZE = 16
_UNQUANTIZED = ["lm_head", "model.layers.*.self_attn*", "model.layers.*.mlp.gate"]


@dataclass(frozen=True)
class Model:
    """One architecture at one published size."""

    name: str
    config: Mapping[str, Any]
    """`config.json`, without a quantization."""

    @property
    def architecture(self) -> str:
        """The class that SGLang picks its model code by."""
        return str(self.config["architectures"][0])


class QuantForm(Enum):
    """Where and how a checkpoint says what it is quantized to: ModelOpt's forms, and DeepSeek's own FP8."""

    NONE = "unquantized"
    GENERIC = "config.json, quant_method modelopt"
    NAMELESS = "config.json, no quant_method"
    SIDE_FILE = "hf_quant_config.json"
    FP8_BLOCK = "config.json, quant_method fp8, blocks of 128 x 128"


GLM_5 = Model(
    "GLM-5",
    {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "vocab_size": 154880,
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 78,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 202752,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "dtype": "bfloat16",
    },
)
QWEN3_MOE = Model(
    "Qwen3-235B-A22B",
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "max_position_embeddings": 40960,
        "dtype": "bfloat16",
    },
)
QWEN3_30B = Model(
    "Qwen3-30B-A3B",
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "max_position_embeddings": 40960,
        "dtype": "bfloat16",
    },
)
GLM_4_MOE = Model(
    "GLM-4.6",
    {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": 151552,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 92,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "use_qk_norm": True,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 202752,
        "dtype": "bfloat16",
    },
)
GLM_4_5_AIR = Model(
    "GLM-4.5-Air",
    {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "use_qk_norm": False,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 131072,
        "dtype": "bfloat16",
    },
)
DEEPSEEK_V3 = Model(
    "DeepSeek-V3",
    {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 163840,
        "dtype": "bfloat16",
    },
)
MIXTRAL = Model(
    "Mixtral-8x7B",
    {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
        "dtype": "bfloat16",
    },
)
LLAMA_4 = Model(
    "Llama-4-Scout",
    {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "llama4_text",
            "vocab_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "max_position_embeddings": 10485760,
        },
    },
)
GLM_4_5V = Model(
    "GLM-4.5V",
    {
        "architectures": ["Glm4vMoeForConditionalGeneration"],
        "model_type": "glm4v_moe",
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "glm4v_moe_text",
            "vocab_size": 151552,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": True,
            "max_position_embeddings": 65536,
        },
        "vision_config": {
            "model_type": "glm4v_moe_vision",
            "depth": 24,
            "hidden_size": 1536,
            "intermediate_size": 10944,
            "num_heads": 12,
            "out_hidden_size": 4096,
            "patch_size": 14,
        },
    },
)
STEP_3 = Model(
    "Step3",
    {
        "architectures": ["Step3VLForConditionalGeneration"],
        "model_type": "step3_vl",
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "step3_text",
            "vocab_size": 128815,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 5120,
            "num_hidden_layers": 61,
            "num_attention_heads": 64,
            "num_attention_groups": 1,
            "head_dim": 256,
            "share_q_dim": 2048,
            "share_expert_dim": 5120,
            "moe_num_experts": 48,
            "moe_top_k": 3,
            "max_position_embedding": 65536,
            "max_seq_len": 65536,
        },
        "vision_config": {
            "model_type": "step3_vision_encoder",
            "hidden_size": 1792,
            "intermediate_size": 3072,
            "num_hidden_layers": 63,
            "num_attention_heads": 16,
            "output_hidden_size": 4096,
            "patch_size": 14,
        },
    },
)
QWEN3_DENSE = Model(
    "Qwen3-32B",
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "dtype": "bfloat16",
    },
)


def _flat(algo: str) -> dict[str, Any]:
    """`quantization_config` as ModelOpt's unified export writes it into config.json."""
    four_bit = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": GROUP_SIZE}
    return {
        "quant_algo": algo,
        "producer": {"name": "modelopt", "version": "0.39.0"},
        "ignore": _UNQUANTIZED,
        "config_groups": {"group_0": {"input_activations": four_bit, "weights": four_bit, "targets": ["Linear"]}},
    }


def _nested(algo: str) -> dict[str, Any]:
    """hf_quant_config.json as ModelOpt writes it beside config.json."""
    return {
        "producer": {"name": "modelopt", "version": "0.39.0"},
        "quantization": {
            "quant_algo": algo,
            "kv_cache_quant_algo": None,
            "group_size": GROUP_SIZE,
            "exclude_modules": _UNQUANTIZED,
        },
    }


def _fp8_block() -> dict[str, Any]:
    """`quantization_config` as DeepSeek-V3's config.json has it."""
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def files(model: Model, form: QuantForm = QuantForm.NONE, algo: str = "NVFP4") -> dict[str, str]:
    """Name → text of the JSON files of a checkpoint."""
    config = dict(model.config)
    written = {}
    if form is QuantForm.GENERIC:
        config["quantization_config"] = {"quant_method": "modelopt", **_flat(algo)}
    elif form is QuantForm.NAMELESS:
        config["quantization_config"] = _flat(algo)
    elif form is QuantForm.FP8_BLOCK:
        config["quantization_config"] = _fp8_block()
    elif form is QuantForm.SIDE_FILE:
        written["hf_quant_config.json"] = json.dumps(_nested(algo))
    return {**written, "config.json": json.dumps(config)}


def checkpoint(folder: Path, model: Model, form: QuantForm = QuantForm.NONE, algo: str = "NVFP4") -> Path:
    """Write the JSON files of a checkpoint of `model` into `folder` (made if missing), and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(model, form, algo).items():
        (folder / name).write_text(text)
    return folder


# What a user may name. "-nvfp4" is the published shape as ModelOpt's unified export quantizes it (experts, shared
# experts and dense MLPs to NVFP4; attention, router and head not): a checkpoint that excludes other layers says so in
# its own files. DeepSeek-V3 is published in FP8.
BUNDLED: Mapping[str, tuple[Model, QuantForm]] = {
    "glm-5-nvfp4": (GLM_5, QuantForm.GENERIC),
    "qwen3-30b-a3b": (QWEN3_30B, QuantForm.NONE),
    "qwen3-30b-a3b-nvfp4": (QWEN3_30B, QuantForm.GENERIC),
    "qwen3-235b-a22b": (QWEN3_MOE, QuantForm.NONE),
    "qwen3-235b-a22b-nvfp4": (QWEN3_MOE, QuantForm.GENERIC),
    "glm-4.6": (GLM_4_MOE, QuantForm.NONE),
    "glm-4.6-nvfp4": (GLM_4_MOE, QuantForm.GENERIC),
    "glm-4.5-air": (GLM_4_5_AIR, QuantForm.NONE),
    "glm-4.5-air-nvfp4": (GLM_4_5_AIR, QuantForm.GENERIC),
    "deepseek-v3": (DEEPSEEK_V3, QuantForm.FP8_BLOCK),
    "deepseek-v3-nvfp4": (DEEPSEEK_V3, QuantForm.GENERIC),
}
