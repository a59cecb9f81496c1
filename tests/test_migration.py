"""docs/how_to/migrate.md: every row of its tables runs in the other package and in this one, and
both cells give the same numbers.

The left cells of a table share one namespace, the right cells another. Both start with the names of
the section's `python` block.
"""

import ast
import importlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from family_peers import randomize
from PIL import Image
from synthetic_checkpoint import checkpoint
from torch_peers import import_timm

import keras_vit
from keras_vit.variants import VIT_VARIANTS
from keras_vit.weights import layouts

PAGE = Path(__file__).parents[1] / "docs" / "how_to" / "migrate.md"
PEERS = ("timm", "transformers", "KerasHub", "vit-keras")
TOLERANCE = 1e-4  # relative to the largest value of the peer
FEWEST_ROWS = 8
_CELLS = re.compile(r"\| `([^`]+)` \| `([^`]+)` \|")
_FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# --- the page


@dataclass(frozen=True)
class Section:
    """A part of the page on one package.

    Attributes:
        preamble: What its `python` blocks contain.
        rows: The code in the left and the right cell of each row.
    """

    preamble: str
    rows: list[tuple[str, str]]


def read_sections(text: str) -> dict[str, Section]:
    """Returns the sections that have a table, by their headings.

    Raises:
        ValueError: If a line of a table has not two cells of code, so that it cannot be executed,
            or a table is outside of a section.
    """
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    _read_rows("", parts[0])
    found = {}
    for title, part in zip(parts[1::2], parts[2::2], strict=True):
        blocks = [code for language, code in _FENCES.findall(part) if language == "python"]
        if rows := _read_rows(title, part):
            found[title] = Section("\n".join(blocks), rows)
    return found


def _read_rows(title: str, part: str) -> list[tuple[str, str]]:
    lines = [line for line in _FENCES.sub("", part).splitlines() if "|" in line]
    if lines and lines[:2] != [f"| {title} | keras_vit |", "|---|---|"]:
        raise ValueError(f"A table of {title or 'no section'} starts with {lines[:2]}.")
    rows = []
    for line in lines[2:]:
        cells = _CELLS.fullmatch(line)
        if cells is None:
            raise ValueError(f"Not two cells of code: {line}")
        left, right = (cell.replace("\\|", "|") for cell in cells.groups())
        rows.append((left, right))
    return rows


# --- what the cells give


def execute(code: str, names: dict[str, Any]) -> Any:
    """Runs statements; returns the value of the last one if it is an expression, else None."""
    statements = ast.parse(code).body
    last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
    exec(compile(ast.Module(statements, []), code, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), code, "eval"), names)


def simplify(value: Any) -> Any:
    """Returns an array, an integer, a string, or a tuple of them; None for everything else."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return tuple(None if each is None else simplify(each) for each in value)
    if hasattr(value, "detach"):
        return value.detach().numpy()
    if isinstance(value, float | np.ndarray | np.generic) or keras.ops.is_tensor(value):
        return np.asarray(keras.ops.convert_to_numpy(value))
    return None


def compare(theirs: Any, ours: Any) -> bool:
    """Returns whether there is something to compare.

    Raises:
        AssertionError: If the values differ, or only one cell gives a value.
    """
    theirs, ours = simplify(theirs), simplify(ours)
    if theirs is None and ours is None:
        return False
    assert type(theirs) is type(ours), (type(theirs), type(ours))
    if not isinstance(theirs, np.ndarray):
        assert theirs == ours
        return True
    assert theirs.shape == ours.shape
    assert theirs.size and np.isfinite(theirs).all() and np.ptp(theirs) > 0
    error = np.abs(ours.astype("float64") - theirs).max() / np.abs(theirs).max()
    assert error <= TOLERANCE, f"they differ by {error:.1e} of the largest value"
    return True


def check(section: Section, shared: dict[str, Any] | None = None) -> int:
    """Runs a section and returns how many of its rows gave values that are equal.

    Raises:
        AssertionError: If a cell raises an error, or the values of a row differ.
    """
    shared = dict(shared or {})
    exec(compile(section.preamble, "preamble", "exec"), shared)
    theirs, ours = dict(shared), dict(shared)
    compared = 0
    for row in section.rows:
        try:
            compared += compare(execute(row[0], theirs), execute(row[1], ours))
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{' | '.join(row)}: {type(error).__name__}: {error}") from error
    return compared


# --- tests of the above, without a peer

TABLE = """# Title

## numpy

```python
import numpy as np

x = np.arange(6.0)
```

| numpy | keras_vit |
|---|---|
| `y = x + 1` | `y = x + 1` |
| `{}` | `{}` |

