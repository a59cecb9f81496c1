"""The architecture, executed: what may import what, and which dependency enters through which door.

CONTRIBUTING.md draws the same floors and doors. Where a table here stops fitting, change it there and here first,
in a commit of its own that says why.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 400
VAGUE_NAMES = ("utils", "helpers", "common", "misc", "base", "core", "tools")

# Lowest first. Units on one floor are independent of each other.
FLOORS = (
    ("variants", "grid", "paper", "photos", "suggestions", "writing", "folder_lock", "quiet", "graph", "extras"),
    ("options", "kernels"),
    ("cost", "layers", "data", "devices", "drawing", "pixels"),
    ("models", "weights"),
    ("applications", "imagenet", "keras_file"),
    ("evaluate",),
    ("classifier", "train", "analyze"),
    ("info", "predict", "measure", "verify", "export"),
    ("inspection", "delivery", "quickstart"),
    ("acceptance", "arguments"),
    ("commands",),
    ("cli",),
    ("__init__",),
    ("__main__",),
)
# Within a folder a file may import those listed before it. `__init__` re-exports, so it comes last.
FILES = {
    "photos": ("files", "exif", "pixels", "__init__"),
    "cost": ("rows", "parts", "counts", "compute", "memory", "__init__"),
    "layers": (
        *(
            "constants",
            "quantized",
            "freezing",
            "patches",
            "tokens",
            "positions",
            "norm",
            "mlp",
            "readout",
            "remat",
            "transformer",
            "pooling",
        ),
        *("resnet", "axial", "__init__"),
    ),
    "data": (
        *(
            "fractals",
            "png",
            "turning",
            "decoding",
            "transforms",
            "randaugment",
            "prepared",
            "contents",
            "sources",
            "folders",
            "duplicates",
            "order",
            "reading",
        ),
        *("pipeline", "__init__"),
    ),
    "kernels": ("reference", "tensorflow", "choice", "__init__"),
    "models": ("class_token", "ends", "resnet", "vit", "__init__"),
    "weights": (
        *("catalog", "refusal", "metadata", "entries", "npz", "tensors", "keras_h5", "files", "download", "renaming"),
        *("layouts", "dialects", "variables", "model_file", "source", "identity", "restore", "save", "array_names"),
        *("witness", "__init__"),
    ),
    "evaluate": (
        *(
            "plots",
            "heads",
            "outputs",
            "accuracy",
            "scorecard",
            "label_sets",
            "imagenet_sets",
            "feature_store",
            "features",
        ),
        *("labelled", "fewshot", "probe", "streaming_probe", "vtab_tasks", "vtab_report", "vtab", "__init__"),
    ),
    "train": (
        *("losses", "schedules", "optimizers", "remat", "tensorflow_step", "jax_step", "learner", "checkpoints"),
        *("progress", "window", "logs", "report", "loop", "config", "recipe", "pretrain", "finetune"),
        *("masked_patches", "handover", "transfer", "__init__"),
    ),
    "analyze": (
        *("attention_arithmetic", "attention_sites", "attention_model", "batches", "attention", "embeddings", "plots"),
        *("trend_plots", "page", "subject", "attention_part", "model_part", "report", "__init__"),
    ),
    "export": (
        *("versions", "examples", "reference", "runner", "verdicts", "image_bytes", "signatures", "warmup", "metadata"),
        *(
            "checksums",
            "subject",
            "saved_model",
            "report",
            "tflite_metadata",
            "tflite_flavours",
            "tflite",
            "exchange",
            "__init__",
        ),
    ),
}
# Every dependency, and the files or folders that may import it. "" is anywhere.
_WHOLES = ("layers/", "models/", "weights/restore.py", "weights/save.py", "applications.py", "imagenet.py")
_VERBS = (
    *("classifier.py", "devices.py", "train/", "evaluate/", "analyze/", "export/"),
    *(
        "pixels.py",
        "keras_file.py",
        "predict.py",
        "measure.py",
        "verify.py",
        "quickstart.py",
        "inspection.py",
        "delivery.py",
    ),
    "acceptance.py",
)
DOORS = {
    "numpy": ("",),
    "absl.logging": ("",),
    "absl.app": ("cli.py",),
    "absl.flags": ("arguments.py", "commands.py", "cli.py"),
    "scipy": ("evaluate/fewshot.py",),
    "keras": (*_WHOLES, *_VERBS),
    "tensorflow": (
        *("data/", "devices.py", "evaluate/imagenet_sets.py", "evaluate/vtab_tasks.py", "train/tensorflow_step.py"),
        *("train/logs.py", "export/", "layers/tensorflow_training.py", "layers/inference.py"),
        *("layers/lean.py", "layers/products.py"),
    ),
    "PIL": ("photos/",),
    "pillow_heif": ("photos/pixels.py",),
    "jax": ("train/jax_step.py", "devices.py"),
    "psutil": ("train/progress.py", "export/versions.py"),
    "tensorflow_datasets": ("data/prepared.py",),
    "ai_edge_litert": ("export/", "quickstart.py"),
    "ai_edge_quantizer": ("export/", "quickstart.py"),
    "flatbuffers": ("export/",),
    "onnx": ("export/exchange.py",),
    "onnxruntime": ("export/",),
    "openvino": ("export/",),
    "tf2onnx": ("export/exchange.py",),
    "threadpoolctl": ("evaluate/probe.py",),
    "sklearn": ("data/sources.py", "evaluate/probe.py", "quickstart.py"),
    "matplotlib": ("drawing.py", "evaluate/plots.py", "export/report.py", "quickstart.py"),
    "packaging": ("extras.py",),
    "pooch": ("weights/download.py",),
    "tqdm": ("weights/download.py", "data/duplicates.py", "evaluate/", "analyze/", "export/", "train/progress.py"),
    "safetensors": ("weights/tensors.py",),
    "h5py": ("weights/keras_h5.py",),
}
# Slow or optional: imported inside the function that needs them. So are the commands in `commands.py`; nothing else is.
LAZY = (
    *("tensorflow_datasets", "sklearn", "threadpoolctl", "matplotlib", "pooch", "tqdm", "safetensors", "h5py"),
    *(
        "pillow_heif",
        "ai_edge_litert",
        "ai_edge_quantizer",
        "flatbuffers",
        "onnx",
        "onnxruntime",
        "openvino",
        "tf2onnx",
    ),
)
# It runs where the package is not, and TensorFlow is one of the runtimes that it may find or not find.
STANDALONE = {"export/runner.py": ("tensorflow",)}

Module = tuple[str, str]  # unit and file within it: ("weights", "files"), ("grid", "")


def violations(root: Path) -> Iterator[str]:
    """One line for each place where the tree under `root` departs from the tables."""
    for path in sorted(root.glob("keras_vit/**/*.py")):
        where = path.relative_to(root / "keras_vit").as_posix()
        importer = module_of(root, "keras_vit." + where.removesuffix(".py").replace("/", "."))
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        if path.stem in VAGUE_NAMES:
            yield f"{where}: this name says nothing. Name the file after what is inside."
        if num_lines > MAX_LINES:
            yield f"{where}: {num_lines} lines, more than {MAX_LINES}. Split it where the subject changes."
        if place(importer) is None:
            yield f"{where}: this file has no place. Add it to the tree in CONTRIBUTING.md and to tests/test_floors.py."
        for line, name, in_function in imports(path):
            inside = name.split(".")[0] == "keras_vit"
            reason = wrong_direction(importer, module_of(root, name)) if inside else wrong_door(where, name)
            reason = reason or wrong_depth(where, name, in_function)
            if reason:
                yield f"{where}:{line}: imports {name}: {reason}"
    for path in sorted(root.glob("tests/**/*.py")):
        for line, name, _ in imports(path):
            if name.split(".")[0] == "experiments":
                yield f"{path.relative_to(root)}:{line}: experiments/ stands outside. Run it, or test what it calls."


def imports(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, dotted name, and whether it is inside a function, of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    in_function = {node for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node in in_function) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}", node in in_function) for alias in node.names)


def module_of(root: Path, name: str) -> Module:
    """The module that a dotted name belongs to: ("grid", "") of `keras_vit.grid.nearest_sizes`."""
    unit, file = [*name.split(".")[1:], "", ""][:2]
    if file and (root / "keras_vit" / unit / f"{file}.py").is_file():
        return unit, file
    if (root / "keras_vit" / unit).is_dir() and unit:
        return unit, "__init__"
    return (unit, "") if (root / "keras_vit" / f"{unit}.py").is_file() else ("__init__", "")


def place(module: Module) -> tuple[int, int] | None:
    """Floor, and position within the folder."""
    unit, file = module
    files = FILES.get(unit, ("",))
    floor = next((number for number, units in enumerate(FLOORS) if unit in units), None)
    return None if floor is None or file not in files else (floor, files.index(file))


def wrong_direction(importer: Module, imported: Module) -> str | None:
    here, there = place(importer), place(imported)
    if here is None or there is None or there[0] < here[0]:
        return None
    if importer[0] != imported[0]:
        side = "above" if there[0] > here[0] else "beside"
        return f"{imported[0]} stands {side} {importer[0]}; imports only go down. Move what both need to a lower floor."
    if there[1] < here[1]:
        return None
    return (
        f"a file may import those before it in its folder: {', '.join(FILES[importer[0]])}. Move the line, or the file."
    )


def wrong_door(where: str, name: str) -> str | None:
    top = name.split(".")[0]
    if not top:
        return "write the absolute name, so that a search for it finds this line."
    if name in ("importlib", "importlib.import_module") and where != "__init__.py":
        return "a module imported by a string is found by nobody. Import it by its name."
    if top in sys.stdlib_module_names:
        return None
    dependency = top if top in DOORS else ".".join(name.split(".")[:2])
    if dependency not in DOORS:
        return "it has no door. Do without, or add it to the doors in CONTRIBUTING.md and in tests/test_floors.py."
    if not where.startswith(DOORS[dependency]):
        return f"its doors are {', '.join(DOORS[dependency])}. Call what is there, or take its result as an argument."
    return None


def wrong_depth(where: str, name: str, in_function: bool) -> str | None:
    top = name.split(".")[0]
    if top in LAZY and not in_function:
        return "it is slow or optional. Import it inside the function that needs it."
    if in_function and top not in (*LAZY, *STANDALONE.get(where, ())) and where != "commands.py":
        return "inside a function it hides what the file needs. Move it to the top."
    return None


def test_the_package_keeps_to_its_floors_and_doors():
    found = list(violations(ROOT))
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("where", "source", "reason"),
    [
        ("keras_vit/grid.py", "from keras_vit import cost", "cost stands beside grid"),
        ("keras_vit/layers/tokens.py", "from keras_vit.models import vit", "models stands above layers"),
        ("keras_vit/models/vit.py", "import keras_vit.weights.files", "weights stands beside models"),
        (
            "keras_vit/weights/files.py",
            "from keras_vit.weights.restore import restore",
            "those before it in its folder",
        ),
        ("keras_vit/weights/files.py", "from keras_vit.weights import restore", "those before it in its folder"),
        ("keras_vit/layers/tokens.py", "from keras_vit.layers import ClassToken", "those before it in its folder"),
        ("keras_vit/applications.py", "import keras_vit", "__init__ stands above applications"),
        ("keras_vit/applications.py", "from . import grid", "write the absolute name"),
        ("keras_vit/models/vit.py", "def build():\n    from keras_vit import layers", "inside a function it hides"),
        ("keras_vit/grid.py", "def area():\n    import math", "inside a function it hides"),
        ("keras_vit/weights/files.py", "import keras", "its doors are layers/"),
        ("keras_vit/applications.py", "from absl import flags", "its doors are arguments.py, commands.py, cli.py"),
        ("keras_vit/weights/tensors.py", "import safetensors.numpy", "inside the function that needs it"),
        ("keras_vit/models/vit.py", "import torch", "it has no door"),
        ("keras_vit/models/vit.py", "import importlib", "imported by a string"),
        ("keras_vit/layers/utils.py", "", "this name says nothing"),
        ("keras_vit/layers/rings.py", "", "this file has no place"),
        ("keras_vit/grid.py", "\n" * 401, "401 lines"),
        ("keras_vit/cli.py", "import experiments.benchmarks", "it has no door"),
        ("tests/test_recipes.py", "from experiments import benchmarks", "stands outside"),
    ],
)
def test_a_departure_is_reported_with_its_reason(tmp_path: Path, where: str, source: str, reason: str):
    write(tmp_path, {where: source})
    assert [line for line in violations(tmp_path) if reason in line and where.removeprefix("keras_vit/") in line]


@pytest.mark.parametrize(
    ("where", "source"),
    [
        (
            "keras_vit/models/vit.py",
            "from keras_vit import grid\nfrom keras_vit.layers import ClassToken\nimport keras",
        ),
        (
            "keras_vit/weights/restore.py",
            "from keras_vit.weights.files import read\nfrom keras_vit.weights import layouts",
        ),
        ("keras_vit/weights/tensors.py", "def read():\n    from safetensors import safe_open"),
        ("keras_vit/__init__.py", "from keras_vit.applications import ViT_B16\nfrom keras_vit.weights import restore"),
        ("keras_vit/__main__.py", "from keras_vit.cli import main"),
        ("keras_vit/commands.py", "def run():\n    from keras_vit import applications"),
        ("tests/test_grid.py", "import keras_vit\nfrom keras_vit import grid\nimport scipy"),
        ("experiments/benchmarks/models.py", "import torch\nfrom experiments import configs"),
    ],
)
def test_what_the_tables_allow_is_not_reported(tmp_path: Path, where: str, source: str):
    write(tmp_path, {where: source})
    assert list(violations(tmp_path)) == []


def write(root: Path, sources: dict[str, str]) -> None:
    """A small package with one file per floor, and `sources` in it."""
    names = ("grid", "cost/__init__", "layers/__init__", "layers/tokens", "models/__init__", "models/vit")
    names += (
        "weights/__init__",
        "weights/files",
        "weights/layouts",
        "weights/restore",
        "applications",
        "commands",
        "cli",
        "__init__",
    )
    for where, source in {**{f"keras_vit/{name}.py": "" for name in names}, **sources}.items():
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        (root / where).write_text(source, encoding="utf-8")
