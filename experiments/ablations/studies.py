"""The studies: the ablations of the paper, with their arms and the paper's claims about them.

What lives here: configs, derived from one base with `dataclasses.replace`, and claims as arithmetic
on the accuracies of the arms. What does not: the script that runs them (`ablations.py`), and the
report (`ablations/report.py`).

There are two sizes. `cifar10`: a ViT of 10.7 million multiply-adds per image, and the crops of
`configs/cifar10_scratch.py`, with the paper's optimizer, for 1.5 epochs. `smoke`: tiny models on
scikit-learn's digits, in seconds. In both, Transformers have the head and the positions of the
base (mean of the patches, fixed positions), unless the study varies them.

Starts, which arms fine-tune, are trained by the recipes `configs/fractals_cifar10.py`,
`masked_patches.py:cifar10` and `mae.py:cifar10` with the model of the base, except in
`pretraining_size`, whose starts have the optimizer of the base, at the best rate of each model.

Source: arXiv:2010.11929, Figures 3 to 5, 8, 9 and 13, Tables 6 to 8, sections 3.2, 4.2 to 4.4, 4.6,
    B.1.1, B.1.2 and D.1 to D.6.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from ablations.arms import (
    CONFIGS,
    SIZES,
    SMOKE_STEPS,
    Accuracies,
    Arm,
    Claim,
    StartConfig,
    Study,
    better,
    change_config,
    change_steps,
    difference,
    make_base,
    make_finetuned,
    make_resnet,
    match_macs,
)
from keras_vit.paper import POSITION_EMBEDDINGS, published
from keras_vit.suggestions import did_you_mean
from keras_vit.train import OptimizerConfig, PretrainConfig, RunConfig, load_config, smoke_form
from keras_vit.train.recipes import with_fields
from keras_vit.variants import VIT_VARIANTS

# Table 4: SGD, cosine, no decay, gradient clipping at 1; the largest of its rates for CIFAR-10
SGD = OptimizerConfig(
    name="momentum",
    options={"momentum": 0.9},
    learning_rate=0.03,
    schedule="cosine",
    clip_norm=1.0,
)
# Of configs/cifar10_few_labels.py, where arms start from random weights too: with SGD, a ViT does
# not train well from these
MUON = OptimizerConfig(name="muon", learning_rate=3e-3, weight_decay=0.05)
# The best rates in the studies that were run first, `hybrid` (the small models), `crop`, `resolution`
# and `transfer`. As centers of the grids of the others they save trials.
BEST_RATES = {"ViT": 3e-3, "Hybrid": 3e-3, "ResNet": 9e-3}
BEST_SGD, BEST_MUON = replace(SGD, learning_rate=0.09), replace(MUON, learning_rate=9e-3)


def _make_start(recipe: str, base: PretrainConfig, smoke: bool, steps: int) -> StartConfig:
    """Returns the config of a start: a recipe with another length, and the model of the base."""
    config = load_config(str(CONFIGS / recipe))
    config = smoke_form(config) if smoke else config
    run = change_steps(config.run, SMOKE_STEPS if smoke else steps)
    if run.data.kind != "fractals":  # without labels and without the test images
        run = replace(run, data=replace(base.run.data, test=""))
    model = {
        name: getattr(base, name) for name in ("model", "variant", "model_options", "image_size")
    }
    return replace(config, run=run, **model)


def _make_fine_tuning(
    base: PretrainConfig, smoke: bool, optimizer: OptimizerConfig, steps: int
) -> RunConfig:
    """Returns the settings of a fine-tuning on the data of the base."""
    steps = SMOKE_STEPS if smoke else steps
    return change_steps(replace(base.run, optimizer=optimizer), steps)


def _take_share(run: RunConfig, share: float) -> RunConfig:
    return replace(run, data=replace(run.data, train_share=share))


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
        finding=(
            "A class token and the mean of the patches are similarly good, each at its own "
            "learning rate."
        ),
        about=(
            "This study compares a classifier on the class token with one on the mean of the patches (GAP), "
            "each at its own learning rate, and GAP at that of the class token too. The paper "
            "finds that both are similarly good, and that GAP needs another learning rate: 3e-4 "
            "instead of 8e-4, a ratio of 2.7. Rates that are tried differ by factors of 3. If the best "
            "rates of both are equal here, the last two arms are the same runs. Position embeddings "
            "are learned, as in the paper."
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
            better(
                "class_token",
                "gap",
                "The class token is better than GAP, each at its own rate (similar in the paper).",
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
        finding="Without position embeddings the model is worst; their kind and place hardly matter.",
        about=(
            "This study compares kinds of position embeddings and the places where they are added, with the "
            "class token as in the paper. The last arm, fixed positions, is not in Table 8, whose "
            "numbers are 5-shot accuracies of ViT-B/16 on ImageNet. The last claim compares a mean "
            "with the range of seven arms, which grows with the deviation between runs, so it "
            "tends to be rejected where deviations are large."
        ),
        arms=arms,
        claims=(
            Claim(
                words=(
                    "Position embeddings help: mean of the seven arms of Table 8 with them minus none."
                ),
                value=lambda a: fmean(a[name] for name in some) - a["none_stem"],
            ),
            better("learned_1d_stem", "none_stem", "1-D at the stem is better than none."),
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
    base = change_config(base, optimizer={"learning_rate": BEST_RATES["ViT"]})
    arms = _shape_arms(base, middle)
    scaled = {
        "depth": "depth_x4",
        "patches": "patch_size_x0.5",
        "mlp": "mlp_dim_x4",
        "width": "width_x2",
        "all": "all_x1.5",
    }
    times = {word: arms[name].macs / arms["base"].macs for word, name in scaled.items()}

    def gain(a: Accuracies, word: str) -> float:
        """Returns the points that a scaling gains for each doubling of compute."""
        return (a[scaled[word]] - a["base"]) / math.log2(times[word])

    each = "points for each doubling of compute"
    return Study(
        title="The shape of a Transformer",
        source="arXiv:2010.11929, D.2, Figure 8",
        finding="Scaling the depth helps most, the width least; smaller patches help too.",
        about=(
            "One dimension changes at a time, then all together, from a base of {depth} layers of "
            "width {width}, MLPs of width {mlp_dim} and patches of {patch_size} pixels. The "
            "paper's base has 8 layers of width 1024, MLPs of width 2048 and patches of 32 pixels, "
            "on images of 224 pixels; the paper only plots its other values. The gain for each "
            "doubling of compute may depend on the compute: the width is judged at "
            "{times[width]:.1f} times that of the base, the depth at {times[depth]:.1f}, the patches "
            "at {times[patches]:.1f}, the MLP at {times[mlp]:.1f}."
        ).format(**middle, times=times),
        arms=arms,
        claims=(
            Claim(
                words="Scaling the depth gains more than scaling the width.",
                value=lambda a: gain(a, "depth") - gain(a, "width"),
                unit=each,
            ),
            Claim(
                words="Scaling the width gains least.",
                value=lambda a: (
                    min(gain(a, word) for word in ("depth", "patches", "mlp")) - gain(a, "width")
                ),
                unit=each,
            ),
            better("patch_size_x0.5", "base", "Smaller patches are better."),
            better(
                "all_x1.5",
                "base",
                f"Scaling all dimensions together is better ({times['all']:.1f} times the compute).",
            ),
            *(
                difference(scaled[word], "base", f"{arms[scaled[word]].title} minus base.")
                for word in ("depth", "width", "mlp")
            ),
            difference(
                "all_x1.5",
                "patch_size_x0.5",
                "All dimensions together minus smaller patches alone.",
            ),
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
        finding="Pre-trained with Adam, ResNets are better on average than with SGD.",
        about=(
            "This study compares ResNets trained with Adam, like the base, and by BiT's rule "
            "(arXiv:1912.11370, 3.3): SGD with momentum, a learning rate of 0.03 per 256 images, "
            "divided by 10 after 30/90, 60/90 and 80/90 of the run. Optimizer and schedule change "
            "together, and the rates in these rules are the centers of the grids. The ResNets are "
            "trained from random weights. The paper pre-trains them with one of the optimizers for 7 "
            "epochs of JFT-300M; its numbers are means over five data sets after fine-tuning, and it "
            "does not name the steps of its schedule."
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
    plain = [
        (name, arm.title, arms[f"axial_{name}"].macs / arm.macs)
        for name, arm in arms.items()
        if not name.startswith("axial")
    ]
    return Study(
        title="Axial attention",
        source="arXiv:2010.11929, D.6, Figure 13",
        finding="Axial ViTs are better than the ViTs that they derive from, for more compute.",
        about=(
            "Attention along rows, then along columns, replaces attention among all patches, and "
            "the 3 x 3 convolutions of a ResNet. Each of the two attentions of an axial ViT has an "
            "MLP, so the model has about twice the parameters, and 1.6 to 1.8 times the compute; a "
            "plain ViT of twice the depth has as many parameters and 1.9 to 2.0 times the compute. "
            "The paper reports that AxialResNet is "
            "slow in practice, and does not say whether it is better than the ResNet."
        ),
        arms=arms,
        claims=tuple(
            better(
                f"axial_{name}",
                name,
                f"Axial attention improves the {title.replace(', ', ' with ')}, for {ratio:.2f} "
                "times the compute.",
                is_published=name != "resnet",
            )
            for name, title, ratio in plain
        ),
        picture="compute",
    )


def _make_equal_models(
    base: PretrainConfig, smoke: bool, level: str = "small"
) -> dict[str, PretrainConfig]:
    """Returns a ViT, a hybrid and a ResNet of equal compute. The ResNet sets the compute of a level;
    the MLPs of the other two are scaled to match it.
    """
    stem = replace(VIT_VARIANTS["R50_ViT_B16"].stem, units=(1,))
    # Units of the ResNet; width and depth of the ViT; depth of the hybrid.
    levels = {
        "small": ((1, 1), 32, 2, 1) if smoke else ((1, 1), 64, 5, 2),
        "large": ((2, 2), 32, 4, 2) if smoke else ((3, 3), 96, 6, 4),
    }
    units, width, depth, hybrid_depth = levels[level]
    resnet = make_resnet(base, units)
    vit = change_config(base, variant={"width": width, "depth": depth})
    hybrid = change_config(
        base, variant={"width": width, "depth": hybrid_depth, "patch_size": 1, "stem": stem}
    )
    macs = Arm(title="", config=resnet).macs
    return {"ViT": match_macs(vit, macs), "Hybrid": match_macs(hybrid, macs), "ResNet": resnet}


def _hybrid_arms(base: PretrainConfig, smoke: bool) -> dict[str, Arm]:
    models = {
        "small": ("ViT_B32", "R50_ViT_B32", "ResNet50x1"),
        "large": ("ViT_L32", "R50_ViT_L32", "ResNet50x2"),
    }
    rows = {
        row.model: row for row in published(table="Table 6", dataset="average5") if row.epochs == 7
    }
    arms = {}
    for level in models:
        configs = _make_equal_models(base, smoke, level)
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
        finding=(
            "ViTs are better than ResNets at equal compute; hybrids are better than ViTs at small "
            "compute, and at large compute no longer."
        ),
        about=(
            "This study compares a ViT, a hybrid and a ResNet at equal compute, at two levels; the widths of "
            "the MLPs are chosen to match the compute. All have equal steps, which may be too few "
            "for the larger ones. The paper's numbers are means over five data sets, fine-tuned "
            "after JFT-300M, of models with the compute in brackets."
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
    run = _make_fine_tuning(base, smoke, SGD, base.run.loop.total_steps)
    titles = {
        "inception": "Inception crop",
        "resize_crop": "resize, random crop",
        "resize": "resize only",
    }
    arms = {}
    for crop, title in titles.items():
        data = replace(run.data, crop=crop, crop_area=0.05)
        arms[crop] = make_finetuned(title, base, replace(run, data=data), start="fractals")
    return Study(
        title="Crops in fine-tuning",
        source="arXiv:2010.11929, 4.1 and B.1.1",
        finding="One crop policy is used in fine-tuning; it is not compared with others.",
        about=(
            "One model, pre-trained on fractals, is fine-tuned with three crop policies: Inception "
            "crops of 5 to 100 % of the image, random crops of a slightly enlarged image, and whole images. "
            "The paper describes the random crop of BiT; its authors state that they used Inception crops "
            "(google-research/vision_transformer, issue 53). Neither source publishes a "
            "comparison. The test uses whole images, as the policy `resize only` does in training, "
            "and 1.5 epochs leave little to regularize: longer fine-tunings may rank the policies "
            "in another order."
        ),
        arms=arms,
        claims=tuple(
            difference(one, other, f"{titles[one]} minus {titles[other]}")
            for one, other in (("resize_crop", "inception"), ("resize", "resize_crop"))
        ),
        metric="test",
        starts={"fractals": _make_start("fractals_cifar10.py", base, smoke, 1000)},
    )


def _data_size_arms(base: PretrainConfig, smoke: bool) -> dict[str, Arm]:
    """Returns the arms. Every evaluation has a checkpoint, as early stopping selects the best of
    eight.
    """
    every = base.run.loop.total_steps // (4 if smoke else 8)
    loop = replace(base.run.loop, evaluate_every=every, checkpoint_every=every)
    models = _make_equal_models(replace(base, run=replace(base.run, loop=loop)), smoke)
    return {
        f"{family.lower()}_{part}": Arm(
            title=f"{family}, {'all' if part == 1 else f'1/{part}'}",
            config=change_config(
                config,
                data={"held_out": 0.1, "train_share": 1 / part},
                optimizer={"learning_rate": BEST_RATES[family]},
            ),
            families=(family,),
        )
        for family, config in models.items()
        for part in ((9, 1) if smoke else (90, 27, 9, 3, 1))
    }


def _data_size(base: PretrainConfig, smoke: bool) -> Study:
    least = "9" if smoke else "90"
    steps = base.run.loop.total_steps
    epochs = steps * base.run.batch_size / (0.9 * (1437 if smoke else 50_000))

    def falls(one: str, words: str) -> Claim:
        """Returns the claim that the lead of a model over the ViT falls with data."""
        return Claim(
            words=words,
            value=lambda a: a[f"{one}_{least}"] - a[f"vit_{least}"] - (a[f"{one}_1"] - a["vit_1"]),
            is_published=one == "resnet",
        )

    return Study(
        title="Size of the training set",
        source="arXiv:2010.11929, 4.3, Figure 4",
        finding=(
            "With little data ResNets are better than ViTs, with much data ViTs are better: the "
            "inductive bias of convolutions helps with small data sets only."
        ),
        about=(
            "This study trains a ViT, a hybrid and a ResNet of equal compute from random weights, with equal "
            "steps and settings, on nested shares of the training set, without further "
            f"regularization: {steps} steps are {int(least) * epochs:.0f} epochs of the smallest "
            f"share and {epochs:.1f} of all images, so with much data the speed of learning decides. "
            "A tenth of the set is held out, and the best checkpoint on it is measured (early "
            "stopping). The paper pre-trains on 9 to 303 million images of JFT-300M; it does not "
            "compare hybrids here."
        ),
        arms=_data_size_arms(base, smoke),
        claims=(
            better(
                f"resnet_{least}",
                f"vit_{least}",
                "On the smallest share the ResNet is better than the ViT.",
            ),
            better("vit_1", "resnet_1", "On all data the ViT is better than the ResNet."),
            falls("resnet", "With more data the ResNet's lead over the ViT becomes smaller."),
            better(
                f"hybrid_{least}",
                f"vit_{least}",
                "On the smallest share the hybrid is better than the ViT.",
                is_published=False,
            ),
            better(
                "vit_1",
                "hybrid_1",
                "On all data the ViT is better than the hybrid.",
                is_published=False,
            ),
            falls("hybrid", "With more data the hybrid's lead over the ViT becomes smaller."),
        ),
        picture="data",
    )


def _pretraining_size(base: PretrainConfig, smoke: bool) -> Study:
    # images per class; of the stream a run sees a part, and no image twice
    num_classes, each, stream = (8, (2, 20), 1000) if smoke else (200, (5, 25, 125, 625), 3125)
    sizes = [num_classes * count for count in each]
    sets = {str(size): (f"{size:,} images", size // num_classes) for size in sizes}
    sets["endless"] = "endless stream", stream
    steps = SMOKE_STEPS if smoke else 1000
    fractals = load_config(str(CONFIGS / "fractals_cifar10.py")).run.data
    run = _make_fine_tuning(base, smoke, BEST_SGD, 200)
    run = _take_share(run, 0.5 if smoke else 0.04)
    starts, arms = {}, {}
    for family, config in _make_equal_models(base, smoke).items():
        for size, (title, count) in sets.items():
            data = replace(fractals, num_classes=num_classes, images_per_class=count, test="")
            settings = change_steps(replace(config.run, data=data), steps)
            optimizer = replace(settings.optimizer, learning_rate=BEST_RATES[family])
            settings = replace(settings, optimizer=optimizer)
            name = f"{family.lower()}_{size}"
            starts[f"fractals_{name}"] = replace(config, run=settings)
            arms[name] = make_finetuned(
                f"{family}, {title}",
                config,
                run,
                start=f"fractals_{name}",
                families=(family,),
            )
    least, most = sizes[0], sizes[-1]
    return Study(
        title="Size of the pre-training set",
        source="arXiv:2010.11929, 4.3, Figures 3 and 4",
        finding=(
            "After pre-training on few images ResNets transfer better than ViTs, after "
            "pre-training on many ViTs transfer better."
        ),
        about=(
            "This study pre-trains a ViT, a hybrid and a ResNet of equal compute on {classes} classes of "
            "generated fractals, with labels, on {numbers} images and on an endless stream: of "
            "{stream:,} images a run sees {seen:,}, none of them twice. All have equal steps and "
            "settings, and smaller sets are part of larger ones. Pre-trainings have the learning rate "
            "that is best for their model on CIFAR-10 (study `hybrid`), and no early stopping. Then 5-shot "
            "regression on the frozen features, which are wider in the ResNet, and fine-tuning on "
            "{labels} labels of CIFAR-10. The paper pre-trains on ImageNet, ImageNet-21k and JFT-300M "
            "(Figure 3), and on 9 to 303 million images of JFT-300M (Figure 4)."
        ).format(
            classes=num_classes,
            numbers=", ".join(f"{size:,}" for size in sizes),
            stream=num_classes * stream,
            seen=steps * base.run.batch_size,
            labels="half of the" if smoke else "2,000",
        ),
        arms=arms,
        claims=(
            better(
                f"resnet_{least}",
                f"vit_{least}",
                f"After {least:,} images the ResNet transfers better than the ViT.",
            ),
            better(
                f"vit_{most}",
                f"resnet_{most}",
                f"After {most:,} images the ViT transfers better than the ResNet.",
            ),
            better(
                "vit_endless",
                "resnet_endless",
                "After the endless stream the ViT transfers better than the ResNet.",
            ),
            Claim(
                words=f"From {least:,} to {most:,} images the ViT gains more than the ResNet.",
                value=lambda a: (
                    a[f"vit_{most}"]
                    - a[f"vit_{least}"]
                    - (a[f"resnet_{most}"] - a[f"resnet_{least}"])
                ),
            ),
            *(
                difference(
                    f"{family.lower()}_{one}", f"{family.lower()}_{other}", f"{family}: {words}."
                )
                for family in ("ViT", "Hybrid", "ResNet")
                for one, other, words in (
                    (most, least, f"{most:,} images minus {least:,}"),
                    ("endless", most, f"endless stream minus {most:,} images"),
                )
            ),
        ),
        picture="pretraining",
        metrics=("pretrained", "test"),
        metric="pretrained",
        starts=starts,
    )


def _self_supervision(base: PretrainConfig, smoke: bool) -> Study:
    recipes = {
        "masked_patches": "masked_patches.py:cifar10",
        "mae": "mae.py:cifar10",
        "supervised": "fractals_cifar10.py",
    }
    steps = SMOKE_STEPS if smoke else 600
    starts = {name: _make_start(recipe, base, smoke, steps) for name, recipe in recipes.items()}
    if smoke:
        starts["mae"] = replace(starts["mae"], decoder_width=32, decoder_depth=1)
    titles = {
        "": "Random weights",
        "masked_patches": "Masked patches",
        "mae": "MAE",
        "supervised": "Supervised on fractals",
    }
    shares = {"1": 0.01, "2": 0.02, "10": 0.1, "100": 1.0}
    shares = {"1": 0.1, "2": 0.2, "10": 0.5, "100": 1.0} if smoke else shares
    run = _make_fine_tuning(base, smoke, BEST_MUON, 400)  # just over one epoch of all labels
    arms = {
        f"{start or 'scratch'}_{percent}": make_finetuned(
            f"{title}, {100 * share:g} % of the labels",
            base,
            _take_share(run, share),
            start=start,
            families=(title,),
        )
        for start, title in titles.items()
        for percent, share in shares.items()
    }

    masked = "masked_patches"

    def claim(one: str, other: str, percent: str, words: str) -> Claim:
        return better(
            f"{one}_{percent}",
            f"{other}_{percent}",
            f"{words}, {100 * shares[percent]:g} % of the labels.",
            is_published=(one, percent) == (masked, "100"),
        )

    pairs = (
        (masked, "scratch", "Masked patches are better than random weights"),
        ("supervised", masked, "Supervised pre-training on fractals is better than masked patches"),
        ("mae", masked, "MAE is better than masked patches"),
    )
    return Study(
        title="Self-supervision",
        source="arXiv:2010.11929, 4.6, B.1.2; arXiv:2111.06377",
        finding=(
            "Masked patch prediction is 2 points better than training from random weights, and 4 "
            "points worse than supervised pre-training (ViT-B/16 on ImageNet)."
        ),
        about=(
            "Starts of equal batches and steps: masked patch prediction and a masked autoencoder "
            "on all training images of CIFAR-10 without labels, and labelled fractals. Each, and "
            "random weights, is fine-tuned on nested shares of the labels. Fractals are other "
            "images than those of the task, so the comparison with supervised pre-training is not "
            "that of the paper; the fine-tuning uses Muon, as a ViT does not train well from random "
            f"weights with the paper's SGD; a start takes {steps} steps more than random weights; and "
            "MAE computes less per step, as its encoder sees a quarter of the patches. The images on "
            "which learning rates are compared are among those of the starts; the test images are not. "
            "The paper pre-trains on JFT-300M without labels and on ImageNet-21k with labels."
        ),
        arms=arms,
        claims=tuple(
            claim(one, other, percent, words) for one, other, words in pairs for percent in shares
        ),
        picture="data",
        metrics=("test",),
        metric="test",
        starts=starts,
    )


def _transfer(base: PretrainConfig, smoke: bool) -> Study:
    images = 1437 if smoke else 50_000
    sizes = (70, 350, 700) if smoke else (100, 1_000, 10_000)
    run = _make_fine_tuning(base, smoke, MUON, 300)
    arms = {
        f"{name}_{size}": make_finetuned(
            f"{title}, {size:,} labels",
            base,
            _take_share(run, size / images),
            start=start,
            families=(title,),
        )
        for name, title, start in (
            ("pretrained", "Pre-trained on fractals", "fractals"),
            ("scratch", "Random weights", ""),
        )
        for size in sizes
    }
    least, most = sizes[0], sizes[-1]
    start = _make_start("fractals_cifar10.py", base, smoke, 1000)
    return Study(
        title="Transfer to few labels",
        source="arXiv:2010.11929, 4.2, Table 2",
        finding="Pre-trained on much data, ViTs transfer well to tasks with few labels.",
        about=(
            "A ViT that is pre-trained on labelled fractals is fine-tuned on few labels of "
            "CIFAR-10, and the same model is trained on them from random weights, with as many "
            "steps as the fine-tuning and its own learning rate; pre-training takes "
            f"{start.run.loop.total_steps:,} steps more. Both use Muon, as a ViT does not train well "
            "from random weights with the paper's SGD. Learning rates are compared on 5,000 "
            "labelled images, more than a user with few labels has. The paper has no results from "
            "random weights on its small tasks."
        ),
        arms=arms,
        claims=(
            *(
                better(
                    f"pretrained_{size}",
                    f"scratch_{size}",
                    f"{name}, pre-training helps.",
                    is_published=False,
                )
                for size, name in ((each, f"With {each:,} labels") for each in sizes)
            ),
            Claim(
                words="With more labels pre-training helps less.",
                value=lambda a: (
                    a[f"pretrained_{least}"]
                    - a[f"scratch_{least}"]
                    - (a[f"pretrained_{most}"] - a[f"scratch_{most}"])
                ),
                is_published=False,
            ),
        ),
        picture="data",
        metrics=("test",),
        metric="test",
        starts={"fractals": start},
    )


def _resolution(base: PretrainConfig, smoke: bool) -> Study:
    base = change_config(base, options={"position_embedding": "learned_1d"})
    run = _make_fine_tuning(base, smoke, SGD, 300)
    run = _take_share(run, 0.5 if smoke else 0.1)
    size = base.image_size
    high = size * 3 // 2

    def arm(title: str, **how: Any) -> Arm:
        return make_finetuned(title, base, run, start="fractals", **how)

    return Study(
        title="Fine-tuning at higher resolution",
        source="arXiv:2010.11929, 3.2",
        finding=(
            "Fine-tuning at higher resolution than pre-training is often beneficial; the "
            "position embeddings are then interpolated."
        ),
        about=(
            f"A ViT with learned positions is pre-trained on fractals at {size} pixels, and "
            f"fine-tuned on a tenth of the labels at {size} pixels and, with the same patch size, "
            f"at {high}: with interpolated positions, and with new random ones. Images of CIFAR-10 "
            "have 32 pixels and are enlarged, as in the paper, which fine-tunes at 384 pixels. The "
            "paper does not report a comparison."
        ),
        arms={
            "same": arm(f"{size} px"),
            "interpolated": arm(f"{high} px, interpolated positions", image_size=high),
            "new": arm(f"{high} px, new positions", image_size=high, new_positions=True),
        },
        claims=(
            better("interpolated", "same", "Higher resolution is better."),
            better(
                "interpolated",
                "new",
                "Interpolated positions are better than new ones.",
                is_published=False,
            ),
            difference("new", "same", f"{high} px with new positions minus {size} px."),
        ),
        metrics=("test",),
        metric="test",
        starts={"fractals": _make_start("fractals_cifar10.py", base, smoke, 600)},
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
    "pretraining_size": _pretraining_size,
    "self_supervision": _self_supervision,
    "transfer": _transfer,
    "resolution": _resolution,
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
