"""The catalog against arithmetic: sizes from parameter counts, URLs from their grammar, file names
field by field.
"""

import dataclasses
import re
from urllib.parse import unquote, urlsplit

import pytest

from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.weights.catalog import (
    CatalogRow,
    alternative_with_head,
    by_file_name,
    files_named,
    list_weights,
    lookup,
)

MODELS = [*VIT_VARIANTS, *RESNET_VARIANTS]
ROWS = [lookup(model, tag) for model in MODELS for tag in list_weights(model)]
LISTED = [row for row in ROWS if row.bytes]

# Width, depth, and what the patch embedding or the trunk makes of an image: counted by hand from
# the layouts.
SIZES = {"Ti": (192, 12), "S": (384, 12), "B": (768, 12), "L": (1024, 24), "H": (1280, 32)}
RUN = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


def row_id(row: CatalogRow) -> str:
    return f"{row.model}-{row.tag}"


def trunk_parameters(units: tuple[int, ...]) -> int:
    total, channels = 7 * 7 * 3 * 64 + 2 * 64, 64
    for stage, count in enumerate(units):
        width = 64 * 2**stage
        for unit in range(count):
            total += (
                channels * width
                + 9 * width * width
                + 4 * width * width
                + 2 * (width + width + 4 * width)
            )
            if unit == 0:
                total += channels * 4 * width + 2 * 4 * width
            channels = 4 * width
    return total


