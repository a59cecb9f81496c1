"""The report: what is written for which model, that its numbers are those of the model, and what it
says is missing.
"""

import base64
import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import keras
import numpy as np
import pytest
from tiny_families import NAMES, tiny_row

pytest.importorskip("matplotlib")

from keras_vit import cost, models  # noqa: E402
from keras_vit.analyze import attention, attention_part, model_part  # noqa: E402
from keras_vit.analyze.attention import (  # noqa: E402
    AttentionSummary,
    attention_maps,
    attention_rollout,
    has_attention,
    summarize_attention,
)
from keras_vit.analyze.report import FILES, write_report  # noqa: E402
from keras_vit.analyze.subject import Absent, Photo, Shown, Subject  # noqa: E402
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS, ResNetVariant, ViTVariant  # noqa: E402

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
ATTENTION = {
    "overlays.png",
    "rollout.csv",
    "heads.png",
    "attention_distance.png",
    "attention_distance.csv",
}
FILTERS = {"filters.png", "filter_components.csv"}
POSITIONS = {"positions.png", "position_similarity.csv"}
CURVES = {"train/loss": [(1, 2.5), (2, 1.25)], "train/images_per_second": [(1, 9.0)]}


@pytest.fixture(scope="module")
def vit() -> keras.Model:
    """One for many tests: what is compiled for it is compiled once."""
    row = replace(
        VIT_VARIANTS["ViT_Ti16"],
        name="tiny",
        patch_size=8,
        width=16,
        depth=2,
        num_heads=2,
        mlp_dim=32,
    )
    return models.vision_transformer(row, keras.Input((32, 32, 3)), classes=5)


def images(count: int, height: int = 32, width: int = 32) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (count, height, width, 3)).astype("float32")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple]:
    """Pictures are a dot, which is quicker; by file name, what would have been drawn."""
    drawn = {}

    def draw(path: Path, *arguments) -> None:
        drawn[path.name] = arguments
        path.write_bytes(DOT)

    for module in (attention_part, model_part):
        for name in vars(module):
            if name.startswith("draw_"):
                monkeypatch.setattr(module, name, draw)
    return drawn


def subject_of(model: keras.Model, names: Sequence[str] = ("a.png", "b.png"), **options) -> Subject:
    """With photos that the model sees as they are, twice as large and twice as wide in their own
    aspect.
    """
    seen = images(len(names), *model.input_shape[1:3])
    photos = [Photo(name) for name in names]
    shown = [
        Shown(
            photo=photo,
            seen=(pixels + 1) * np.float32(127.5),
            picture=pixels.repeat(2, axis=0).repeat(4, axis=1),
        )
        for photo, pixels in zip(photos, seen, strict=True)
    ]
    attention = summarize_attention(model, seen) if has_attention(model) else None
    defaults = {
        "title": "tiny",
        "model": model,
        "attention": attention,
        "photos": photos,
        "shown": shown,
    }
    return Subject(**{**defaults, **options})


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"report.html", "photos.csv"}


class Read(HTMLParser):
    """The text of a page, and the texts that stand for its pictures."""

    def __init__(self, path: Path):
        super().__init__()
        self.parts, self.pictures = [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.parts).split())

    def handle_data(self, data):
        self.parts.append(data)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.pictures.append(dict(attributes))


