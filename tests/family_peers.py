"""Small models of timm, Transformers and OpenCLIP with random weights: a case for each family.

Each case has a row of this package and a function that makes the rival's model. `answer` returns
what the rival computes: all tokens after its last norm, one vector, and its logits if it has any.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_vit.variants import FAMILY_VARIANTS, VIT_VARIANTS, ViTVariant

CLASSES, PROJECTION = 5, 12


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model. The default is a small one."""

    image_size: int = 32
    patch_size: int = 8
    width: int = 32
    depth: int = 2
    num_heads: int = 2
    mlp_dim: int = 64

    @classmethod
    def of(cls, row: ViTVariant) -> "Sizes":
        """Returns the true sizes of a row."""
        return cls(**{field.name: getattr(row, field.name) for field in dataclasses.fields(cls)})


SMALL = Sizes()
SIZE = SMALL.image_size


def _name_for_timm(sizes: Sizes) -> dict[str, Any]:
    return {
        "patch_size": sizes.patch_size,
        "embed_dim": sizes.width,
        "depth": sizes.depth,
        "num_heads": sizes.num_heads,
        "mlp_ratio": sizes.mlp_dim / sizes.width,
        "num_classes": CLASSES,
    }


def _name_for_transformers(sizes: Sizes) -> dict[str, Any]:
    return {
        "image_size": sizes.image_size,
        "patch_size": sizes.patch_size,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.depth,
        "num_attention_heads": sizes.num_heads,
        "intermediate_size": sizes.mlp_dim,
    }


@dataclass(frozen=True)
class Case:
    """A family in one package.

    Attributes:
        row: Name of the row that is made small.
        build: Function from (height, width) and sizes to the rival's model.
        answer: Function from the rival's model and images to its tokens, vector and logits.
        rule: How the rival resizes positions.
        fields: More fields of the row.
        options: Options of our model with logits, or None where the rival has none.
        pooling: How our model pools one vector, or None.
    """

    row: str
    build: Callable[[tuple[int, int], Sizes], Any]
    answer: Callable[[Any, Any], tuple]
    rule: str = "bicubic"
    fields: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] | None = field(default_factory=dict)
    pooling: str | None = "token"

    def make(self, size: tuple[int, int], sizes: Sizes = SMALL) -> Any:
        """Returns the rival's model."""
        return self.build(size, sizes)

    def variant(self, sizes: Sizes = SMALL) -> ViTVariant:
        """Returns the row with these sizes."""
        row = (VIT_VARIANTS | FAMILY_VARIANTS)[self.row]
        changed = {
            "name": f"{self.row}_small",
            "projection": None if row.projection is None else PROJECTION,
        }
        return dataclasses.replace(row, **dataclasses.asdict(sizes), **changed, **self.fields)


