"""Pages of the reference that are made from the code: public names, flags, fields of recipes.

`PAGES` maps the path of a page to the function that returns its Markdown. The texts of docstrings
are not here: a line `::: name` asks mkdocstrings for them.
"""

import ast
import builtins
import contextlib
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

import keras_vit
from keras_vit import cost, model_card
from keras_vit.commands import COMMANDS
from keras_vit.commands.command import PROGRAM
from keras_vit.variants import FAMILY_VARIANTS, RESNET_VARIANTS, VARIANTS, VIT_VARIANTS
from keras_vit.writing import table

ROOT = Path(__file__).resolve().parents[1]
# The parts of the reference: page, title, introduction, and the modules whose `__all__` it lists.
_MODULE_PAGES = (
    ("layers", "Layers", "Layers of Keras, of which all models consist.", ("layers",)),
    ("train", "Training", "Pre-training and fine-tuning.", ("train",)),
    ("evaluate", "Evaluation", "Accuracy, features, few-shot, linear, VTAB.", ("evaluate",)),
    ("analyze", "Analysis", "Attention, filters, position embeddings.", ("analyze",)),
    ("export", "Export", "SavedModel, TFLite, ONNX, OpenVINO.", ("export",)),
    ("data", "Data", "From files to batches, and photos.", ("data", "photos", "predict")),
    (
        "facts",
        "Facts and costs",
        "The table of models, grids, costs, the paper's results.",
        ("variants", "grid", "cost", "paper"),
    ),
    (
        "weights",
        "Weights",
        "Checkpoints: tags, files, formats.",
        (
            "weights.catalog",
            "weights.source",
            "weights.download",
            "weights.hub",
            "weights.files",
            "weights.identity",
            "weights.restore",
            "weights.save",
            "weights.witness",
        ),
    ),
    (
        "devices",
        "Devices and kernels",
        "Devices, pixels of a model, and the choice of kernels.",
        ("devices", "pixels", "kernels.choice"),
    ),
)
_FRONT_DOOR = (
    "applications.application",
    "applications.list_models",
    "applications.list_weights",
    "imagenet.preprocess_input",
    "imagenet.decode_predictions",
    "models.ends.replace_head",
    "weights.save.save_checkpoint",
    "train.finetune.finetune",
    "models.vit.vision_transformer",
    "models.vit.embed_patches",
    "models.vit.encode_tokens",
    "models.resnet.resnet",
    "models.mae.masked_autoencoder",
    "models.mae.encoder_of",
    "models.mae.reconstruct",
    "weights.huggingface_mae.save_vit_mae",
)
_CONFIGS = (
    "PretrainConfig",
    "FinetuneConfig",
    "MaskedPatchesConfig",
    "MAEConfig",
    "RunConfig",
    "DataConfig",
    "OptimizerConfig",
    "DevicesConfig",
    "LoopConfig",
)


def public_names(module: str) -> list[str]:
    """Returns the public names of a module: `__all__`, or what it defines without underscore.

    Example:
        >>> "TransformerBlock" in public_names("layers")
        True
    """
    found = importlib.import_module(f"keras_vit.{module}")
    if hasattr(found, "__all__"):
        return list(found.__all__)
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == found.__name__
    ]


def _describe_module(page: str, title: str, introduction: str, modules: Iterable[str]) -> str:
    lines = [f"# {title}", introduction]
    for module in modules:
        lines.append(f"## keras_vit.{module}")
        for name in public_names(module):
            value = getattr(importlib.import_module(f"keras_vit.{module}"), name)
            lines += _describe_name(module, name, value)
    return "\n\n".join(lines)


def _describe_name(module: str, name: str, value: object) -> list[str]:
    if inspect.ismodule(value):
        return [
            line
            for each in public_names(f"{module}.{name}")
            for line in _describe_name(f"{module}.{name}", each, getattr(value, each))
        ]
    home = getattr(value, "__module__", None)
    if home and not home.startswith(f"keras_vit.{module}") and home.startswith("keras_vit."):
        return [f"### {name}", f"See [`{home}.{name}`][]."]  # an entry has one page
    if (inspect.isclass(value) or inspect.isfunction(value)) and home:
        return [f"::: {home}.{name}\n    options: {{heading_level: 3}}"]
    return [
        f"### {name}",
        f"`keras_vit.{module}.{name}`, {type(value).__name__}: `{value!r:.200}`.",
    ]