def parameters(row: CatalogRow) -> int:
    stem, size, patch = re.fullmatch(r"(?:(R\d*)_)?ViT_(Ti|S|B|L|H)(\d+)", row.model).groups()
    width, depth = SIZES[size]
    units = {
        None: None,
        "R": (),
        "R26": (2, 2, 2, 2),
        "R50": (3, 4, 9) if patch == "16" else (3, 4, 6, 3),
    }[stem]
    stride = 32 if stem == "R" else int(patch)
    if units is None:
        embedding = int(patch) ** 2 * 3 * width + width
    else:
        channels, side = (64, 8) if units == () else (256 * 2 ** (len(units) - 1), 1)
        embedding = trunk_parameters(units) + side * side * channels * width + width
    tokens = (row.image_size // stride) ** 2 + 1
    block = 4 * (width * width + width) + (2 * 4 * width * width + 5 * width) + 4 * width
    total = embedding + width + tokens * width + depth * block + 2 * width
    total += (width * width + width) if row.has_pre_logits else 0
    return total + width * row.classes + row.classes


def test_every_model_is_listed_or_known_to_have_no_file():
    without = [model for model in MODELS if not list_weights(model)]
    baselines = [
        "ResNet50x1",
        "ResNet50x2",
        "ResNet101x1",
        "ResNet152x1",
        "ResNet152x2",
        "ResNet200x3",
    ]
    axial = ["AxialViT_B32", "AxialViT_B16"], ["AxialResNet50"]
    assert without == ["R50_ViT_B32", "R50_ViT_L16", *axial[0], *baselines, *axial[1]]


def test_parameter_counts_of_this_test_are_the_published_ones():
    row = lookup("ViT_B16", "imagenet21k+imagenet2012_224")
    hybrid = dataclasses.replace(lookup("R50_ViT_B16", "imagenet"), image_size=224)
    assert (parameters(row), parameters(hybrid)) == (86567656, 98659112)


@pytest.mark.parametrize("row", LISTED, ids=row_id)
def test_listed_size_agrees_with_the_parameters(row):
    copies = 3 if row.file == "sam/ViT-S_16.npz" else 1  # with both moments of the optimiser
    expected = 4 * parameters(row) * copies
    assert (
        0
        <= row.bytes + row.bytes_tolerance - expected
        <= 0.002 * expected + 2 * row.bytes_tolerance
    )


def test_every_file_with_two_decimals_agrees_within_two_per_mille():
    precise = [
        row for row in LISTED if row.bytes_tolerance < 2**20 // 50 and "S_16" not in row.file
    ]
    assert len(precise) >= 12
    assert all(abs(row.bytes / (4 * parameters(row)) - 1) < 0.002 for row in precise)


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_url_is_https_and_percent_encoded(row):
    parts = urlsplit(row.url)
    assert (parts.scheme, parts.netloc, parts.query) == ("https", "storage.googleapis.com", "")
    assert re.fullmatch(r"/(vit|bit)_models/[A-Za-z0-9._/%-]+\.npz", parts.path)
    assert parts.path.count("+") == 0
    assert row.file == "/".join(unquote(parts.path).split("/")[-2:])


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_row_is_consistent(row):
    assert row.classes == {"imagenet2012": 1000, "imagenet21k": 21843}[row.dataset]
    assert row.head_is_valid is not row.has_pre_logits
    assert (row.gelu == "tanh") is ("ViT" in row.model)
    assert (row.accuracy is None) is (row.accuracy_source is None)
    assert row.accuracy is None or (70 < row.accuracy < 90 and row.classes == 1000)
    assert row.licence == "Apache-2.0"
    assert row.sha256 is None


@pytest.mark.parametrize("model", MODELS)
def test_tags_are_unique_and_name_their_rows(model):
    tags = list_weights(model)
    assert len(set(tags)) == len(tags)
    assert [lookup(model, tag).tag for tag in tags] == tags
    assert {lookup(model, tag).model for tag in tags} <= {model}


def test_fine_tunes_and_accuracies_are_those_of_the_readme():
    """Augmentation, weight decay, dropout, learning rate of the fine-tuning, and accuracy.

    Source: google-research/vision_transformer, README.md, "Expected ViT results".
    """
    tag = "augreg_in21k_ft_in1k_384"
    rows = {model: lookup(model, tag) for model in MODELS if tag in list_weights(model)}
    fields = r"-aug_(\w+)-wd_([\d.]+)-do_([\d.]+)-sd_\3--imagenet2012-steps_20k-lr_([\d.]+)-res_384"
    found = {
        model: (*re.search(fields, row.file).groups(), row.accuracy) for model, row in rows.items()
    }
    assert found == {
        "ViT_L16": ("strong1", "0.1", "0.0", "0.01", 85.59),
        "ViT_B16": ("medium1", "0.1", "0.0", "0.03", 85.49),
        "ViT_S16": ("light1", "0.03", "0.0", "0.03", 83.73),
        "R50_ViT_L32": ("medium1", "0.1", "0.1", "0.01", 85.99),
        "R26_ViT_S32": ("light1", "0.1", "0.0", "0.01", 83.85),
        "ViT_Ti16": ("none", "0.03", "0.0", "0.03", 78.22),
        "ViT_B32": ("light1", "0.1", "0.0", "0.01", 83.59),
        "ViT_S32": ("none", "0.1", "0.0", "0.01", 79.58),
        "R_ViT_Ti16": ("none", "0.03", "0.0", "0.03", 75.40),
    }


def test_imagenet_prefers_the_fine_tune_at_224():
    row = lookup("ViT_B16", "imagenet")
    assert (row.image_size, row.classes) == (224, 1000)
    assert row.url == lookup("ViT_B16", "augreg_in21k_ft_in1k_224").url
    assert row.url.endswith(f"augreg/{RUN}--imagenet2012-steps_20k-lr_0.01-res_224.npz")


def test_imagenet_falls_back_to_384():
    assert lookup("ViT_L32", "imagenet").file == "imagenet21k+imagenet2012/ViT-L_32.npz"
    assert lookup("ViT_L32", "imagenet").image_size == 384


def test_plus_in_a_name_is_percent_encoded():
    url = "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz"
    assert lookup("R50_ViT_B16", "imagenet21k+imagenet2012").url == url


def test_head_of_original_imagenet21k_file_is_not_valid():
    row = lookup("ViT_L16", "imagenet21k")
    assert (row.head_is_valid, row.has_pre_logits, row.classes) == (False, True, 21843)


def test_bit_has_its_own_tags():
    tags = [
        "imagenet",
        "imagenet21k",
        "bit_s",
        "bit_m",
        "bit_m_imagenet",
        "bit_distilled_224",
        "bit_distilled_160",
    ]
    assert list_weights("BiT_R50x1") == tags
    assert lookup("BiT_R50x1", "imagenet21k").file == "bit_models/BiT-M-R50x1.npz"
    assert lookup("BiT_R152x4", "imagenet").file == "bit_models/BiT-M-R152x4-ILSVRC2012.npz"
    # `bit_hyperrule.get_resolution`: images of more than 96 x 96 pixels become 512, cropped to 480.
    assert lookup("BiT_R50x1", "imagenet").image_size == 480
    assert lookup("BiT_R50x1", "bit_distilled_160").image_size == 160


@pytest.mark.parametrize("prefix", ["", "augreg/"])
@pytest.mark.parametrize("suffix", ["", ".npz"])
def test_augreg_file_is_found_by_google_s_name(prefix, suffix):
    row = lookup("ViT_B16", f"{prefix}{RUN}{suffix}")
    assert row == lookup("ViT_B16", "augreg_in21k")


@pytest.mark.parametrize(
    ("ending", "dataset", "classes", "image_size"),
    [
        ("imagenet2012-steps_20k-lr_0.01-res_384", "imagenet2012", 1000, 384),
        ("cifar100-steps_10k-lr_0.003-res_224", "cifar100", 100, 224),
        ("oxford_iiit_pet-steps_0k-lr_0.003-res_384", "oxford_iiit_pet", 37, 384),
        ("kitti-steps_2k-lr_0.01-res_224", "kitti", 4, 224),
        ("resisc45-steps_2k-lr_0.01-res_224", "resisc45", 45, 224),
    ],
)
def test_unlisted_augreg_fine_tune_is_read_from_its_name(ending, dataset, classes, image_size):
    stem = f"R26_S_32-i1k-300ep-lr_0.001-aug_strong2-wd_0.03-do_0.1-sd_0.1--{ending}"
    row = lookup("R26_ViT_S32", stem)
    assert (row.dataset, row.classes, row.image_size) == (dataset, classes, image_size)
    assert row.url == f"https://storage.googleapis.com/vit_models/augreg/{stem}.npz"
    assert (row.head_is_valid, row.has_pre_logits, row.bytes, row.tag) == (True, False, None, stem)


def test_bit_is_evaluated_as_it_was_trained():
    tags = {"bit_s": "resize_small_crop", "bit_m": "resize_small_crop", "bit_m_imagenet": "resize"}
    for tag, transform in tags.items():
        assert lookup("BiT_R50x1", tag).transform == transform
    assert lookup("BiT_R50x1", "bit_m_imagenet").image_size == 480


@pytest.mark.parametrize(("data", "classes"), [("i1k", 1000), ("i21k", 21843)])
def test_unlisted_augreg_pre_training_is_read_from_its_name(data, classes):
    row = lookup("R_ViT_Ti16", f"R_Ti_16-{data}-300ep-lr_0.001-aug_strong2-wd_0.03-do_0.1-sd_0.1")
    assert (row.classes, row.image_size, row.transform) == (classes, 224, "resize_small_crop")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (RUN.replace("medium1", "medium3"), "augmentation 'aug_medium3'"),
        (RUN.replace("i21k", "i22k"), "data set 'i22k'"),
        (RUN.replace("wd_0.1", "wd_0.2"), "weight decay 'wd_0.2'"),
        (RUN.replace("B_16", "B_17"), "model 'B_17'"),
        (RUN.replace("-sd_0.0", ""), "7 fields .* instead of 8"),
        (f"{RUN}--imagenet2012-steps_20k-lr_0.01", "3 fields .* instead of 4"),
        (
            f"{RUN}--cifar10-steps_20k-lr_0.01-res_256",
            "adaptation data set 'cifar10'.*resolution 'res_256'",
        ),
        (f"{RUN}--", "1 fields in ''"),
    ],
)
def test_malformed_augreg_name_says_which_field_did_not_parse(name, message):
    with pytest.raises(ValueError, match=f"not the name of an AugReg file.*{message}"):
        lookup("ViT_B16", name)