def test_a_vit_has_attention_filters_and_positions(vit: keras.Model, tmp_path: Path):
    path = write_report(subject_of(vit, curves=CURVES), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.html"
    assert files(path.parent) == ATTENTION | FILTERS | POSITIONS | {"training_curve.png"}
    read = Read(path)
    assert len(read.pictures) == 6 and all(
        picture["alt"].endswith(".") for picture in read.pictures
    )
    assert "train/loss 1.25 at step 2" in read.pictures[-1]["alt"]
    assert f"parameters {vit.count_params():,}" in read.text
    assert (
        "grid 4 x 4 patches of 8 x 8 pixels" in read.text
        and "attention 2 layers of 2 heads" in read.text
    )
    assert "Accuracy against compute The model is not in the table of models." in read.text
    assert all(name in read.text for name in files(path.parent))
    assert "compute.png" not in read.text


@pytest.mark.parametrize(("mlp", "matrices"), [("gelu", 2), ("swiglu", 3)])
def test_the_cost_of_a_model_that_has_no_name_is_read_off_its_layers(
    tiny_vit: ViTVariant, mlp: str, matrices: int
):
    """By hand: MACs of the patches, of two blocks and of the head. The softmax needs the most memory:
    tokens, shortcut, and the scores of two heads before and after it.
    """
    images, tokens = keras.Input((256, 256, 3)), 1 + 32 * 32
    model = models.vision_transformer(replace(tiny_vit, mlp=mlp), images, classes=5)
    block = tokens * (4 * 16 * 16 + matrices * 16 * 32) + 2 * tokens * tokens * 16
    macs = 32 * 32 * 8 * 8 * 3 * 16 + 2 * block + 16 * 5
    mebibytes = 4 * (2 * tokens * 16 + 2 * 2 * tokens**2) / 2**20
    photo, seen = Photo("a.png"), np.zeros((256, 256, 3), np.float32)
    shown = Shown(photo=photo, seen=seen, picture=seen)
    rows = model_part.facts(
        Subject(title="", model=model, attention=None, photos=[photo], shown=[shown])
    ).rows
    assert dict(rows).items() >= {
        ("MACs", f"{macs / 1e9:.3g} G per image, forward"),
        ("FLOPs", f"{2 * macs / 1e9:.3g} G per image, forward"),
        ("activations", f"{mebibytes:,.1f} MiB in float32: estimated peak for one image"),
    }


def cost_from_layers(model: keras.Model, size: tuple[int, int] = (32, 48)):
    """MACs and bytes of the activations, for a model whose name is in no table."""
    photo, seen = Photo("a.png"), np.zeros((*size, 3), np.float32)
    shown = Shown(photo=photo, seen=seen, picture=seen)
    subject = Subject(title="", model=model, attention=None, photos=[photo], shown=[shown])
    assert ("MACs" in dict(model_part.facts(subject).rows)) == bool(
        found := model_part._compute_cost(subject, size)
    )
    return found


@pytest.mark.parametrize("name", [*NAMES, "ViT_Ti16"])
def test_the_cost_from_the_layers_is_that_of_the_row(name: str):
    """The form of GELU changes the peak, and the second head of a distilled DeiT the MACs."""
    row = replace(
        VIT_VARIANTS[name] if name in VIT_VARIANTS else tiny_row(name),
        name="tiny",
        patch_size=8,
        width=16,
        depth=2,
        num_heads=2,
        mlp_dim=400,
    )
    model = models.vision_transformer(row, keras.Input((32, 48, 3)), classes=5)
    expected = cost.macs(row, (32, 48), classes=5), cost.activation_bytes(row, (32, 48))
    assert cost_from_layers(model) == expected
    others = [replace(row, gelu=gelu) for gelu in ("tanh", "exact")]
    peaks = [cost.activation_bytes(other, (32, 48)) for other in others]
    assert (peaks[0] == peaks[1]) == (row.mlp == "swiglu")


@pytest.mark.parametrize(
    "options",
    [
        {"position_embedding": "relative"},
        {"classifier": "token_gap"},
        {"classifier": "map"},
        {"classifier": "gap", "representation_size": 7},
    ],
)
def test_the_cost_from_the_layers_is_that_of_the_options(tiny_vit: ViTVariant, options: dict):
    model = models.vision_transformer(tiny_vit, keras.Input((128, 192, 3)), classes=5, **options)
    of_memory = {k: v for k, v in options.items() if k in ("position_embedding", "classifier")}
    assert cost_from_layers(model, (128, 192)) == (
        cost.macs(tiny_vit, (128, 192), classes=5, **options),
        cost.activation_bytes(tiny_vit, (128, 192), **of_memory),
    )


def test_a_distilled_model_without_a_second_head_has_one(tiny_vit: ViTVariant):
    row = replace(tiny_row("DeiT_B16_distilled"), distilled_head=False)
    model = models.vision_transformer(row, keras.Input((32, 48, 3)), classes=500)
    assert cost_from_layers(model)[0] == cost.macs(row, (32, 48), classes=500)
    twice = models.vision_transformer(
        replace(row, distilled_head=True), keras.Input((32, 48, 3)), classes=500
    )
    assert cost_from_layers(twice)[0] - cost_from_layers(model)[0] == 16 * 500


def test_the_head_is_found_by_its_kind_and_not_by_its_name(tiny_vit: ViTVariant):
    trunk = models.vision_transformer(tiny_vit, keras.Input((32, 48, 3)), pooling="token")
    expected = cost.macs(tiny_vit, (32, 48), classes=5)
    assert expected - cost_from_layers(trunk)[0] == 16 * 5
    logits = keras.layers.Dense(5, name="mine")(trunk.output)
    assert cost_from_layers(keras.Model(trunk.input, logits))[0] == expected
    softmax = keras.layers.Softmax(name="predictions")(logits)
    assert cost_from_layers(keras.Model(trunk.input, softmax))[0] == expected
    tokens = models.vision_transformer(tiny_vit, keras.Input((32, 48, 3)))
    pooled = keras.layers.GlobalAveragePooling1D(name="pooled")(tokens.output)
    logits = keras.layers.Dense(5)(keras.layers.Activation("relu", name="pre_logits")(pooled))
    assert cost_from_layers(keras.Model(tokens.input, logits))[0] == expected


def test_the_cost_is_that_of_the_pixels_that_are_cut_into_patches(tiny_vit: ViTVariant):
    padded = models.vision_transformer(tiny_vit, keras.Input((31, 41, 3)), classes=5, pad=True)
    expected = cost.macs(tiny_vit, (32, 48), classes=5)
    assert cost_from_layers(padded, (31, 41))[0] == expected
    images = keras.Input((None, None, 3))
    resized = models.vision_transformer(
        tiny_vit, keras.layers.Resizing(32, 48)(images), classes=5, position_grid=(4, 6)
    )
    assert cost_from_layers(resized, (50, 50))[0] == expected


@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_every_number_of_the_attention_is_in_a_table(
    tiny_vit: ViTVariant, tmp_path: Path, undrawn: dict, classifier: str
):
    model = models.vision_transformer(
        tiny_vit, keras.Input((32, 48, 3)), classes=5, classifier=classifier
    )
    subject = subject_of(model, names=("a.png", "folder/b.png", "c.png"))
    write_report(subject, tmp_path)
    flow = attention_rollout(
        model, np.stack([shown.seen for shown in subject.shown]) / np.float32(127.5) - 1
    )
    # each photo is drawn with its own map
    pictures, maps, headings = undrawn["overlays.png"]
    assert [id(each) for each in pictures] == [id(shown.picture) for shown in subject.shown]
    np.testing.assert_allclose(maps, flow, rtol=1e-5)
    assert headings == ["1. a", "2. b", "3. c"]
    table = rows(tmp_path / "rollout.csv")
    assert len(table) == 3 * 4 * 6
    assert [row["photo"] for row in table[::24]] == ["a.png", "folder/b.png", "c.png"]
    np.testing.assert_allclose([float(row["share"]) for row in table], flow.ravel(), rtol=1e-5)
    last = table[-1]
    assert (last["row"], last["column"]) == ("3", "5")
    table = rows(tmp_path / "attention_distance.csv")
    assert [(row["layer"], row["head"]) for row in table] == [
        *(
            ("encoderblock_0", "0"),
            ("encoderblock_0", "1"),
            ("encoderblock_1", "0"),
            ("encoderblock_1", "1"),
        ),
    ]
    found = [float(row["distance_px"]) for row in table]
    np.testing.assert_allclose(found, subject.attention.distance_px.ravel(), atol=1e-4)
    assert all(0 < px < np.hypot(32, 48) for px in found)


def test_places_and_distances_of_attention_are_said_in_words(
    vit: keras.Model, tmp_path: Path, undrawn: dict, monkeypatch: pytest.MonkeyPatch
):
    places = {(0, 3): "at the top right", (3, 0): "at the bottom left", (2, 1): "in the middle"}
    maps = np.full((3, 4, 4), 0.01)
    for number, place in enumerate(places):
        maps[(number, *place)] = 0.5
    monkeypatch.setattr(attention_part, "attention_rollout", lambda *_: maps)
    attention = AttentionSummary(
        layers=("first", "last"),
        distance_px=np.array([[10.0, 25.0], [12.0, 4.0]]),
        rollouts=maps,
        grid=(4, 4),
        patch_px=(8.0, 8.0),
        num_images=3,
    )
    subject = subject_of(vit, names=("a.png", "b.png", "c.png"), attention=attention)
    read = Read(write_report(subject, tmp_path))
    overlays, _, distance = (picture["alt"] for picture in read.pictures[:3])
    said = zip("123", "abc", places.values(), strict=True)
    words = "; ".join(f"{number}. {name}: highest {place}" for number, name, place in said)
    assert overlays == f"Attention rollout over photos. {words}."
    assert "first layer 10 to 25 pixels, last layer 4 to 12 pixels" in distance
    header = "layer mean of its heads, px smallest, px largest, px"
    assert f"{header} first 17.5 10.0 25.0 last 8.0 4.0 12.0" in read.text


@pytest.mark.parametrize(
    ("classifier", "changes", "num_prefix"),
    [
        ("token", {}, 1),
        ("token", {"num_registers": 2}, 3),
        ("gap", {}, 0),
        ("gap", {"num_registers": 2, "class_token": True}, 3),
        ("token_gap", {"num_registers": 2}, 3),
        ("token", {"class_token": True, "distilled": True}, 2),
    ],
)
def test_the_heads_of_one_photo_are_those_of_what_the_classifier_reads(
    tiny_vit: ViTVariant,
    tmp_path: Path,
    undrawn: dict,
    classifier: str,
    changes: dict,
    num_prefix: int,
):
    """A classifier that reads the class token has the row of that token. Another one has the mean of
    what the patches receive from patches; without other tokens its sum is 1. One that reads two has
    the mean of both.
    """
    model = models.vision_transformer(
        replace(tiny_vit, **changes), keras.Input((32, 48, 3)), classes=5, classifier=classifier
    )
    subject = subject_of(model)
    read = Read(write_report(subject, tmp_path))
    photo, maps, heading = undrawn["heads.png"]
    scores = attention_maps(model, subject.shown[0].seen[None] / np.float32(127.5) - 1)[:, 0]
    to_patches = scores[..., num_prefix:]
    of_class, of_patches = to_patches[:, :, 0], to_patches[:, :, num_prefix:].mean(axis=2)
    expected, words = {
        "token": (of_class, "the class token"),
        "gap": (of_patches, "the mean of the patches"),
        "token_gap": (
            (of_class + of_patches) / 2,
            "the class token and the mean of the patches, in equal shares",
        ),
    }[classifier]
    if "distilled" in changes:
        expected = to_patches[:, :, :2].mean(axis=2)
        words = "the class token and the distillation token, in equal shares"
    assert read.text.count(f"The classifier reads {words}.") == 2  # rollout and heads
    np.testing.assert_allclose(maps, expected.reshape(2, 2, 4, 6), rtol=1e-6)
    assert photo is subject.shown[0].picture and heading == "1. a"
    assert (maps.sum(axis=(2, 3)) < 0.999).all() == (num_prefix > 0)


def test_a_head_of_an_unknown_kind_is_said_to_be_assumed_to_read_the_class_token(
    tiny_vit: ViTVariant, tmp_path: Path, undrawn: dict
):
    trunk = models.vision_transformer(tiny_vit, keras.Input((32, 48, 3)), classifier="token")
    pooled = keras.layers.GlobalAveragePooling1D()(trunk.output)
    subject = subject_of(keras.Model(trunk.input, keras.layers.Dense(3)(pooled)))
    text = Read(write_report(subject, tmp_path)).text
    assert text.count("its classifier is assumed to read the class token.") == 2
    text = Read(write_report(subject_of(trunk), tmp_path)).text
    assert text.count("returns all tokens; the class token is taken.") == 2


def test_the_heads_of_a_large_image_need_no_array_of_all_weights(
    vit: keras.Model, tmp_path: Path, undrawn: dict, monkeypatch: pytest.MonkeyPatch
):
    """`attention_maps` would refuse it."""
    subject = subject_of(vit)
    monkeypatch.setattr(attention, "_measure_free_bytes", lambda: 1.0)
    with pytest.raises(ValueError, match="Not even one image fits"):
        attention_maps(vit, subject.shown[0].seen[None] / np.float32(127.5) - 1)
    write_report(subject, tmp_path)
    assert undrawn["heads.png"][1].shape == (2, 2, 4, 4)


def test_a_model_that_is_in_no_table_is_described_by_its_layers(tiny_vit: ViTVariant):
    changes = {"num_registers": 3, "class_token": True, "layer_scale": True, "mlp": "swiglu"}
    row = replace(tiny_vit, **changes)
    model = models.vision_transformer(row, keras.Input((32, 48, 3)), classes=5)
    found = model_part._find_row(subject_of(model))
    assert {name: getattr(found, name) for name in changes} == changes
    sizes = ("patch_size", "width", "depth", "num_heads", "mlp_dim")
    assert [getattr(found, name) for name in sizes] == [getattr(row, name) for name in sizes]


def test_filters_and_positions_are_written_as_numbers(
    tiny_vit: ViTVariant, tmp_path: Path, undrawn: dict
):
    model = models.vision_transformer(
        tiny_vit, keras.Input((32, 32, 3)), position_embedding="sincos2d", classes=5
    )
    write_report(subject_of(model), tmp_path)
    shares = [float(row["explained"]) for row in rows(tmp_path / "filter_components.csv")]
    assert len(shares) == 15  # of 16 filters, less their mean
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1, abs=1e-4)
    table = rows(tmp_path / "position_similarity.csv")
    assert len(table) == 16 * 16
    cosines = {
        tuple(int(row[key]) for key in ("row", "column", "other_row", "other_column")): float(
            row["similarity"]
        )
        for row in table
    }
    assert cosines[2, 3, 2, 3] == 1.0
    assert cosines[0, 1, 3, 2] == cosines[3, 2, 0, 1]
    assert cosines[0, 0, 0, 1] > cosines[0, 0, 3, 3]  # near and far