def describe_models() -> str:
    """Returns the page of the front door: every model, and the functions beside them."""
    groups = (
        ("The paper's models", VIT_VARIANTS),
        ("ResNets", RESNET_VARIANTS),
        ("Other plain ViTs", FAMILY_VARIANTS),
    )
    lines = [
        "# Models",
        "Each name is a function that returns a functional `keras.Model`. All take the arguments of "
        "[`ViT_B16`](#vit_b16). Parameters, tokens and MACs are those of the classifier with 1000 "
        "classes at the image size of the table.",
    ]
    for title, rows in groups:
        lines += [
            f"## {title}",
            table(
                ["name", "parameters", "image", "tokens", "MACs", "tags of weights"],
                [_describe_row(name) for name in rows if name in keras_vit.list_models()],
            ),
        ]
    lines += [
        "## Arguments",
        "### ViT_B16",
        f"```python\n{_format_signature(keras_vit.ViT_B16)}\n```",
        _docstring_markdown(keras_vit.ViT_B16),
    ]
    lines += ["## Functions"]
    lines += [f"::: keras_vit.{name}\n    options: {{heading_level: 3}}" for name in _FRONT_DOOR]
    return "\n\n".join(lines)


def _describe_row(name: str) -> list[str]:
    row = VARIANTS[name]
    size = cost.native_size(row)
    tokens = "-" if name in RESNET_VARIANTS else f"{cost.tokens(row, size):,}"
    card = model_card_page(name)
    return [
        f"[`{name}`{{.whole}}]({card}#{name.lower()})",
        f"{cost.parameters(row) / 1e6:,.1f} M",
        f"{size[0]} x {size[1]}",
        tokens,
        f"{cost.macs(row, size) / 1e9:,.1f} G",
        str(len(keras_vit.list_weights(name))),
    ]


def _format_signature(function: Callable) -> str:
    words = [str(each) for each in inspect.signature(function).parameters.values()]
    return f"{function.__name__}(\n    " + ",\n    ".join(words) + ",\n)"


def _docstring_markdown(function: Callable) -> str:
    """Returns a docstring with its arguments as a list and its example as a block."""
    text = inspect.getdoc(function) or ""
    text = re.sub(r"^    (\w+(?:, \w+)*): ", r"- `\1`: ", text, flags=re.MULTILINE)
    text = re.sub(r"^        +", "  ", text, flags=re.MULTILINE)
    text = re.sub(r"^(Args|Raises|Returns|Example):$", r"**\1**\n", text, flags=re.MULTILINE)
    return re.sub(
        r"((?:^    .*\n?)+)",
        lambda found: "```pycon\n" + inspect.cleandoc(found[1]) + "\n```\n",
        text,
        flags=re.MULTILINE,
    )


# --- model cards ---


def family_of(name: str) -> str:
    """Returns the family of a model, as in the name of its page.

    Example:
        >>> family_of("DINOv2_B14"), family_of("R50_ViT_B16"), family_of("ViT_B16")
        ('DINOv2', 'hybrids', 'ViT')
    """
    row = VARIANTS[name]
    if name in RESNET_VARIANTS:
        return "BiT" if name.startswith("BiT") else "ResNet"
    if getattr(row, "stem", None) is not None:
        return "hybrids"
    return name.split("_")[0]


def families() -> dict[str, list[str]]:
    """Returns {family: models}."""
    found: dict[str, list[str]] = {}
    for name in keras_vit.list_models():
        found.setdefault(family_of(name), []).append(name)
    return found


def model_card_page(name: str) -> str:
    return f"cards/{family_of(name)}.md"


