"""Checkpoints in little, under canonical names: what the tests of the renaming tables rename."""

import functools
from dataclasses import replace

import numpy as np
from synthetic_checkpoint import array_shapes

from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS

VARIANTS = VIT_VARIANTS | RESNET_VARIANTS
POSITIONS = "Transformer/posembed_input/pos_embedding"
BLOCK = "Transformer/encoderblock_0"
TINY = replace(
    VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=6, depth=1, num_heads=2, mlp_dim=10
)


def values(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def arrays_of(row, **options):
    shapes = array_shapes(row, **{"classes": 5, **options})
    return {name: values(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}


def tiny(**options):
    return arrays_of(TINY, image_size=16, **options)


@functools.cache
def numbered(name):
    """A model of the table in little, in which no two numbers are equal."""
    row, scale = VARIANTS[name], 32 if name in RESNET_VARIANTS else 16
    row = row if name in RESNET_VARIANTS else replace(row, mlp_dim=112)
    arrays, first = {}, 0
    for key, shape in array_shapes(row, classes=5).items():
        shape = shape if key == POSITIONS else tuple(n // scale if n >= 64 else n for n in shape)
        arrays[key] = np.arange(first, first + np.prod(shape), dtype="int32").reshape(shape)
        first += arrays[key].size
    return arrays


def heads_of(name):
    return VIT_VARIANTS[name].num_heads if name in VIT_VARIANTS else None


def assert_each_number_once(received, expected):
    counts = np.bincount(np.concatenate([x.ravel() for x in received.values()]))
    assert counts.size == sum(x.size for x in expected.values()) and (counts == 1).all()


def assert_same(received, expected):
    assert sorted(received) == sorted(expected)
    for name, x in expected.items():
        assert received[name].dtype == x.dtype, name
        np.testing.assert_array_equal(received[name], x, err_msg=name, strict=True)


def shapes_of(arrays):
    return {name: x.shape for name, x in arrays.items()}