def test_augreg_name_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"is a file of ViT_B16, not of ViT_S16"):
        lookup("ViT_S16", RUN)


def test_unknown_tag_lists_the_valid_ones_and_the_closest():
    with pytest.raises(
        ValueError, match=r"'imagnet'. Did you mean imagenet.*Valid tags: imagenet, .*sam"
    ) as error:
        lookup("ViT_B16", "imagnet")
    assert all(tag in str(error.value) for tag in list_weights("ViT_B16"))


def test_model_without_files_says_so():
    with pytest.raises(
        ValueError,
        match=r"Unknown weights for R50_ViT_L16: 'imagenet'.*No file of this model was published",
    ):
        lookup("R50_ViT_L16", "imagenet")


def test_unknown_model_names_its_neighbours():
    with pytest.raises(ValueError, match=r"Unknown model 'vit_b16'. Did you mean ViT_B16"):
        list_weights("vit_b16")


def test_alternative_with_head_is_an_imagenet21k_file_with_a_valid_head():
    assert alternative_with_head(lookup("ViT_B16", "imagenet21k")) == "augreg_in21k"
    assert alternative_with_head(lookup("ViT_H14", "imagenet21k")) is None
    assert alternative_with_head(lookup("ViT_L32", "imagenet21k")) is None


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.tag not in ("imagenet", "imagenet21k")], ids=row_id
)
def test_row_is_found_by_its_url_and_by_its_path(row):
    assert by_file_name(row.url) == row
    assert by_file_name(f"anywhere/{row.file}") == row


def test_bare_name_that_three_directories_share_does_not_tell():
    assert by_file_name("ViT-B_16.npz") is None
    assert [row.tag for row in files_named("ViT-B_16.npz")] == [
        "imagenet21k",
        "imagenet21k+imagenet2012",
        "sam",
    ]


def test_bare_name_that_is_unique_tells():
    assert by_file_name("ViT-H_14.npz") == lookup("ViT_H14", "imagenet21k")
    assert by_file_name("/data/ViT-B_16-224.npz") == lookup(
        "ViT_B16", "imagenet21k+imagenet2012_224"
    )


def test_unlisted_augreg_file_is_found_by_its_path():
    assert by_file_name(f"/data/{RUN}--kitti-steps_2k-lr_0.01-res_224.npz").classes == 4


def test_url_on_another_server_is_not_the_catalog_s():
    assert by_file_name("https://example.org/vit/sam/ViT-B_16.npz") is None
    assert by_file_name("gs://vit_models/sam/ViT-B_16.npz") == lookup("ViT_B16", "sam")


def test_unknown_name_is_none():
    assert by_file_name("model.safetensors") is None


def test_rows_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        lookup("ViT_B16", "sam").url = "https://example.org/other.npz"
