"""`config.json` and `preprocessor_config.json` of a Hugging Face folder.

Source: transformers 5.24.0 `models/*/configuration_*.py`, `models/auto/image_processing_auto.py`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.weights.huggingface_names import ModelType, find_model_type
from keras_vit.weights.renaming import join_sorted

# Class without a head, class with a head, and what its head reads.
_CLASSES: dict[ModelType, tuple[str, str, str]] = {
    "vit": ("ViTModel", "ViTForImageClassification", "token"),
    "deit": ("DeiTModel", "DeiTForImageClassificationWithTeacher", "token"),
    "ijepa": ("IJepaModel", "IJepaForImageClassification", "avg"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification", "token_avg"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
        "token_avg",
    ),
    "dinov3_vit": ("DINOv3ViTModel", "", ""),
    "siglip_vision_model": ("SiglipVisionModel", "SiglipForImageClassification", "avg"),
    "clip_vision_model": ("CLIPVisionModel", "CLIPVisionModelWithProjection", "token"),
}
_PROCESSORS: dict[ModelType, str] = {
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "dinov3_vit": "DINOv3ViTImageProcessor",
    "siglip_vision_model": "SiglipImageProcessor",
    "clip_vision_model": "CLIPImageProcessor",
}
# transformers assumes 0 where they are absent; KerasHub requires them.
_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_WITH_DROPOUT: frozenset[ModelType] = frozenset(
    ("vit", "deit", "ijepa", "dinov2", "dinov2_with_registers")
)
_HIDDEN_ACT = {"tanh": "gelu_pytorch_tanh", "exact": "gelu", "quick": "quick_gelu"}
_MLP = "Transformer/encoderblock_0/MlpBlock_0"
_LARGEST_RATIO = 64  # of DINOv2's gated MLP to its width


def check_head(arrays: Mapping[str, np.ndarray], pooling: str | None, rotary: bool) -> None:
    """Raises ValueError if the head of a model reads something else than Transformers' class does.

    Args:
        arrays: Canonical arrays.
        pooling: What the head reads: "token", "avg", "token_avg", "map".
        rotary: Whether the model has rotary positions.
    """
    if "head/kernel" not in arrays:
        return
    model_type = find_model_type(arrays, rotary)
    name, wanted = _CLASSES[model_type][1:]
    has_bias = "head/bias" in arrays
    problems = []
    if not name:
        problems.append(f"{model_type} has no class with a head")
    elif pooling != wanted:
        problems.append(f"the head of {name} reads {wanted!r}, and that of the model {pooling!r}")
    elif has_bias == (model_type == "clip_vision_model"):
        problems.append(f"the head of {name} has {'no' if has_bias else 'a'} bias")
    if problems:
        raise ValueError(
            f"Hugging Face Transformers cannot express this model: {join_sorted(problems)}. Use "
            'layout="google" or "timm", or save the model without its head (`include_top=False`).'
        )


def make_config(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `config.json` of a model.

    Args:
        arrays: Canonical arrays.
        facts: Metadata of the model, with "rotary".

    Raises:
        ValueError: If the width of a gated MLP cannot be expressed.
    """
    model_type = find_model_type(arrays, facts["rotary"])
    kernel, has_head = arrays["embedding/kernel"], "head/kernel" in arrays
    size = facts.get("image_size") or tuple(side * kernel.shape[0] for side in facts["grid"])
    config: dict[str, Any] = {
        "hidden_size": kernel.shape[-1],
        "num_hidden_layers": len({n.split("/")[1] for n in arrays if "/encoderblock_" in n}),
        "num_attention_heads": facts["num_heads"],
        "intermediate_size": arrays[f"{_MLP}/Dense_0/kernel"].shape[-1],
        "hidden_act": _HIDDEN_ACT[facts["gelu"]],
        "layer_norm_eps": facts["layer_norm_epsilon"],
        "image_size": size[0] if size[0] == size[1] else list(size),
        "patch_size": kernel.shape[0],
        "num_channels": kernel.shape[2],
    }
    config |= _DROPOUT if model_type in _WITH_DROPOUT else {}
    config |= _list_own_fields(model_type, arrays)
    architecture = _CLASSES[model_type][has_head]
    if model_type == "deit" and "head_dist/kernel" not in arrays:  # fine-tuned without a teacher
        architecture = architecture.removesuffix("WithTeacher")
    if model_type == "siglip_vision_model" and has_head:
        config = {"model_type": "siglip", "vision_config": {"model_type": model_type, **config}}
    else:
        config = {"model_type": model_type, **config}
    labels = range(0 if not has_head else arrays["head/kernel"].shape[-1])
    if model_type == "clip_vision_model":
        config["projection_dim"] = len(labels) or kernel.shape[-1]
        labels = range(0)
    return {
        "architectures": [architecture],
        **config,
        "id2label": {str(index): f"LABEL_{index}" for index in labels},
        "label2id": {f"LABEL_{index}": index for index in labels},
    }


def make_preprocessor_config(
    arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the `preprocessor_config.json` of a model: size, mean and deviation of its images."""
    model_type = find_model_type(arrays, facts["rotary"])
    patch = arrays["embedding/kernel"].shape[0]
    height, width = facts.get("image_size") or tuple(side * patch for side in facts["grid"])
    size = {"height": height, "width": width}
    return {
        "image_processor_type": _PROCESSORS.get(model_type, "ViTImageProcessor"),
        "do_resize": True,
        "size": size,
        "do_center_crop": False,
        "crop_size": size,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(facts["pixel_mean"]),
        "image_std": list(facts["pixel_std"]),
    }


def _list_own_fields(model_type: ModelType, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    attention = "Transformer/encoderblock_0/MultiHeadDotProductAttention_0"
    biases = {part: f"{attention}/{part}/bias" in arrays for part in ("query", "key", "value")}
    is_gated = f"{_MLP}/Gate_0/kernel" in arrays
    registers = arrays["registers"].shape[1] if "registers" in arrays else 0
    if model_type in ("vit", "deit", "ijepa"):
        return {"qkv_bias": all(biases.values())}
    if model_type == "siglip_vision_model":
        return {"vision_use_head": "MAPHead_0/probe" in arrays}
    if model_type == "dinov3_vit":
        gated = {"use_gated_mlp": True, "hidden_act": "silu"} if is_gated else {}
        fields = {f"{part}_bias": has_bias for part, has_bias in biases.items()}
        return {**fields, "num_register_tokens": registers, "use_gated_mlp": False, **gated}
    if model_type.startswith("dinov2"):
        width, mlp_dim = arrays[f"{_MLP}/Dense_0/kernel"].shape
        fields = {
            "qkv_bias": all(biases.values()),
            "use_swiglu_ffn": is_gated,
            "mlp_ratio": _find_ratio(width, mlp_dim, is_gated),
        }
        return fields | ({"num_register_tokens": registers} if registers else {})
    return {}


def _find_ratio(width: int, mlp_dim: int, is_gated: bool) -> float:
    """Returns the ratio from which DINOv2's class computes the width of its MLP."""
    if not is_gated:
        ratio = mlp_dim / width
        return int(ratio) if ratio == int(ratio) else ratio
    for ratio in range(1, _LARGEST_RATIO):
        if (int(ratio * width * 2 / 3) + 7) // 8 * 8 == mlp_dim:
            return ratio
    raise ValueError(
        f"The gated MLP of DINOv2 in Transformers cannot have {mlp_dim} hidden units at a width of "
        f'{width}. Use layout="google" or "timm".'
    )
