"""The studies: the ablations of the paper, with their arms and the paper's claims about them.

What lives here: configs, derived from one base with `dataclasses.replace`, and claims as arithmetic
on the accuracies of the arms. What does not: the script that runs them (`ablations.py`), and the
report (`ablations/report.py`).

There are two sizes. `cifar10`: a ViT of 10.7 million multiply-adds per image, and the crops of
`configs/cifar10_scratch.py`, with the paper's optimizer, for 1.5 epochs. `smoke`: tiny models on
scikit-learn's digits, in seconds. In both, Transformers have the head and the positions of the
base (mean of the patches, fixed positions), unless the study varies them.

Source: arXiv:2010.11929, Figures 4, 5, 8, 9 and 13, Tables 6 to 8, sections 3.2, B.1.1 and D.1 to
    D.6.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean

from ablations.arms import (
    CONFIGS,
    SIZES,
    START,
    Accuracies,
    Arm,
    Claim,
    Study,
    better,
    change_config,
    make_base,
    make_resnet,
    match_macs,
)
from keras_vit.paper import POSITION_EMBEDDINGS, published
from keras_vit.suggestions import did_you_mean
from keras_vit.train import FinetuneConfig, OptimizerConfig, PretrainConfig, load_config, smoke_form
from keras_vit.train.recipes import with_fields
from keras_vit.variants import VIT_VARIANTS


def _class_token(base: PretrainConfig, smoke: bool) -> Study:
    def arm(title: str, classifier: str, **rate: str) -> Arm:
        options = {"classifier": classifier, "position_embedding": "learned_1d"}
        return Arm(
            title=title,
            # the class token's learning rate in Figure 9; the paper's for GAP is 3e-4
            config=change_config(base, options=options, optimizer={"learning_rate": 8e-4}),
            **rate,
        )

    return Study(
        title="Class token or mean of the patches",
        source="arXiv:2010.11929, D.3, Figure 9",
        about=(
            "Compares a classifier on the class token with one on the mean of the patches (GAP), "
            "each at its own learning rate, and GAP at that of the class token too. The paper "
            "finds that both are similarly good, and that GAP needs another learning rate: 3e-4 "
            "instead of 8e-4. Position embeddings are learned, as in the paper."
        ),
        arms={
            "class_token": arm("class token", "token"),
            "gap": arm("GAP", "gap"),
            "gap_token_rate": arm("GAP, rate of the class token", "gap", rate_of="class_token"),
        },
        claims=(
            better(
                "gap", "gap_token_rate", "GAP is better at its own rate than at the class token's."
            ),
            replace(
                better("class_token", "gap", "Class token minus GAP, each at its own rate."),
                is_judged=False,
            ),
        ),
    )


def _positions(base: PretrainConfig, smoke: bool) -> Study:
    kinds = {"none": "none", "learned_1d": "1-D", "learned_2d": "2-D", "relative": "relative"}
    places = {
        "stem": "at the stem",
        "every_layer": "in every layer",
        "shared": "in every layer, shared",
    }
    arms = {}
    for (kind, place), percent in {**POSITION_EMBEDDINGS, ("sincos2d", "stem"): None}.items():
        where = places[place] if kind.startswith("learned") else ""
        title = f"{kinds.get(kind, 'fixed sine-cosine')} {where}".strip()
        options = {"classifier": "token", "position_embedding": kind, "position_placement": place}
        arms[f"{kind}_{place}"] = Arm(
            title=title, config=change_config(base, options=options), paper=percent
        )
    some = [name for name, arm in arms.items() if arm.paper is not None and name != "none_stem"]
    return Study(
        title="Position embeddings",
        source="arXiv:2010.11929, D.4, Table 8",
        about=(
            "Compares kinds of position embeddings and the places where they are added, with the "
            "class token as in the paper. The last arm, fixed positions, is not in Table 8."
        ),
        arms=arms,
        claims=(
            Claim(
                words="A model without position embeddings is worst.",
                value=lambda a: min(a[name] for name in some) - a["none_stem"],
            ),
            Claim(
                words="Kind and place matter less than having position embeddings at all.",
                value=lambda a: (
                    fmean(a[name] for name in some)
                    - a["none_stem"]
                    - (max(a[name] for name in some) - min(a[name] for name in some))
                ),
            ),
        ),
        paper_label="Table 8, %",
    )


def _shape_arms(base: PretrainConfig, middle: Mapping[str, int]) -> dict[str, Arm]:
    """Returns arms with one field scaled at a time, then all. The base is on every curve."""
    titles = {
        "depth": "Depth",
        "patch_size": "Patch size",
        "mlp_dim": "Width of the MLP",
        "width": "Width",
    }
    times = {
        "depth": (2, 4),
        "patch_size": (2, 1 / 2),
        "mlp_dim": (2, 4),
        "width": (2, 3),
    }
    arms = {
        "base": Arm(
            title="base",
            config=change_config(base, variant=middle),
            families=(*titles.values(), "All"),
        )
    }
    for field, title in titles.items():
        for factor in times[field]:
            value = int(factor * middle[field])
            config = change_config(base, variant={**middle, field: value})
            arms[f"{field}_x{factor:g}"] = Arm(
                title=f"{title[0].lower()}{title[1:]} {value}", config=config, families=(title,)
            )
    fields = {field: 3 * value // 2 for field, value in middle.items()}
    fields["patch_size"] = middle["patch_size"] // 2
    arms["all_x1.5"] = Arm(
        title=f"all, 1.5 times; patches of {fields['patch_size']}",
        config=change_config(base, variant=fields),
        families=("All",),
    )
    return arms


def _shape(base: PretrainConfig, smoke: bool) -> Study:
    middle = {"patch_size": 8, "depth": 4, "width": 64, "mlp_dim": 128}
    middle = {"patch_size": 8, "depth": 2, "width": 16, "mlp_dim": 32} if smoke else middle
    arms = _shape_arms(base, middle)
    others = ("depth_x4", "patch_size_x0.5", "mlp_dim_x4")

    def gain(a: Accuracies, name: str) -> float:
        return (a[name] - a["base"]) / math.log2(arms[name].macs / arms["base"].macs)

    each = "points for each doubling of compute"
    return Study(
        title="The shape of a Transformer",
        source="arXiv:2010.11929, D.2, Figure 8",
        about=(
            "One dimension changes at a time, then all together, from a base of {depth} layers of "
            "width {width}, MLPs of width {mlp_dim} and patches of {patch_size} pixels. The "
            "paper's base has 8 layers of width 1024, MLPs of width 2048 and patches of 32 pixels, "
            "on images of 224 pixels; the paper only plots its other values."
        ).format(**middle),
        arms=arms,
        claims=(
            Claim(
                words="Scaling the depth gains more than scaling the width.",
                value=lambda a: gain(a, "depth_x4") - gain(a, "width_x3"),
                unit=each,
            ),
            Claim(
                words="Scaling the width gains least.",
                value=lambda a: min(gain(a, name) for name in others) - gain(a, "width_x3"),
                unit=each,
            ),
            better("patch_size_x0.5", "base", "Smaller patches are better."),
            better("all_x1.5", "base", "Scaling all dimensions together is better."),
        ),
        picture="compute",
    )


def _optimizer(base: PretrainConfig, smoke: bool) -> Study:
    steps = base.run.loop.total_steps
    sgd = {
        "name": "momentum",
        "options": {"momentum": 0.9},
        "learning_rate": 0.03 * base.run.batch_size / 256,
        "schedule": "staircase",
        "schedule_options": {
            "boundaries": tuple(round(steps * part / 90) for part in (30, 60, 80))
        },
        "weight_decay": 1e-4 / (1 - 0.9),  # BiT adds it to the loss: see configs/bit_pretrain.py
    }
    models = {"small": "ResNet50x1", "large": "ResNet152x2"}
    units = {"small": (1,), "large": (1, 1)} if smoke else {"small": (1, 1), "large": (2, 2)}
    numbers = {
        (row.model, row.optimizer): row.accuracy
        for row in published(table="Table 7", dataset="average5")
    }
    arms = {
        f"{rule}_{size}": Arm(
            title=f"{title}, {size} ResNet",
            config=change_config(make_resnet(base, units[size]), optimizer=fields),
            paper=numbers[model, rule],
            paper_of=model,
        )
        for size, model in models.items()
        for rule, title, fields in (("adam", "Adam", {}), ("sgd", "SGD", sgd))
    }
    return Study(
        title="Adam or SGD for ResNets",
        source="arXiv:2010.11929, D.1, Table 7",
        about=(
            "Compares ResNets trained with Adam, like the base, and by BiT's rule "
            "(arXiv:1912.11370, 3.3): SGD with momentum, a learning rate of 0.03 per 256 images, "
            "divided by 10 after 30/90, 60/90 and 80/90 of the run. The paper's numbers are means "
            "over five data sets, fine-tuned after 7 epochs of JFT-300M; it does not name the "
            "steps of its schedule."
        ),
        arms=arms,
        claims=(
            better("adam_small", "sgd_small", "Adam is better than SGD: smaller ResNet."),
            better("adam_large", "sgd_large", "Adam is better than SGD: larger ResNet."),
        ),
        metric="test",
        paper_label="Table 7, %",
    )


def _axial(base: PretrainConfig, smoke: bool) -> Study:
    arms = {}
    for patch in (4, 2) if smoke else (8, 4):
        for axial, family in ((False, "ViT"), (True, "Axial ViT")):
            config = change_config(base, variant={"patch_size": patch, "axial": axial})
            name = f"{'axial_' * axial}vit_{patch}"
            arms[name] = Arm(
                title=f"{family}, patches of {patch}", config=config, families=(family,)
            )
    for axial, family in ((False, "ResNet"), (True, "Axial ResNet")):
        config = make_resnet(base, (1, 1), axial=axial)
        arms[f"{'axial_' * axial}resnet"] = Arm(title=family, config=config, families=(family,))
    plain = [name for name in arms if not name.startswith("axial")]
    return Study(
        title="Axial attention",
        source="arXiv:2010.11929, D.6, Figure 13",
        about=(
            "Attention along rows, then along columns, replaces attention among all patches, and "
            "the 3 x 3 convolutions of a ResNet. The paper reports that AxialResNet is slow in "
            "practice; see the column images/s."
        ),
        arms=arms,
        claims=tuple(
            better(f"axial_{name}", name, f"Axial attention improves it: {arms[name].title}.")
            for name in plain
        ),
        picture="compute",
    )


def _hybrid_arms(base: PretrainConfig, smoke: bool) -> dict[str, Arm]:
    """Returns the arms. The ResNet sets the compute of a level; the MLPs of the other two are
    scaled to match it.
    """
    stem = replace(VIT_VARIANTS["R50_ViT_B16"].stem, units=(1,))
    # Units of the ResNet; width and depth of the ViT; depth of the hybrid.
    levels = {
        "small": ((1, 1), 32, 2, 1) if smoke else ((1, 1), 64, 5, 2),
        "large": ((2, 2), 32, 4, 2) if smoke else ((3, 3), 96, 6, 4),
    }
    models = {
        "small": ("ViT_B32", "R50_ViT_B32", "ResNet50x1"),
        "large": ("ViT_L32", "R50_ViT_L32", "ResNet50x2"),
    }
    rows = {
        row.model: row for row in published(table="Table 6", dataset="average5") if row.epochs == 7
    }
    arms = {}
    for level, (units, width, depth, hybrid_depth) in levels.items():
        resnet = make_resnet(base, units)
        vit = change_config(base, variant={"width": width, "depth": depth})
        hybrid = change_config(
            base, variant={"width": width, "depth": hybrid_depth, "patch_size": 1, "stem": stem}
        )
        macs = Arm(title="", config=resnet).macs
        configs = {
            "ViT": match_macs(vit, macs),
            "Hybrid": match_macs(hybrid, macs),
            "ResNet": resnet,
        }
        for (family, config), model in zip(configs.items(), models[level], strict=True):
            arms[f"{family.lower()}_{level}"] = Arm(
                title=f"{family}, {level}",
                config=config,
                families=(family,),
                paper=rows[model].accuracy,
                paper_of=f"{model}, {rows[model].exaflops} exaFLOPs",
            )
    return arms


def _hybrid(base: PretrainConfig, smoke: bool) -> Study:
    return Study(
        title="Hybrids at equal compute",
        source="arXiv:2010.11929, 4.4, Figure 5, Table 6",
        about=(
            "Compares a ViT, a hybrid and a ResNet at equal compute, at two levels; the widths of "
            "the MLPs are chosen to match the compute. The paper's numbers are means over five "
            "data sets, fine-tuned after JFT-300M, of models with the compute in brackets."
        ),
        arms=_hybrid_arms(base, smoke),
        claims=(
            better(
                "hybrid_small", "vit_small", "At small compute the hybrid is better than the ViT."
            ),
            Claim(
                words="At larger compute the hybrid's lead over the ViT is smaller.",
                value=lambda a: (
                    a["hybrid_small"] - a["vit_small"] - (a["hybrid_large"] - a["vit_large"])
                ),
            ),
            better(
                "vit_small", "resnet_small", "At small compute the ViT is better than the ResNet."
            ),
            better(
                "vit_large", "resnet_large", "At larger compute the ViT is better than the ResNet."
            ),
        ),
        picture="compute",
        paper_label="Table 6, %",
    )


def _crop(base: PretrainConfig, smoke: bool) -> Study:
    start = load_config(str(CONFIGS / "fractals_cifar10.py"))
    start = smoke_form(start) if smoke else replace(start, variant=base.variant)
    # Table 4: SGD, cosine, no decay, gradient clipping at 1; the largest of its rates for CIFAR-10
    optimizer = OptimizerConfig(
        name="momentum",
        options={"momentum": 0.9},
        learning_rate=0.03,
        schedule="cosine",
        warmup_steps=base.run.optimizer.warmup_steps,
        clip_norm=1.0,
    )
    model = {
        name: getattr(start, name) for name in ("model", "variant", "model_options", "image_size")
    }
    titles = {
        "inception": "Inception crop",
        "resize_crop": "resize, random crop",
        "resize": "resize only",
    }
    arms = {}
    for crop, title in titles.items():
        run = replace(
            base.run, optimizer=optimizer, data=replace(base.run.data, crop=crop, crop_area=0.05)
        )
        arms[crop] = Arm(title=title, config=FinetuneConfig(weights=START, run=run, **model))
    return Study(
        title="Crops in fine-tuning",
        source="arXiv:2010.11929, 4.1 and B.1.1",
        about=(
            "One model, pre-trained on fractals, is fine-tuned with three crop policies. The paper "
            "describes the random crop of BiT; its authors state that they used Inception crops "
            "(google-research/vision_transformer, issue 53). Neither source publishes a "
            "comparison."
        ),
        arms=arms,
        metric="test",
        start=start,
    )


def _data_size_arms(base: PretrainConfig, smoke: bool) -> dict[str, Arm]:
    """Returns the arms. Every evaluation has a checkpoint, as early stopping selects the best of
    eight.
    """
    every = base.run.loop.total_steps // (4 if smoke else 8)
    loop = replace(base.run.loop, evaluate_every=every, checkpoint_every=every)
    base = replace(base, run=replace(base.run, loop=loop))
    half = {name: base.variant[name] // 2 for name in ("width", "mlp_dim")}
    models = {
        "vit": ("ViT", base),
        "half_vit": ("ViT of half the width", change_config(base, variant=half)),
        "resnet": ("ResNet", make_resnet(base, (1,) if smoke else (1, 1))),
    }
    return {
        f"{model}_{part}": Arm(
            title=f"{title}, {'all' if part == 1 else f'1/{part}'}",
            config=change_config(config, data={"held_out": 0.1, "train_share": 1 / part}),
            families=(title,),
        )
        for model, (title, config) in models.items()
        for part in ((9, 1) if smoke else (27, 9, 3, 1))
    }


def _data_size(base: PretrainConfig, smoke: bool) -> Study:
    arms = _data_size_arms(base, smoke)
    least = "9" if smoke else "27"
    return Study(
        title="Size of the training set",
        source="arXiv:2010.11929, 4.3, Figure 4",
        about=(
            "Trains with equal steps and settings on nested shares of the training set, without "
            "further regularization. A tenth of the set is held out, and the best checkpoint on it "
            "is measured (early stopping)."
        ),
        arms=arms,
        claims=(
            better(
                f"resnet_{least}",
                f"vit_{least}",
                "On the smallest share the ResNet is better than the ViT.",
            ),
            better("vit_1", "resnet_1", "On all data the ViT is better than the ResNet."),
            Claim(
                words="With more data the ViT's deficit becomes smaller.",
                value=lambda a: (
                    a[f"resnet_{least}"] - a[f"vit_{least}"] - (a["resnet_1"] - a["vit_1"])
                ),
            ),
            Claim(
                words="The larger ViT gains more from more data.",
                value=lambda a: (
                    a["vit_1"] - a[f"vit_{least}"] - (a["half_vit_1"] - a[f"half_vit_{least}"])
                ),
            ),
        ),
        picture="data",
    )


STUDIES: dict[str, Callable[[PretrainConfig, bool], Study]] = {
    "class_token": _class_token,
    "positions": _positions,
    "shape": _shape,
    "optimizer": _optimizer,
    "axial": _axial,
    "hybrid": _hybrid,
    "crop": _crop,
    "data_size": _data_size,
}


def make_study(
    name: str,
    size: str,
    data: Mapping[str, str] | None = None,
    changes: Mapping[str, str] | None = None,
) -> Study:
    """Returns a study.

    Args:
        name: A key of `STUDIES`.
        size: One of `SIZES`.
        data: Fields `kind` and `name` of the training data. Default: those of the recipe.
        changes: Changed fields of the base by their dotted names, as in
            `keras_vit.train.recipes.with_fields`. Derived values follow them, such as the steps of
            a learning-rate schedule from the length of the run.

    Raises:
        ValueError: If the study, the size or a field is unknown; suggests the closest names.
    """
    if name not in STUDIES:
        raise ValueError(
            f"There is no study {name!r}.{did_you_mean(name, STUDIES)} All: {', '.join(STUDIES)}."
        )
    if size not in SIZES:
        raise ValueError(f"`--size` must be one of {', '.join(SIZES)}. Received: {size!r}.")
    return STUDIES[name](with_fields(make_base(size, data or {}), changes or {}), size == "smoke")