def test_positions_before_every_block_have_a_picture_each(
    tiny_vit: ViTVariant, tmp_path: Path, undrawn: dict
):
    for placement, count in (("every_layer", 2), ("shared", 1)):
        model = models.vision_transformer(
            tiny_vit, keras.Input((32, 32, 3)), classes=5, position_placement=placement
        )
        read = Read(write_report(subject_of(model), tmp_path))
        table = rows(tmp_path / "position_similarity.csv")
        assert len(table) == count * 16 * 16 and len({row["layer"] for row in table}) == count
        assert sum("Cosine similarities" in picture["alt"] for picture in read.pictures) == 1


@pytest.mark.parametrize("kind", ["none", "relative"])
def test_a_vit_without_added_positions_says_so(
    tiny_vit: ViTVariant, tmp_path: Path, undrawn: dict, kind: str
):
    model = models.vision_transformer(
        tiny_vit, keras.Input((32, 32, 3)), classes=5, position_embedding=kind
    )
    read = Read(write_report(subject_of(model), tmp_path))
    assert files(tmp_path) == ATTENTION | FILTERS
    assert f"Similarity of position embeddings {model.name} has " in read.text


def test_a_resnet_has_filters_and_says_what_it_does_not_have(
    tiny_resnet: Callable[[ResNetVariant], ResNetVariant], tmp_path: Path, undrawn: dict
):
    model = models.resnet(
        tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]), keras.Input((32, 32, 3)), classes=5
    )
    subject = subject_of(model, absent=[Absent("Attention", "It has no Transformer blocks.")])
    read = Read(write_report(subject, tmp_path))
    assert files(tmp_path) == FILTERS
    assert len(read.pictures) == 1 and "7 x 7 pixels" in read.text
    for missing in (
        "Attention It has no Transformer blocks.",
        "Similarity of position embeddings",
        "Training The folder of the weights contains no metrics.csv",
    ):
        assert missing in read.text