def randomize(model: Any, seed: int = 0, width: int = SMALL.width) -> Any:
    """Draws all weights from a normal distribution, biases, norms and layer scale too.

    Matrices of wider models have smaller numbers, so that their products stay as large.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in sorted(model.named_parameters()):
            is_norm = x.ndim == 1 and name.endswith("weight")
            deviation = 0.2 * (SMALL.width / width) ** 0.5 if x.ndim > 1 else 0.2
            x.copy_(torch.randn(x.shape, generator=generator) * deviation + is_norm)
    return model.eval()


def images_of(size: tuple[int, int], count: int = 2) -> np.ndarray:
    """Returns (count, height, width, 3) pixels in [-1, 1]."""
    return np.random.default_rng(7).uniform(-1, 1, (count, *size, 3)).astype("float32")


def pixels_for(case: Case, images: np.ndarray) -> Any:
    """Returns our images as the rival takes them: normalized, channels first."""
    import torch

    row = case.variant()
    x = (images / 2 + 0.5 - np.array(row.pixel_mean)) / np.array(row.pixel_std)
    return torch.from_numpy(x.astype("float32").transpose(0, 3, 1, 2).copy())


# --- timm


def _timm_vit(**options):
    def build(size, sizes):
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(**{**_name_for_timm(sizes), "img_size": size, **options})

    return build


def _timm_class(module, name, **options):
    def build(size, sizes):
        import importlib

        cls = getattr(importlib.import_module(f"timm.models.{module}"), name)
        return cls(**{**_name_for_timm(sizes), "img_size": size, **options})

    return build


def _timm_answer(model, x):
    tokens = model.forward_features(x)
    logits = model(x)
    if isinstance(logits, tuple):
        logits = (logits[0] + logits[1]) / 2
    return tokens, model.forward_head(tokens, pre_logits=True), logits


def _timm_distilled_answer(model, x):
    tokens = model.forward_features(x)
    return tokens, tokens[:, 0], model(x)


def _eva(**options):
    return _timm_class(
        "eva",
        "Eva",
        rope_type="dinov3",
        rope_temperature=100,
        rope_rotate_half=True,
        use_rot_pos_emb=True,
        use_abs_pos_emb=False,
        num_reg_tokens=4,
        use_fc_norm=False,
        init_values=1e-5,
        dynamic_img_size=True,
        norm_layer=_norm_of_dinov3,
        **options,
    )


def _norm_of_dinov3(*args, **kwargs):
    from timm.layers import LayerNorm

    return LayerNorm(*args, eps=1e-5, **kwargs)


def _norm_of_clip(*args, **kwargs):
    import torch

    return torch.nn.LayerNorm(*args, eps=1e-5, **kwargs)


def _gated(**options):
    def build(size, sizes):
        import torch
        from timm.layers import SwiGLUPacked

        gated = {
            "mlp_layer": SwiGLUPacked,
            "act_layer": torch.nn.SiLU,
            "mlp_ratio": 2 * sizes.mlp_dim / sizes.width,
        }
        return _timm_vit(**gated, **options)(size, sizes)

    return build


_SCALED = {"init_values": 1e-5}
_ANTIALIAS = "bicubic_antialias"
TIMM_CASES = {
    "DINOv2": Case("DINOv2_B14", _timm_vit(**_SCALED), _timm_answer, _ANTIALIAS),
    "DINOv2 reg4": Case(
        "DINOv2_B14_reg4",
        _timm_vit(**_SCALED, reg_tokens=4, no_embed_class=True),
        _timm_answer,
        _ANTIALIAS,
    ),
    "DINOv2 g": Case("DINOv2_g14", _gated(**_SCALED), _timm_answer, _ANTIALIAS),
    "DINOv2 g reg4": Case(
        "DINOv2_g14_reg4",
        _gated(**_SCALED, reg_tokens=4, no_embed_class=True),
        _timm_answer,
        _ANTIALIAS,
    ),
    "DINO": Case("DINO_B16", _timm_vit(), _timm_answer, _ANTIALIAS),
    "SigLIP": Case(
        "SigLIP_B16",
        _timm_vit(class_token=False, global_pool="map", act_layer="gelu_tanh"),
        _timm_answer,
        _ANTIALIAS,
        pooling="map",
    ),
    "CLIP": Case(
        "CLIP_H14",
        _timm_vit(pre_norm=True, norm_layer=_norm_of_clip),
        _timm_answer,
        _ANTIALIAS,
    ),
    "CLIP quickgelu": Case(
        "CLIP_B16",
        _timm_vit(pre_norm=True, norm_layer=_norm_of_clip, act_layer="quick_gelu"),
        _timm_answer,
        _ANTIALIAS,
    ),
    "MAE": Case("MAE_B16", _timm_vit(), _timm_answer, _ANTIALIAS, options={"classifier": "token"}),
    "MAE fine-tuned": Case(
        "MAE_B16", _timm_vit(global_pool="avg"), _timm_answer, _ANTIALIAS, pooling="avg"
    ),
    "DeiT": Case("DeiT_B16", _timm_vit(), _timm_answer, _ANTIALIAS),
    "DeiT distilled": Case(
        "DeiT_B16_distilled",
        _timm_class("deit", "VisionTransformerDistilled"),
        _timm_distilled_answer,
        _ANTIALIAS,
    ),
    "DeiT III": Case(
        "DeiT3_B16", _timm_vit(**_SCALED, no_embed_class=True), _timm_answer, _ANTIALIAS
    ),
    "I-JEPA": Case(
        "IJEPA_H14",
        _timm_vit(class_token=False, global_pool="avg", fc_norm=False),
        _timm_answer,
        _ANTIALIAS,
        pooling="avg",
    ),
    "TIPSv2": Case(
        "TIPSv2_B14",
        _timm_vit(**_SCALED, reg_tokens=1, no_embed_class=True),
        _timm_answer,
        _ANTIALIAS,
    ),
    "TIPSv2 g": Case(
        "TIPSv2_g14",
        _gated(**_SCALED, reg_tokens=1, no_embed_class=True),
        _timm_answer,
        _ANTIALIAS,
    ),
    "DINOv3": Case(
        "DINOv3_B16",
        _eva(qkv_bias=False),
        _timm_answer,
        options={"classifier": "gap"},
        pooling="avg",
    ),
    "DINOv3 qkvb": Case(
        "DINOv3_B16",
        _eva(qkv_bias=True),
        _timm_answer,
        options={"classifier": "gap"},
        pooling="avg",
    ),
    "DINOv3 S+": Case(
        "DINOv3_S16plus",
        _eva(qkv_bias=True, swiglu_mlp=True, swiglu_align_to=8),
        _timm_answer,
        options={"classifier": "gap"},
        pooling="avg",
    ),
    "DINOv3 7B": Case(
        "DINOv3_7B16",
        _eva(qkv_bias=False, swiglu_mlp=True, swiglu_align_to=64),
        _timm_answer,
        options={"classifier": "gap"},
        pooling="avg",
    ),
}

# --- Transformers


def _transformers(name, config, **options):
    def build(size, sizes):
        import transformers

        options.setdefault("num_labels", CLASSES)
        return getattr(transformers, name)(
            getattr(transformers, config)(**{**_name_for_transformers(sizes), **options})
        )

    return build


def _dinov2(name, config="Dinov2Config", **options):
    def build(size, sizes):
        ratio = sizes.mlp_dim // sizes.width
        if options.get("use_swiglu_ffn"):  # two thirds of it are the width of the gated MLP
            ratio = sizes.mlp_dim * 3 // (2 * sizes.width)
        return _transformers(name, config, mlp_ratio=ratio, **options)(size, sizes)

    return build


def _tower(name, config, **options):
    def build(size, sizes):
        import transformers

        text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        text |= {"intermediate_size": 16, "vocab_size": 20, "bos_token_id": 0, "eos_token_id": 1}
        return getattr(transformers, name)(
            getattr(transformers, config)(
                vision_config=_name_for_transformers(sizes) | options.get("vision_config", {}),
                text_config=text,
                **{key: value for key, value in options.items() if key != "vision_config"},
            )
        )

    return build


def _answer(part, **options):
    """The encoder is `part` of a model with a head, or the model."""

    def answer(model, x):
        encoder = getattr(model, part) if part else model
        tokens = encoder(x, **options).last_hidden_state
        logits = model(x, **options).logits if part else None
        return tokens, tokens[:, 0], logits

    return answer


_RESIZED = {"interpolate_pos_encoding": True}


def _mean_answer(part):
    def answer(model, x):
        tokens, _, logits = _answer(part, **_RESIZED)(model, x)
        return tokens, tokens.mean(1), logits

    return answer


def _siglip_answer(model, x):
    model = getattr(model, "vision_model", model)
    found = model(x, **_RESIZED)
    return found.last_hidden_state, found.pooler_output, None


def _clip_answer(model, x):
    """CLIP's tokens have no last norm, and only the class token gets it."""
    encoder = getattr(model, "vision_model", model)
    found = encoder(x, **_RESIZED)
    tokens = encoder.post_layernorm(found.last_hidden_state)
    projection = getattr(model, "visual_projection", None)
    vector = found.pooler_output
    return tokens, vector, None if projection is None else projection(vector)