Text.
"""


def _check(left: str, right: str) -> int:
    return check(read_sections(TABLE.format(left, right))["numpy"])


@pytest.mark.once
@pytest.mark.parametrize(
    ("left", "right", "compared"),
    [
        ("y", "y + 1e-5", 1),
        ("y.shape", "(6,)", 1),
        ("int(y[0] \\| 1) if 0 else 3", "3", 1),
        ("'daisy'", "'dai' + 'sy'", 1),
        ("[None, 6]", "(None, 6)", 1),
        ("z = 2 * y; z[:2]", "keras_vit = 1; [2, 4] * np.ones(2)", 1),
        ("y.sort()", "z = 1", 0),
    ],
)
def test_equal_rows_pass(left: str, right: str, compared: int):
    assert _check(left, right) == compared


@pytest.mark.once
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("y", "y + 0.1"),  # numbers
        ("y", "y[::-1]"),
        ("y", "y[None]"),  # shapes
        ("y", "y * np.nan"),
        ("0 * y", "0 * y"),  # nothing that could differ
        ("y[:0]", "y[:0]"),
        ("y.shape", "(7,)"),
        ("5717416", "5717415"),
        ("'daisy'", "'tulip'"),
        ("True", "1"),
        ("y", "z = y"),  # one cell without a value
        ("y.sort()", "3"),
        ("y", "absent"),  # errors
        ("y", "y +"),
        ("raise SystemExit", "z = 1"),
        ("z = 1", "z"),  # a name of the other package
    ],
)
def test_wrong_rows_fail(left: str, right: str):
    with pytest.raises(AssertionError):
        _check(left, right)


@pytest.mark.once
@pytest.mark.parametrize(
    "row",
    [
        "| y | `y` |",
        "| `y` | none |",
        "| `y` | `y` or `y` |",
        "| `y` | `y` | `y` |",
        "| `y` | `y`",
        "| `y` |",
        " | `y` | `y` |",
    ],
)
def test_rows_that_cannot_be_executed_raise_an_error(row: str):
    with pytest.raises(ValueError, match="Not two cells of code"):
        read_sections(TABLE.replace("| `{}` | `{}` |", row))


@pytest.mark.once
def test_tables_outside_of_a_section_raise_an_error():
    with pytest.raises(ValueError, match="no section"):
        read_sections("# Title\n\n| a | keras_vit |\n|---|---|\n| `1` | `1` |\n")


@pytest.mark.once
def test_every_table_of_the_page_is_tested():
    sections = read_sections(PAGE.read_text(encoding="utf-8"))
    assert tuple(sections) == PEERS
    assert all(len(section.rows) >= FEWEST_ROWS for section in sections.values())


# --- the peers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the cells run, with a photo."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (15, 20, 3), dtype="uint8")
    Image.fromarray(pixels).resize((640, 480)).save(tmp_path / "photo.jpg", quality=95)
    return tmp_path


def check_page(name: str) -> None:
    section = read_sections(PAGE.read_text(encoding="utf-8"))[name]
    compared = check(section)
    assert compared >= len(section.rows) / 2
    print(f"{name}: {len(section.rows)} rows executed, {compared} with equal values")


def small_config(transformers: Any, **options: Any) -> Any:
    return transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        **options,
    )


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")
def test_timm(folder: Path):
    timm = import_timm()
    if not hasattr(importlib.import_module("torchvision"), "__file__"):
        pytest.skip("torchvision cannot be imported, and timm's transforms need it")
    from safetensors.torch import save_file

    model = randomize(timm.create_model("vit_tiny_patch16_224"), width=192)
    save_file(model.state_dict(), folder / "vit.safetensors")
    try:
        check_page("timm")
    finally:
        timm.layers.set_fused_attn(True)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")
def test_transformers(folder: Path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    labels = {index: name for index, name in enumerate(("daisy", "rose", "tulip"))}
    config = small_config(transformers, id2label=labels)
    model = randomize(transformers.ViTForImageClassification(config), width=192)
    model.save_pretrained(folder / "my_vit")
    transformers.ViTImageProcessorPil().save_pretrained(folder / "my_vit")
    encoder = transformers.ViTModel(small_config(transformers))
    randomize(encoder, width=192).save_pretrained(folder / "my_encoder")
    check_page("transformers")


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")
def test_kerashub(folder: Path):
    pytest.importorskip("keras_hub")
    model = keras_vit.ViT_Ti16(weights=None, classes=3, gelu="exact")
    draws = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.1 * draws.normal(size=variable.shape))
    keras_vit.save_checkpoint(model, folder / "my_vit")
    config = folder / "my_vit" / "config.json"
    # as in the files of transformers
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config.write_text(json.dumps(json.loads(config.read_text()) | dropout))
    check_page("KerasHub")


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")
def test_vit_keras(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The smallest model of vit-keras has 86 million parameters: both get two blocks and a small
    MLP.
    """
    vit = pytest.importorskip("vit_keras.vit")
    row = replace(VIT_VARIANTS["ViT_B16"], depth=2, mlp_dim=64)
    monkeypatch.setitem(vit.CONFIG_B, "num_layers", row.depth)
    monkeypatch.setitem(vit.CONFIG_B, "mlp_dim", row.mlp_dim)
    monkeypatch.setattr(keras_vit, "ViT_B16", keras_vit.application(row))
    tuned = layouts.to_published(checkpoint(row, image_size=384))
    pretrained = layouts.to_published(
        checkpoint(row, image_size=224, classes=21843, representation_size=768)
    )
    np.savez(folder / "ViT-B_16.npz", **tuned)
    np.savez(folder / "ViT-B_16-21k.npz", **pretrained)
    files = {
        "ViT-B_16_imagenet21k+imagenet2012.npz": folder / "ViT-B_16.npz",
        "ViT-B_16_imagenet21k.npz": folder / "ViT-B_16-21k.npz",
    }
    # in place of the cache of Keras
    monkeypatch.setattr(keras.utils, "get_file", lambda name, *_, **__: str(files[name]))
    check_page("vit-keras")
