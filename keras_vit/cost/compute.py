"""Multiply-adds of a forward pass, FLOPs, and the exaFLOPs of a training run.

Convention: a MAC is a multiplication with its addition inside a matrix product or a convolution,
and counts as two FLOPs. Not counted are additions of biases, positions and shortcuts,
normalizations, activations, gates, softmax, layer scale, rotations, pooling, the standardization of
kernels, and the resampling of position tables. TensorFlow's profiler counts the same FLOPs for
`MatMul`, `BatchMatMulV2` and `Conv2D`. For all operations at 224 pixels it counts 0.3 to 0.6 % more
for ViTs and hybrids, and 2.2 % more for a BiT, whose kernels are standardized.

Table 6 of arXiv:2010.11929 follows from closed forms too, see `pretraining_exaflops`.
"""

from keras_vit.cost.parts import Convolution, attentions_of_block, parts_of_trunk
from keras_vit.cost.rows import check_options, native_size, tokens
from keras_vit.options import Classifier, PositionEmbedding, Size, grid_of, resolve_classifier
from keras_vit.variants import ResNetVariant, ViTVariant

JFT_IMAGES, JFT_CLASSES = 303_021_387, 18_291


def macs(
    variant: ViTVariant | ResNetVariant,
    image_size: Size | None = None,
    *,
    classes: int | None = 1000,
    representation_size: int | None = None,
    classifier: Classifier | None = None,
    position_embedding: PositionEmbedding = "learned_1d",
    channels: int = 3,
    count_padding: bool = True,
) -> int:
    """Counts the multiply-adds of a forward pass for one image, by the convention of this module.

    Args:
        variant, image_size, classes, representation_size, classifier, channels: See `parameters`.
        position_embedding: See `parameters`. Only "relative" adds multiply-adds, for the products
            of queries and relative embeddings.
        count_padding: Whether to count the products of convolutions with padding. TensorFlow's
            profiler counts them; XLA and the numbers of Table 6 of arXiv:2010.11929 do not.

    Raises:
        ValueError: As `parameters` does.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> round(macs(VIT_VARIANTS["ViT_B16"]) / 1e9, 2)
        17.56
    """
    check_options(
        variant,
        classes=classes,
        representation_size=representation_size,
        classifier=classifier,
        position_embedding=position_embedding,
    )
    image_size = image_size or native_size(variant)
    if not isinstance(variant, ViTVariant):
        return _count_trunk(variant, image_size, channels, count_padding) + variant.out_channels * (
            classes or 0
        )
    width, stem = variant.width, variant.stem
    rows, columns = grid_of(variant, image_size)
    patch_values = variant.patch_size**2 * (stem.out_channels if stem else channels)
    embedding = rows * columns * patch_values * width
    embedding += _count_trunk(stem, image_size, channels, count_padding) if stem else 0
    count, mlp = tokens(variant, image_size, classifier=classifier), 2 * width * variant.mlp_dim
    attentions = attentions_of_block(variant, image_size, classifier, position_embedding)
    gate = width * variant.mlp_dim if variant.mlp == "swiglu" else 0
    blocks = variant.depth * sum(attention.macs + count * (mlp + gate) for attention in attentions)
    # One query and all tokens: projections and MLP of the query, keys and values of all tokens.
    classifier = resolve_classifier(variant, classifier)
    is_map = classifier == "map"
    pooling = 2 * width**2 + 2 * count * (width**2 + width) + mlp if is_map else 0
    features = 2 * width if classifier == "token_gap" else width
    head = features * (representation_size or 0)
    head += (representation_size or features) * (classes or 0)
    head += width * (classes or 0) if variant.distilled and variant.distilled_head else 0
    return embedding + blocks + pooling + head


def _count_trunk(
    resnet: ResNetVariant, image_size: Size, channels: int, count_padding: bool
) -> int:
    return sum(
        part.macs(count_padding) if isinstance(part, Convolution) else part.macs
        for part in parts_of_trunk(resnet, image_size, channels)
    )


def flops(macs: int) -> int:
    """Returns the FLOPs of a number of multiply-adds, two each."""
    return 2 * macs


def training_exaflops(macs: int, images: int) -> float:
    """Returns the compute of a training run in 1e18 FLOPs.

    Each MAC and image costs six FLOPs, two in the forward and four in the backward pass.

    Args:
        macs: Multiply-adds of a forward pass for one image.
        images: Number of images in all epochs together.

    Example:
        >>> round(training_exaflops(17_563_828_224, 7 * 303_021_387), 1)  # ViT-B/16, seven epochs of JFT-300M
        223.5
    """
    return 6 * macs * images / 1e18


def pretraining_exaflops(
    variant: ViTVariant | ResNetVariant,
    *,
    epochs: float,
    images: int = JFT_IMAGES,
    classes: int = JFT_CLASSES,
    image_size: Size = (224, 224),
) -> float:
    """Returns the compute of the paper's pre-training in 1e18 FLOPs.

    By default it is the pre-training on JFT-300M, the last column of Table 6. ViTs and hybrids have
    a tanh layer of the same width before the classes. Products with padding are not counted, as in
    XLA; with them, ResNets would be 3.5 to 5 % above Table 6. Plain ViTs agree with the table
    within 0.13 %, hybrids within 0.5 %, ResNets within 0.7 %. Three rows are exceptions: ViT-B/32
    (printed 55, here 56.3) and ResNet50x1 (printed 50, here 50.7), where one unit of the last digit
    is 2 %, and R50+ViT-L/16 after 7 epochs: 859 is printed, but half of the printed 1668 for 14
    epochs is 834 (here 832.8).

    Args:
        variant: Row of `VIT_VARIANTS` or `RESNET_VARIANTS`.
        epochs: Number of epochs.
        images: Number of images of the data set. Default: JFT-300M.
        classes: Outputs of the head. Default: those of JFT-300M.
        image_size: (rows, columns) in pixels.

    Example:
        >>> from keras_vit.variants import VIT_VARIANTS
        >>> round(pretraining_exaflops(VIT_VARIANTS["ViT_L16"], epochs=14))  # Table 6: 1567
        1567

    Source: arXiv:2010.11929, Table 6 and section 4.1; 18,291 classes: arXiv:1912.11370 (BiT); the
        number of images: a published configuration of Google's.
    """
    hidden = variant.width if isinstance(variant, ViTVariant) else None
    per_image = macs(
        variant, image_size, classes=classes, representation_size=hidden, count_padding=False
    )
    return training_exaflops(per_image, 1) * images * epochs
