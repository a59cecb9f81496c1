"""The architecture, executed: what may import what, and which dependency enters through which door.

The tree and the doors are read from CONTRIBUTING.md. Where they stop fitting, change them there
first, in a commit of its own that says why.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VAGUE_NAMES = ("utils", "helpers", "common", "misc", "base", "core", "tools", "shared")


def read_tree(text: str) -> tuple[tuple[tuple[str, ...], ...], dict[str, tuple[str, ...]]]:
    """The units of each floor, lowest first, and the files of each folder, in the order of
    CONTRIBUTING.md.

    A file of a folder within a folder is "tensorflow/training".
    """
    listing = text.split("## The tree")[1].split("```")[1]
    floors: list[list[str]] = []
    files: dict[str, list[str]] = {}
    path: list[str] = []
    for line in listing.splitlines()[2:]:
        name = line.split()[0]
        if name == "--":
            floors.append([])
            continue
        path = [*path[: (len(line) - len(line.lstrip())) // 4 - 1], name.rstrip("/")]
        is_code = name.endswith(".py")
        if len(path) == 1 and floors and (is_code or name != "labels/"):
            floors[-1].append(name.removesuffix(".py").rstrip("/"))
        if len(path) > 1 and is_code:
            files.setdefault(path[0], []).append("/".join(path[1:]).removesuffix(".py"))
    # `__init__` re-exports, so it comes last.
    return tuple(map(tuple, floors)), {unit: (*names, "__init__") for unit, names in files.items()}


def read_doors(text: str) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Of each dependency: the files or folders that may import it, "" for anywhere, and whether
    only in functions.
    """
    doors = {}
    for line in text.split("## The doors")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "dependency":
            where = ("",) if cells[1] == "anywhere" else tuple(re.findall(r"`([^`]+)`", cells[1]))
            doors[cells[0]] = (where, cells[2].startswith("inside"))
    return doors


DOCUMENT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FLOORS, FILES = read_tree(DOCUMENT)
DOORS = read_doors(DOCUMENT)
FLOORS = (*FLOORS, ("__init__",), ("__main__",))
ORDERED_FLOOR = 0  # its units may import those listed before them
LAZY = tuple(dependency for dependency, (_, in_functions) in DOORS.items() if in_functions)
# It runs where the package is not, and TensorFlow is one of the runtimes that it may find or not
# find.
STANDALONE = {"export/runner.py": ("tensorflow",)}

Module = tuple[str, str]  # unit and file within it: ("weights", "files"), ("grid", "")


def violations(root: Path) -> Iterator[str]:
    """One line for each place where the tree under `root` departs from the tables."""
    for path in sorted(root.glob("keras_vit/**/*.py")):
        where = path.relative_to(root / "keras_vit").as_posix()
        importer = module_of(root, "keras_vit." + where.removesuffix(".py").replace("/", "."))
        if path.stem in VAGUE_NAMES:
            yield f"{where}: this name says nothing. Name the file after what is inside."
        if place(importer) is None:
            yield f"{where}: this file has no place. Add it to the tree in CONTRIBUTING.md."
        for line, name, in_function in imports(path):
            inside = name.split(".")[0] == "keras_vit"
            reason = (
                wrong_direction(importer, module_of(root, name))
                if inside
                else wrong_door(where, name)
            )
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
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    in_function = {node for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node in in_function) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (
                (node.lineno, f"{module}.{alias.name}", node in in_function) for alias in node.names
            )


def module_of(root: Path, name: str) -> Module:
    """The module that a dotted name belongs to: ("grid", "") of `keras_vit.grid.nearest_sizes`."""
    unit, *rest = [*name.split(".")[1:], ""]
    folder = root / "keras_vit" / unit
    if not unit or not folder.is_dir():
        return (unit, "") if unit and folder.with_suffix(".py").is_file() else ("__init__", "")
    for depth in range(len(rest), 0, -1):
        inner = "/".join(rest[:depth]).strip("/")
        if inner and (folder / f"{inner}.py").is_file():
            return unit, inner
        if inner and (folder / inner).is_dir():
            return unit, f"{inner}/__init__"
    return unit, "__init__"


def place(module: Module) -> tuple[int, int] | None:
    """Floor, and position within the folder, or within the floor where its units are ordered."""
    unit, file = module
    floor = next((number for number, units in enumerate(FLOORS) if unit in units), None)
    if floor is None:
        return None
    if unit not in FILES:
        return (floor, 0) if not file else None
    files = FILES[unit]
    if file.endswith("/__init__"):  # of a folder within: behind its files
        inside = [
            index
            for index, name in enumerate(files)
            if name.startswith(file.removesuffix("__init__"))
        ]
        return (floor, inside[-1]) if inside else None
    return (floor, files.index(file)) if file in files else None