def describe_family(family: str) -> str:
    """Returns the cards of the models of a family, as one page."""
    cards = (model_card.format_model_card(name) for name in families()[family])
    return f"# {family}: model cards\n\n" + "\n\n".join(
        re.sub(r"^#", "##", card, flags=re.MULTILINE) for card in cards
    )


def list_families() -> str:
    """Returns the page that leads to the cards."""
    rows = [
        [f"[{family}](cards/{family}.md)", ", ".join(f"`{name}`" for name in names)]
        for family, names in families().items()
    ]
    return "\n\n".join(
        [
            "# Model cards",
            "Origin, licence, training data, pixels, published numbers, "
            "cost, known limits and citation of each model, as printed by "
            f"`{PROGRAM} info MODEL --markdown`.",
            table(["family", "models"], rows),
        ]
    )


# --- flags ---


def describe_commands() -> str:
    """Returns the page of all commands with all their flags."""
    lines = [
        "# Commands",
        "All commands and flags. [Commands](../commands.md) has examples, output "
        "formats and exit codes.",
    ]
    for name, command in COMMANDS.items():
        values = flags.FlagValues()
        command.define(values)
        rows = [
            [f"`--{flag.name}`{{.whole}}", _format_default(flag.default), flag.help]
            for flag in {values[key].name: values[key] for key in values}.values()
        ]
        usage = f"{PROGRAM} {name} {command.arguments} [flags]".replace("  ", " ")
        lines += [
            f"## {name}",
            f"```text\n{usage}\n```",
            command.details,
            f"Example: `{command.example}`",
        ]
        lines += [table(["flag", "default", "meaning"], _escape(rows))] if rows else []
    return "\n\n".join(lines)


def describe_scripts() -> str:
    """Returns the page of all scripts of `experiments/` with all their flags."""
    lines = [
        "# Scripts",
        "The scripts in `experiments/`, with all their flags. "
        "[Experiments](../experiments/README.md) explains them.",
    ]
    for path in sorted((ROOT / "experiments").rglob("*.py")):
        rows = script_flags(path)
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if rows:
            name = path.relative_to(ROOT).as_posix()
            lines += [
                f"## {name}",
                text.split("\n\n")[0],
                table(["flag", "default", "meaning"], _escape(rows)),
            ]
    return "\n\n".join(lines)


def script_flags(path: Path) -> list[list[str]]:
    """Returns (flag, default, help) of each flag that a file defines, read from its source: the
    scripts are programs, and importing all of them into one process defines some flags twice.
    Constants in defaults and texts are replaced by their values."""
    rows, script = [], ast.parse(path.read_text(encoding="utf-8"))
    for call in ast.walk(script):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr.startswith("DEFINE_")
        ):
            name, default, *rest = call.args
            named = {each.arg: each.value for each in call.keywords}
            text = named.get("help") or rest[-1]
            try:
                value = _evaluate(default, script, path)
            except LookupError:  # it depends on the machine
                value = ast.unparse(default)
            value = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
            rows.append(
                [
                    f"`--{ast.literal_eval(name)}`{{.whole}}",
                    _format_default(value),
                    _evaluate(text, script, path),
                ]
            )
    return rows


def _evaluate(node: ast.expr, script: ast.Module, path: Path) -> Any:
    """Returns the value of an expression of constants that a script defines or imports."""
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    known = {name: _find_constant(name, script, path) for name in used - set(dir(builtins))}
    return eval(compile(ast.Expression(node), str(path), "eval"), known)


def _find_constant(name: str, script: ast.Module, path: Path) -> Any:
    for line in script.body:
        if isinstance(line, ast.ImportFrom):
            for alias in line.names:
                if name == (alias.asname or alias.name):
                    with _importable(path.parent):
                        return getattr(importlib.import_module(str(line.module)), alias.name)
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            if isinstance(line.value, ast.Dict):  # flags name its keys
                return dict.fromkeys(_evaluate(key, script, path) for key in line.value.keys)
            return _evaluate(line.value, script, path)
    raise LookupError(f"{path} neither defines nor imports {name}.")


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Finds modules in the folder of a script, as Python does for the script."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _format_default(value: object) -> str:
    return "" if value in (None, "") else f"`{value}`"