_ENCODER_ONLY: dict[str, Any] = {"options": None}
_QUICK = {"hidden_act": "quick_gelu"}
_OF_VIT = {"layer_norm_eps": 1e-6}
TRANSFORMERS_CASES = {
    "DINOv2": Case(
        "DINOv2_B14",
        _dinov2("Dinov2Model"),
        _answer(""),
        **_ENCODER_ONLY,
    ),
    "DINOv2 classifier": Case(
        "DINOv2_B14",
        _dinov2("Dinov2ForImageClassification"),
        _answer("dinov2"),
    ),
    "DINOv2 reg4": Case(
        "DINOv2_B14_reg4",
        _dinov2("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
        _answer(""),
        _ANTIALIAS,
        **_ENCODER_ONLY,
    ),
    "DINOv2 reg4 classifier": Case(
        "DINOv2_B14_reg4",
        _dinov2("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig"),
        _answer("dinov2_with_registers"),
        _ANTIALIAS,
    ),
    "DINOv2 g": Case(
        "DINOv2_g14",
        _dinov2("Dinov2Model", use_swiglu_ffn=True),
        _answer(""),
        **_ENCODER_ONLY,
    ),
    "DINOv2 g reg4": Case(
        "DINOv2_g14_reg4",
        _dinov2(
            "Dinov2WithRegistersModel",
            "Dinov2WithRegistersConfig",
            use_swiglu_ffn=True,
        ),
        _answer(""),
        _ANTIALIAS,
        **_ENCODER_ONLY,
    ),
    "DINO": Case(
        "DINO_B16", _transformers("ViTModel", "ViTConfig"), _answer("", **_RESIZED), **_ENCODER_ONLY
    ),
    "ViT classifier": Case(
        "ViT_B16",
        _transformers("ViTForImageClassification", "ViTConfig"),
        _answer("vit", **_RESIZED),
    ),
    "CLIP": Case(
        "CLIP_B16", _tower("CLIPModel", "CLIPConfig", projection_dim=PROJECTION), _clip_answer
    ),
    "CLIP image tower": Case(
        "CLIP_B16",
        _transformers(
            "CLIPVisionModelWithProjection", "CLIPVisionConfig", projection_dim=PROJECTION
        ),
        _clip_answer,
    ),
    "CLIP without projection": Case(
        "CLIP_H14",
        _transformers("CLIPVisionModel", "CLIPVisionConfig", hidden_act="gelu"),
        _clip_answer,
        **_ENCODER_ONLY,
    ),
    "SigLIP": Case(
        "SigLIP_B16",
        _tower("SiglipModel", "SiglipConfig"),
        _siglip_answer,
        pooling="map",
        **_ENCODER_ONLY,
    ),
    "SigLIP image tower": Case(
        "SigLIP_B16",
        _transformers("SiglipVisionModel", "SiglipVisionConfig"),
        _siglip_answer,
        pooling="map",
        **_ENCODER_ONLY,
    ),
    "SigLIP classifier": Case(
        "SigLIP_B16",
        _tower("SiglipForImageClassification", "SiglipConfig", num_labels=CLASSES),
        _mean_answer("vision_model"),
        options={"classifier": "gap"},
        pooling="avg",
    ),
    "DINOv3": Case(
        "DINOv3_B16",
        _transformers("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=4),
        _answer(""),
        **_ENCODER_ONLY,
    ),
    "DINOv3 S+": Case(
        "DINOv3_S16plus",
        _transformers(
            "DINOv3ViTModel",
            "DINOv3ViTConfig",
            num_register_tokens=4,
            use_gated_mlp=True,
            hidden_act="silu",
        ),
        _answer(""),
        **_ENCODER_ONLY,
    ),
    "DINOv3 7B": Case(
        "DINOv3_7B16",
        _transformers(
            "DINOv3ViTModel",
            "DINOv3ViTConfig",
            num_register_tokens=4,
            use_gated_mlp=True,
            hidden_act="silu",
            query_bias=False,
            value_bias=False,
        ),
        _answer(""),
        **_ENCODER_ONLY,
    ),
    "MAE": Case(
        "MAE_B16",
        _transformers("ViTMAEModel", "ViTMAEConfig", mask_ratio=0.0, **_OF_VIT),
        lambda model, x: _unshuffled(model, x),
        **_ENCODER_ONLY,
    ),
    "MAE with decoder": Case(
        "MAE_B16",
        _transformers("ViTMAEForPreTraining", "ViTMAEConfig", mask_ratio=0.0),
        lambda model, x: _unshuffled(model.vit, x),
        **_ENCODER_ONLY,
    ),
    "DeiT": Case(
        "DeiT_B16_distilled",
        _transformers("DeiTModel", "DeiTConfig"),
        _answer("", **_RESIZED),
        **_ENCODER_ONLY,
    ),
    "DeiT classifier": Case(
        "DeiT_B16_distilled",
        _transformers("DeiTForImageClassification", "DeiTConfig"),
        _answer("deit", **_RESIZED),
    ),
    "DeiT distilled": Case(
        "DeiT_B16_distilled",
        _transformers("DeiTForImageClassificationWithTeacher", "DeiTConfig"),
        _answer("deit", **_RESIZED),
    ),
    "I-JEPA": Case(
        "IJEPA_H14",
        _transformers("IJepaModel", "IJepaConfig"),
        _mean_answer(""),
        pooling="avg",
        **_ENCODER_ONLY,
    ),
    "I-JEPA classifier": Case(
        "IJEPA_H14",
        _transformers("IJepaForImageClassification", "IJepaConfig"),
        _mean_answer("ijepa"),
        pooling="avg",
    ),
}


def _unshuffled(model, x):
    """MAE shuffles its tokens even if it keeps all of them."""
    import torch

    patch = model.config.patch_size
    noise = torch.arange((x.shape[2] // patch) * (x.shape[3] // patch))[None].repeat(len(x), 1)
    tokens = model(x, noise=noise, **_RESIZED).last_hidden_state
    return tokens, tokens[:, 0], None


# --- OpenCLIP


def _openclip(**options):
    def build(size, sizes):
        import torch
        from open_clip.transformer import QuickGELU, VisionTransformer

        return VisionTransformer(
            image_size=size,
            patch_size=sizes.patch_size,
            width=sizes.width,
            layers=sizes.depth,
            heads=sizes.num_heads,
            mlp_ratio=sizes.mlp_dim / sizes.width,
            output_dim=PROJECTION,
            act_layer=QuickGELU if options.get("quick") else torch.nn.GELU,
        )

    return build


def _openclip_answer(model, x):
    embedded = model._embeds(x)
    tokens = model.ln_post(model.transformer(embedded))
    return tokens, tokens[:, 0], model(x)


OPENCLIP_CASES = {
    "CLIP": Case("CLIP_H14", _openclip(), _openclip_answer, _ANTIALIAS),
    "CLIP quickgelu": Case("CLIP_B16", _openclip(quick=True), _openclip_answer, _ANTIALIAS),
}

# --- recorded by golden/families/make.py

ALL = {"timm": TIMM_CASES, "transformers": TRANSFORMERS_CASES, "open_clip": OPENCLIP_CASES}
RECORDED_SIZES = Sizes(width=16, depth=1, mlp_dim=32)
RECORDED = {
    "timm": (
        *("DINOv2", "DINOv2 reg4", "DINOv2 g", "SigLIP", "CLIP", "MAE fine-tuned"),
        *("DeiT distilled", "DeiT III", "DINOv3 qkvb", "DINOv3 S+"),
    ),
    "transformers": (
        *("DINOv2 classifier", "DINOv2 reg4", "DINOv2 g", "CLIP image tower", "SigLIP image tower"),
        *("DINOv3", "DINOv3 S+", "DeiT distilled", "I-JEPA classifier", "MAE"),
    ),
    "open_clip": ("CLIP quickgelu",),
}


def name_folder(package: str, name: str) -> str:
    """Returns the name of the folder of a recorded model."""
    return f"{package}_{name.lower().replace(' ', '_').replace('+', 'plus')}"