def wrong_direction(importer: Module, imported: Module) -> str | None:
    here, there = place(importer), place(imported)
    if here is None or there is None or there[0] < here[0]:
        return None
    if importer[0] != imported[0]:
        units = FLOORS[here[0]]
        if here[0] == there[0] == ORDERED_FLOOR and units.index(imported[0]) < units.index(
            importer[0]
        ):
            return None
        side = "above" if there[0] > here[0] else "beside"
        return f"{imported[0]} stands {side} {importer[0]}; imports only go down. Move what both need to a lower floor."
    if there[1] < here[1]:
        return None
    return (
        f"a file may import those before it in its folder: {', '.join(FILES[importer[0]])}. Move "
        f"the line, or the file."
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
        return "it has no door. Do without, or add it to the doors in CONTRIBUTING.md."
    doors, _ = DOORS[dependency]
    if not where.startswith(doors):
        return f"its doors are {', '.join(doors)}. Call what is there, or take its result as an argument."
    return None


def wrong_depth(where: str, name: str, in_function: bool) -> str | None:
    top = name.split(".")[0]
    if top in LAZY and not in_function:
        return "it is slow or optional. Import it inside the function that needs it."
    if (
        in_function
        and top not in (*LAZY, *STANDALONE.get(where, ()))
        and not where.startswith("commands/")
    ):
        return "inside a function it hides what the file needs. Move it to the top."
    return None


def test_the_tree_lists_the_files_that_there_are():
    listed = {
        unit if not file else f"{unit}/{file}"
        for floor in FLOORS
        for unit in floor
        for file in FILES.get(unit, ("",))
    }
    found = {
        path.relative_to(ROOT / "keras_vit").as_posix()[:-3]
        for path in ROOT.glob("keras_vit/**/*.py")
    }
    folders_within = {name for name in found if name.count("/") == 2 and name.endswith("/__init__")}
    assert listed == found - folders_within


def test_no_function_takes_more_than_seven_positional_arguments():
    """But for the builders, whose first eight are those of `keras.applications`."""
    long = []
    for path in (*ROOT.glob("keras_vit/**/*.py"), *ROOT.glob("experiments/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                names = [
                    each.arg
                    for each in (*node.args.posonlyargs, *node.args.args)
                    if each.arg not in ("self", "cls")
                ]
                if len(names) > 7 and (path.name, node.name) != ("applications.py", "build"):
                    long.append(f"{path.name}: {node.name} takes {len(names)}")
    assert not long


def test_the_package_keeps_to_its_floors_and_doors():
    found = list(violations(ROOT))
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("where", "source", "reason"),
    [
        ("keras_vit/layers/tokens.py", "from keras_vit import cost", "cost stands beside layers"),
        ("keras_vit/variants.py", "from keras_vit import grid", "grid stands beside variants"),
        (
            "keras_vit/layers/tokens.py",
            "from keras_vit.models import vit",
            "models stands above layers",
        ),
        (
            "keras_vit/models/vit.py",
            "import keras_vit.weights.files",
            "weights stands beside models",
        ),
        (
            "keras_vit/weights/files.py",
            "from keras_vit.weights.restore import restore",
            "those before it in its folder",
        ),
        (
            "keras_vit/weights/files.py",
            "from keras_vit.weights import restore",
            "those before it in its folder",
        ),
        (
            "keras_vit/layers/tokens.py",
            "from keras_vit.layers import ClassToken",
            "those before it in its folder",
        ),
        ("keras_vit/applications.py", "import keras_vit", "__init__ stands above applications"),
        ("keras_vit/applications.py", "from . import grid", "write the absolute name"),
        (
            "keras_vit/models/vit.py",
            "def build():\n    from keras_vit import layers",
            "inside a function it hides",
        ),
        ("keras_vit/grid.py", "def area():\n    import math", "inside a function it hides"),
        ("keras_vit/weights/files.py", "import keras", "its doors are kernels/"),
        ("keras_vit/applications.py", "from absl import flags", "its doors are commands/, cli.py"),
        (
            "keras_vit/weights/tensors.py",
            "import safetensors.numpy",
            "inside the function that needs it",
        ),
        ("keras_vit/models/vit.py", "import torch", "it has no door"),
        ("keras_vit/models/vit.py", "import importlib", "imported by a string"),
        ("keras_vit/layers/utils.py", "", "this name says nothing"),
        ("keras_vit/layers/rings.py", "", "this file has no place"),
        ("keras_vit/kernels/tensorflow/rings.py", "", "this file has no place"),
        (
            "keras_vit/kernels/reference.py",
            "from keras_vit.kernels import choice",
            "those before it in its folder",
        ),
        ("keras_vit/cli.py", "import experiments.benchmarks", "it has no door"),
        ("tests/test_recipes.py", "from experiments import benchmarks", "stands outside"),
    ],
)
def test_a_departure_is_reported_with_its_reason(
    tmp_path: Path, where: str, source: str, reason: str
):
    write(tmp_path, {where: source})
    assert [
        line
        for line in violations(tmp_path)
        if reason in line and where.removeprefix("keras_vit/") in line
    ]


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
        (
            "keras_vit/__init__.py",
            "from keras_vit.applications import ViT_B16\nfrom keras_vit.weights import restore",
        ),
        ("keras_vit/__main__.py", "from keras_vit.cli import main"),
        ("keras_vit/commands/info.py", "def run():\n    from keras_vit import applications"),
        ("keras_vit/grid.py", "from keras_vit.variants import VARIANTS"),
        (
            "keras_vit/kernels/choice.py",
            "from keras_vit.kernels.tensorflow import halves, training",
        ),
        ("tests/test_grid.py", "import keras_vit\nfrom keras_vit import grid\nimport scipy"),
        ("experiments/benchmarks/models.py", "import torch\nfrom experiments import configs"),
    ],
)
def test_what_the_tables_allow_is_not_reported(tmp_path: Path, where: str, source: str):
    write(tmp_path, {where: source})
    assert list(violations(tmp_path)) == []


def write(root: Path, sources: dict[str, str]) -> None:
    """A small package with one file per floor, and `sources` in it."""
    names = (
        "grid",
        "cost/__init__",
        "layers/__init__",
        "layers/tokens",
        "models/__init__",
        "models/vit",
    )
    names += (
        "weights/__init__",
        "weights/files",
        "weights/layouts",
        "weights/restore",
        "applications",
        "variants",
        "kernels/reference",
        "kernels/choice",
        "kernels/tensorflow/__init__",
        "kernels/tensorflow/halves",
        "kernels/tensorflow/training",
        "cli",
        "__init__",
    )
    for where, source in {**{f"keras_vit/{name}.py": "" for name in names}, **sources}.items():
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        (root / where).write_text(source, encoding="utf-8")
