"""Constants that files of weights do not contain, from the code that was published with them. With
a wrong one a model is slightly wrong, and no file tells.
"""

import pytest

from keras_vit.variants import VARIANTS

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("model", "epsilon", "gelu", "crop"),
    [
        # vision_transformer: flax's LayerNorm and `nn.gelu`
        ("ViT_B16", 1e-6, "tanh", None),
        ("R50_ViT_B16", 1e-6, "tanh", None),
        # `partial(nn.LayerNorm, eps=1e-6)` and `nn.GELU` of deit, dino, mae, dinov2
        ("DeiT_B16", 1e-6, "exact", 0.9),
        ("DeiT3_B16", 1e-6, "exact", 1.0),
        ("DINO_S16", 1e-6, "exact", 0.875),
        ("MAE_B16", 1e-6, "exact", 0.875),
        ("IJEPA_H14", 1e-6, "exact", None),
        ("DINOv2_B14", 1e-6, "exact", 0.875),
        # dinov3: "layernormbf16", eps=1e-5
        ("DINOv3_S16", 1e-5, "exact", 0.875),
        # clip: PyTorch's default; `QuickGELU`
        ("CLIP_B16", 1e-5, "quick", 1.0),
        # big_vision
        ("SigLIP_B16", 1e-6, "tanh", None),
    ],
)
def test_a_row_has_the_constants_of_its_family(model, epsilon, gelu, crop):
    row = VARIANTS[model]
    assert (row.norm_epsilon, row.gelu, row.crop) == (epsilon, gelu, crop)


@pytest.mark.parametrize(
    ("model", "norm", "standardization"),
    [
        # big_vision bit.py: group normalization 1e-5; weights: 1e-10 inside of the root
        ("BiT_R50x1", 1e-5, (0.0, 1e-10)),
        # vision_transformer models_resnet.py: group normalization of flax; weights: 1e-5 outside
        ("ResNet50x1", 1e-6, (1e-5, 0.0)),
    ],
)
def test_a_resnet_has_the_constants_of_its_code(model, norm, standardization):
    row = VARIANTS[model]
    assert row.norm_epsilon == norm
    assert (row.std_epsilon, row.variance_epsilon) == standardization
