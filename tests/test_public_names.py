"""What users write is frozen here: a change of this file is a change of the interface, and belongs
in the CHANGELOG.
"""

import inspect
import subprocess
import sys

import pytest

import keras_vit
from keras_vit import layers, models

MODELS = [
    *(
        "ViT_Ti16",
        "ViT_S32",
        "ViT_S16",
        "ViT_B32",
        "ViT_B16",
        "ViT_B8",
        "ViT_L32",
        "ViT_L16",
        "ViT_H14",
    ),
    *(
        "R_ViT_Ti16",
        "R26_ViT_S32",
        "R26_ViT_B32",
        "R50_ViT_B32",
        "R50_ViT_B16",
        "R50_ViT_L32",
        "R50_ViT_L16",
    ),
    *("AxialViT_B32", "AxialViT_B16"),
    *("BiT_R50x1", "BiT_R50x3", "BiT_R101x1", "BiT_R101x3", "BiT_R152x2", "BiT_R152x4"),
    *(
        "ResNet50x1",
        "ResNet50x2",
        "ResNet101x1",
        "ResNet152x1",
        "ResNet152x2",
        "ResNet200x3",
        "AxialResNet50",
    ),
]
FAMILIES = [
    "SigLIP_B16",
    "SigLIP_L16",
    "SigLIP_So400m14",
    "SigLIP_So400m16",
    "SigLIP_gopt16",
    "DINO_S16",
    "DINO_S8",
    "DINO_B16",
    "DINO_B8",
    "MAE_B16",
    "MAE_L16",
    "MAE_H14",
    "IJEPA_H14",
    "IJEPA_H16",
    "IJEPA_G16",
    "DeiT_Ti16",
    "DeiT_S16",
    "DeiT_B16",
    "DeiT_Ti16_distilled",
    "DeiT_S16_distilled",
    "DeiT_B16_distilled",
    "DeiT3_S16",
    "DeiT3_M16",
    "DeiT3_B16",
    "DeiT3_L16",
    "DeiT3_H14",
    "CLIP_B32",
    "CLIP_B16",
    "CLIP_L14",
    "CLIP_H14",
    "CLIP_g14",
    "CLIP_bigG14",
    "DINOv2_S14",
    "DINOv2_B14",
    "DINOv2_L14",
    "DINOv2_g14",
    "DINOv2_S14_reg4",
    "DINOv2_B14_reg4",
    "DINOv2_L14_reg4",
    "DINOv2_g14_reg4",
    "TIPSv2_B14",
    "TIPSv2_L14",
    "TIPSv2_So400m14",
    "TIPSv2_g14",
    "DINOv3_S16",
    "DINOv3_S16plus",
    "DINOv3_B16",
    "DINOv3_L16",
    "DINOv3_H16plus",
    "DINOv3_7B16",
]
FUNCTIONS = {
    "application": "(variant)",
    "decode_predictions": "(preds, top=5)",
    "list_models": "()",
    "list_weights": "(model)",
    "preprocess_input": "(x, data_format=None)",
    "replace_head": "(model, classes, classifier_activation='softmax')",
    "save_checkpoint": "(model, path, layout=None, *, labels=None)",
}
LAYERS = {
    "AddPositionEmbs": "(grid, num_prefix_tokens=0, *, kind='learned_1d', interpolation='bilinear')",
    "AttentionPooling": "(num_heads, mlp_dim, *, norm_epsilon, gelu)",
    "AxialTransformerBlock": "(num_heads, mlp_dim, *, grid, norm_epsilon, gelu, dropout_rate=0.0, "
    "attention_dropout_rate=0.0, drop_path_rate=0.0, relative_positions=False)",
    "AxialUnit": "(filters, *, strides, norm_epsilon, std_epsilon, variance_epsilon)",
    "BiTMaxPool": "(padding='ignored')",
    "BiTUnit": "(filters, *, strides, norm_epsilon, std_epsilon, variance_epsilon)",
    "ClassToken": "()",
    "GroupNorm": "(groups, *, epsilon, gamma_initializer='ones')",
    "KeepTokens": "(num_prefix_tokens=0)",
    "LayerNorm": "(epsilon)",
    "LayerScale": "()",
    "MaskTokens": "(rate=0.5, *, mask_share=0.8, swap_share=0.1, seed=None)",
    "MlpBlock": "(mlp_dim, *, gelu, dropout_rate=0.0)",
    "MultiHeadDotProductAttention": "(num_heads, *, dropout_rate=0.0, relative_positions=None, query_chunk=None, "
    "bias='all')",
    "PadToPatches": "(patch_size, num_halvings=0)",
    "PatchEmbedding": "(patch_size, width, *, flatten=True, use_bias=True)",
    "PatchExtract": "(patch_size)",
    "PatchNormalization": "(epsilon)",
    "PixelNormalization": "(mean, std)",
    "RandomMask": "(mask_share=0.75)",
    "Registers": "(count, *, place)",
    "RestoreTokens": "(num_prefix_tokens=0)",
    "RotaryPositions": "(head_dim, num_prefix_tokens=0)",
    "StdConv2D": "(filters, kernel_size, *, strides=1, padding='same', std_epsilon, variance_epsilon)",
    "StemUnit": "(filters, *, strides, norm_epsilon, std_epsilon, variance_epsilon)",
    "SwiGluBlock": "(mlp_dim, *, dropout_rate=0.0)",
    "TokenPooling": "(mode, num_prefix_tokens)",
    "TransformerBlock": "(num_heads, mlp_dim, *, norm_epsilon, gelu, dropout_rate=0.0, attention_dropout_rate=0.0, "
    "drop_path_rate=0.0, relative_positions=None, query_chunk=None, mlp='gelu', layer_scale=False, "
    "attention_bias='all')",
}
VIT_OPTIONS = {
    "include_preprocessing": False,
    "pad": False,
    "classifier": "token",
    "representation_size": None,
    "head_bias": 0.0,
    "position_embedding": "learned_1d",
    "position_placement": "stem",
    "interpolation": None,
    "checkpoint_grid": None,
    "gelu": None,
    "norm_epsilon": None,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "stochastic_depth_rate": 0.0,
    "query_chunk": None,
}
RESNET_OPTIONS = {"include_preprocessing": False, "head_bias": 0.0, "pool_padding": "ignored"}