def _escape(rows: list[list[str]]) -> list[list[str]]:
    """Returns the cells without line breaks and, outside of code, without HTML."""
    code_or_tag = re.compile(r"(`[^`]*`)|<")
    return [
        [code_or_tag.sub(lambda m: m[1] or "&lt;", " ".join(cell.split())) for cell in row]
        for row in rows
    ]


# --- recipes ---


def describe_recipes() -> str:
    """Returns the page of all fields of a recipe, and of all recipes."""
    from keras_vit import train

    lines = [
        "# Recipes",
        "A recipe is a Python file with a function `get_config(arg)` that returns "
        "one of the configs below. On the command line, `--config.<field>=value` changes a "
        "field, and a dot leads into a config inside it: "
        "`--config.run.optimizer.learning_rate=0.003`.",
    ]
    for name in _CONFIGS:
        config = getattr(train, name)
        meanings = field_meanings(config)
        rows = [
            [
                f"`{field.name}`{{.whole}}",
                _format_type(field.type),
                _format_field_default(field),
                meanings[field.name],
            ]
            for field in dataclasses.fields(config)
        ]
        lines += [
            f"## {name}",
            inspect.getdoc(config).split("\n\n")[0],
            table(["field", "type", "default", "meaning"], _escape(rows)),
        ]
    lines.append("## Files")
    rows = []
    for path in sorted((ROOT / "experiments/configs").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        rows.append([f"`{path.relative_to(ROOT)}`", text.split("\n\n")[0]])
    return "\n\n".join([*lines, table(["recipe", "content"], _escape(rows))])


def field_meanings(config: type) -> dict[str, str]:
    """Returns the texts of the section `Attributes:` of a config.

    Raises:
        ValueError: If a field has no text.
    """
    text = inspect.getdoc(config) or ""
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    found: dict[str, str] = {}
    for names, meaning in re.findall(
        r"^    ([\w, ]+): ((?:.*)(?:\n        .*)*)", section[1] if section else "", re.MULTILINE
    ):
        found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    missing = [field.name for field in dataclasses.fields(config) if field.name not in found]
    if missing:
        raise ValueError(f"The docstring of {config.__name__} does not describe {missing}.")
    return found


def _format_type(kind: object) -> str:
    """Returns a type as it is written in code."""
    name = kind.__name__ if inspect.isclass(kind) else re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(kind))
    return f"`{name}`"


def _format_field_default(field: dataclasses.Field) -> str:
    if dataclasses.is_dataclass(field.default):
        return f"[{type(field.default).__name__}](#{type(field.default).__name__.lower()})"
    return "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"


# --- the list of all pages ---


def list_reference() -> str:
    """Returns the first page of the reference: every public name with its page."""
    rows = [
        [
            "`keras_vit`",
            "[Models](models.md)",
            "all models; " + ", ".join(f"`{name.split('.')[-1]}`" for name in _FRONT_DOOR),
        ]
    ]
    for page, title, _, modules in _MODULE_PAGES:
        for module in modules:
            names = ", ".join(f"`{name}`" for name in public_names(module))
            rows.append([f"`keras_vit.{module}`", f"[{title}]({page}.md)", names])
    return "\n\n".join(
        [
            "# Reference",
            "Every public name, with the page that describes it.",
            table(["module", "page", "names"], rows),
        ]
    )


def make_pages() -> dict[str, str]:
    """Returns {path of a page: its Markdown}."""
    pages = {
        "reference/index.md": list_reference(),
        "reference/models.md": describe_models(),
        "reference/cards.md": list_families(),
        "reference/commands.md": describe_commands(),
        "reference/scripts.md": describe_scripts(),
        "reference/recipes.md": describe_recipes(),
    }
    for family in families():
        pages[f"reference/cards/{family}.md"] = describe_family(family)
    for page, title, introduction, modules in _MODULE_PAGES:
        pages[f"reference/{page}.md"] = _describe_module(page, title, introduction, modules)
    return pages