def test_a_hybrid_is_read_through_its_stem(
    tiny_vit: ViTVariant,
    tiny_resnet: Callable[[ResNetVariant], ResNetVariant],
    tmp_path: Path,
    undrawn: dict,
):
    row = replace(tiny_vit, patch_size=1, stem=tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]))
    model = models.vision_transformer(row, keras.Input((32, 64, 3)), classes=5)
    read = Read(write_report(subject_of(model), tmp_path))
    assert files(tmp_path) == ATTENTION | FILTERS | POSITIONS
    assert "grid 4 x 8 patches of 8 x 8 pixels" in read.text and "MACs" not in read.text


def test_a_named_model_stands_in_figure_5(tmp_path: Path, undrawn: dict):
    """Table 6: ViT-B/32, 7 epochs, 55 exaFLOPs, 80.73 % on ImageNet."""
    # builds in an instant
    row = replace(VIT_VARIANTS["ViT_B32"], width=24, depth=1, num_heads=2, mlp_dim=16)
    model = models.vision_transformer(row, keras.Input((32, 32, 3)), classes=1000)
    read = Read(write_report(subject_of(model, variant="ViT_B32"), tmp_path))
    [panels] = undrawn["compute.png"]
    assert [(point.x, point.accuracy) for point in panels["ImageNet"]["ViT_B32"]] == [(55, 80.73)]
    assert len(panels["ImageNet"]["ResNet"]) == 7  # the others are there too
    assert "80.73 % on ImageNet for 55 exaFLOPs, 7 epochs" in read.pictures[-1]["alt"]
    assert "7 epochs of JFT-300M take 56.3 exaFLOPs" in read.text
    read = Read(write_report(subject_of(model, variant="ViT_Ti16"), tmp_path))
    assert not (tmp_path / "compute.png").exists()
    assert "Figure 5 of the paper has no ViT_Ti16." in read.text and "take 16." in read.text