def _signature(function) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_public_names():
    assert sorted(keras_vit.__all__) == sorted(
        [*MODELS, *FAMILIES, *FUNCTIONS, "__version__", "layers", "models", "variants"]
    )
    assert sorted(models.__all__) == [
        "embed_patches",
        "encode_tokens",
        "resnet",
        "vision_transformer",
    ]
    assert keras_vit.list_models() == [*MODELS, *FAMILIES]


def test_signatures_of_functions():
    assert {name: _signature(getattr(keras_vit, name)) for name in FUNCTIONS} == FUNCTIONS


def test_what_needs_tensorflow_is_imported_on_first_use():
    assert {"data", "export", "finetune", "train"} <= {*dir(keras_vit)} - {*keras_vit.__all__}
    assert _signature(keras_vit.finetune) == (
        "(model, data, output, *, weights='imagenet21k', validation=None, image_size=None, "
        "pixels=None, steps=None, "
        "batch_size=None, learning_rate=0.01, seed=0)"
    )


EXPORTERS = {
    "saved_model": "(model, path, *, class_names=(), eval_crop='resize', top=5, attention=False, precision='float32', "
    "any_size=False, image_size=None, max_pixels=67108864, identity=None, images=None, "
    "num_images=8, "
    "calibration=None, warmup=True)",
}


_AFTER_THE_IMPORT = """
import gc, sys
import keras_vit
assert gc.isenabled()
print(*(name for name in sys.modules if name.startswith("keras_vit.")))
import keras
known = keras.saving.get_custom_objects()
assert {f"keras_vit>{name}" for name in keras_vit.layers.__all__} <= {*known}
assert "keras_vit>ClassTokenModel" in known
for name in dir(keras_vit):
    getattr(keras_vit, name)
keras_vit.pixels.declare
"""


@pytest.mark.tensorflow
def test_the_import_loads_what_keras_must_know_and_nothing_else():
    """Weights, applications and counts take longer to load than all layers."""
    done = subprocess.run(
        [sys.executable, "-c", _AFTER_THE_IMPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    floors = {"layers", "models", "kernels", "options", "variants", "grid", "levels", "graph"}
    assert loaded <= floors | {"quiet", "suggestions"}, loaded - floors


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match="module 'keras_vit' has no attribute 'ViT_B17'"):
        _ = keras_vit.ViT_B17


def test_signatures_of_exporters():
    assert {name: _signature(getattr(keras_vit.export, name)) for name in EXPORTERS} == EXPORTERS


def test_signatures_of_layers():
    constructors = {name: getattr(layers, name) for name in layers.__all__}
    # A layer without arguments of its own has Keras's.
    found = {
        name: _signature(c) if "__init__" in vars(c) else "()" for name, c in constructors.items()
    }
    assert found == LAYERS


def test_options_of_models():
    for name in MODELS:
        parameters = inspect.signature(getattr(keras_vit, name)).parameters.values()
        options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        expected = VIT_OPTIONS if "ViT" in name else RESNET_OPTIONS
        # A class token lies in no row and no column.
        assert options == (
            expected | {"classifier": "gap"} if name.startswith("AxialViT") else expected
        ), name