def test_answers_stand_above_the_photos_and_in_a_table(vit: keras.Model, tmp_path: Path):
    subject = subject_of(vit)
    photos = [
        Photo("a.png", "a <b>cat</b>", 0.934),
        Photo("b.png", "$dog$", 0.5),
        Photo("c.png", problem="cut short"),
    ]
    shown = [replace(each, photo=photo) for each, photo in zip(subject.shown, photos, strict=False)]
    read = Read(write_report(replace(subject, photos=photos, shown=shown), tmp_path))
    assert "1. a.png a <b>cat</b> 93 % 2. b.png $dog$ 50 %" in read.text
    assert "1. a <b>cat</b>, 93 %" in read.pictures[0]["alt"]
    assert "of 2 photos; 1 more could not be read." in read.text
    assert "Unreadable photos photo reason c.png cut short" in read.text
    assert rows(tmp_path / "photos.csv") == [
        {"photo": "a.png", "answer": "a <b>cat</b>", "probability": "0.934000", "problem": ""},
        {"photo": "b.png", "answer": "$dog$", "probability": "0.500000", "problem": ""},
        {"photo": "c.png", "answer": "", "probability": "", "problem": "cut short"},
    ]


def test_names_of_any_kind_do_no_harm(vit: keras.Model, tmp_path: Path):
    names = [
        "<script>alert(1)</script>.png",
        'a "quoted", name.png',
        "m\udce9tro.png",
        "猫.png",
        "two\nlines.png",
    ]
    names += ["$\\frac{$.png", "x" * 200 + ".png", "&lt;.png"]
    subject = subject_of(vit, names=names, title="<title>")
    photos = [
        Photo(name, answer=name if number % 2 else "", probability=1.0)
        for number, name in enumerate(names)
    ]
    shown = [replace(each, photo=photo) for each, photo in zip(subject.shown, photos, strict=True)]
    read = Read(write_report(replace(subject, photos=photos, shown=shown), tmp_path))
    for name in names:
        assert " ".join(name.replace("\udce9", r"\udce9").split()) in read.text
    assert [row["photo"] for row in rows(tmp_path / "photos.csv")] == [
        name.replace("\udce9", r"\udce9") for name in names
    ]


def test_an_earlier_report_is_replaced_and_other_files_are_not(
    vit: keras.Model, tmp_path: Path, undrawn: dict
):
    for name in (*FILES, "report.html", "notes.txt", "holiday.png"):
        (tmp_path / name).write_text("old")
    write_report(subject_of(vit), tmp_path)
    assert files(tmp_path) == ATTENTION | FILTERS | POSITIONS | {"notes.txt", "holiday.png"}
    assert [
        path.name
        for path in tmp_path.iterdir()
        if path.suffix != ".png" and path.read_bytes() == b"old"
    ] == ["notes.txt"]


@pytest.mark.parametrize(
    ("photo", "number", "heading"),
    [
        (Photo("x/cat.jpg", "tabby", 0.934), 1, "1. tabby, 93 %"),
        (Photo("x/cat.jpg"), 12, "12. cat"),
        (Photo("猫.jpg"), 2, "2."),
        (Photo("a.jpg", "猫", 0.5), 3, "3. [class 3], 50 %"),
    ],
)
def test_the_heading_of_a_photo_can_be_drawn(photo: Photo, number: int, heading: str):
    assert photo.heading(number) == heading
