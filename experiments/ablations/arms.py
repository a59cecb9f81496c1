"""The parts of an ablation: arms, each a config; claims about their accuracies; the base config.

What lives here: the dataclasses, and functions that derive one config from another. What does not:
the studies (`ablations/studies.py`), the report (`ablations/report.py`), and the script that runs
them (`ablations.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_vit import cost
from keras_vit.train import (
    FinetuneConfig,
    LoopConfig,
    MAEConfig,
    MaskedPatchesConfig,
    OptimizerConfig,
    PretrainConfig,
    RunConfig,
    load_config,
    smoke_form,
)
from keras_vit.train.config import row_of

Config = PretrainConfig | FinetuneConfig
StartConfig = PretrainConfig | MaskedPatchesConfig | MAEConfig
Accuracies = Mapping[str, float]  # arm to accuracy, in percent

CONFIGS = Path(__file__).parents[1] / "configs"
SIZES = ("cifar10", "smoke")
# About 10.7 million multiply-adds per image of 32 pixels, a third of cifar10_scratch.py
VARIANT = {"patch_size": 4, "width": 64, "depth": 4, "num_heads": 2, "mlp_dim": 128}
STEPS = 600  # of 128 images: 1.5 epochs of CIFAR-10
WARMUP_STEPS = 60
SMOKE_STEPS = 60
HELD_OUT = 0.1  # share of the training set on which learning rates are compared


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm of an ablation.

    Attributes:
        title: Title in tables and plots.
        config: Config of its runs, except for the seed; its learning rate is the center of the grid.
            If the arm has a start, the runs replace `weights` by the weights of this start.
        families: The curves that contain it, in plots against compute or data.
        paper: The paper's number in percent, or None.
        paper_of: The model that the paper's number belongs to, if it differs from the arm's.
        rate_of: The arm whose winning learning rate it uses; "" if it has its own grid.
        start: Name of the start of the study that its runs fine-tune; "" for random weights.
        new_positions: Whether its runs replace the position table of the start by random values.
    """

    title: str
    config: Config
    families: tuple[str, ...] = ()
    paper: float | None = None
    paper_of: str = ""
    rate_of: str = ""
    start: str = ""
    new_positions: bool = False

    @property
    def macs(self) -> int:
        """Multiply-adds per image, without the head, which depends on the data."""
        row, size = row_of(self.config.model, self.config.variant), self.config.image_size
        counted = ("classifier", "position_embedding")
        options = {
            name: value for name, value in self.config.model_options.items() if name in counted
        }
        return cost.macs(row, (size, size), classes=None, **options)

    @property
    def exaflops(self) -> float:
        """Compute of one run."""
        run = self.config.run
        return cost.training_exaflops(self.macs, run.batch_size * run.loop.total_steps)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper about the arms.

    Attributes:
        words: The claim as text.
        value: Maps accuracies to a number, which is greater than 0 if the claim holds.
        unit: Unit of that number.
        is_judged: Whether the report judges it; if not, the report shows the number alone.
        is_published: Whether the paper claims it; if not, the report says so.
    """

    words: str
    value: Callable[[Accuracies], float]
    unit: str = "points"
    is_judged: bool = True
    is_published: bool = True


def better(one: str, other: str, words: str, *, is_published: bool = True) -> Claim:
    """Returns the claim that one arm is better than another."""
    return Claim(words=words, value=lambda a: a[one] - a[other], is_published=is_published)


def difference(one: str, other: str, words: str) -> Claim:
    """Returns the difference of two arms about which the paper claims nothing."""
    return replace(better(one, other, words, is_published=False), is_judged=False)


@dataclass(frozen=True, kw_only=True)
class Study:
    """An ablation.

    Attributes:
        title: Title of the report.
        source: Section, figure and table of the paper.
        finding: What the paper reports, in one sentence.
        about: The question, and the differences from the paper.
        arms: Arms by name, in the order of the table; compute is relative to the first.
        claims: Claims of the paper.
        picture: Kind of plot: "means", "compute", "data" or "pretraining".
        metrics: The accuracies in the table, and on which claims are judged: "fewshot" and "test"
            of the trained arm, "pretrained" of its start. See `ablations/report.py`.
        metric: The accuracy in plots that show one, as in the paper.
        paper_label: Table heading of the paper's numbers; "" if there are none.
        starts: Configs of pre-training runs by name. A start is trained once for each seed, at the
            learning rate of its config, and seed n of an arm fine-tunes seed n of its start. The
            paper, too, has one rate for each pre-training (Table 3), and compares rates only in
            fine-tuning (Table 4).
    """

    title: str
    source: str
    finding: str
    about: str
    arms: Mapping[str, Arm]
    claims: tuple[Claim, ...] = ()
    picture: str = "means"
    metrics: tuple[str, ...] = ("fewshot", "test")
    metric: str = "fewshot"
    paper_label: str = ""
    starts: Mapping[str, StartConfig] = field(default_factory=dict)

    def relative_compute(self, name: str) -> float:
        """Returns the ratio of an arm's MACs to those of the first arm."""
        return self.arms[name].macs / next(iter(self.arms.values())).macs

    def find_downstream(self, start: str) -> RunConfig:
        """Returns the settings of the first arm with this start, on whose data its features are
        measured.
        """
        return next(arm.config.run for arm in self.arms.values() if arm.start == start)


def make_base(size: str, data: Mapping[str, str]) -> PretrainConfig:
    """Returns the config that all arms derive from: Table 3 for JFT-300M, with the learning rate of
    ResNet-50.
    """
    config = load_config(str(CONFIGS / "cifar10_scratch.py"))
    config = smoke_form(config) if size == "smoke" else replace(config, variant=VARIANT)
    steps, warmup = (SMOKE_STEPS, 2) if size == "smoke" else (STEPS, WARMUP_STEPS)
    run = replace(
        config.run,
        data=replace(config.run.data, **data),
        optimizer=OptimizerConfig(
            name="adam",
            options={"beta_1": 0.9, "beta_2": 0.999},
            learning_rate=1e-3,
            schedule="linear",
            warmup_steps=warmup,
            weight_decay=0.1,
            clip_norm=None,
        ),
        loop=make_loop(steps),
    )
    return replace(config, run=run, variant={**config.variant, "name": "ViT_Ablation"})


def make_loop(steps: int) -> LoopConfig:
    """Returns the loop of a run of this length, evaluated once, at its end."""
    return LoopConfig(total_steps=steps, log_every=max(1, steps // 16), checkpoint_every=steps // 4)


def change_steps(run: RunConfig, steps: int) -> RunConfig:
    """Returns the settings of a run of another length. A tenth of it is warm-up, as in the base."""
    optimizer = replace(run.optimizer, warmup_steps=steps // 10)
    return replace(run, loop=make_loop(steps), optimizer=optimizer)


def change_config(
    config: PretrainConfig,
    *,
    variant: Any = (),
    options: Any = (),
    optimizer: Any = (),
    data: Any = (),
) -> PretrainConfig:
    """Returns the config with changes: pairs or a mapping from field to value for each part."""
    run = config.run
    run = replace(
        run,
        optimizer=replace(run.optimizer, **dict(optimizer)),
        data=replace(run.data, **dict(data)),
    )
    return replace(
        config,
        run=run,
        variant={**config.variant, **dict(variant)},
        model_options={**config.model_options, **dict(options)},
    )


def make_resnet(base: PretrainConfig, units: tuple[int, ...], **variant: Any) -> PretrainConfig:
    """Returns the config of a ResNet of the paper with fewer units, trained like the base."""
    return replace(
        base,
        model="ResNet50x1",
        variant={"name": "ResNet_Ablation", "units": units, **variant},
        model_options={},
    )


def match_macs(config: PretrainConfig, macs: int) -> PretrainConfig:
    """Returns the config of a Transformer with its MLP width changed so that it has `macs` MACs.

    Raises:
        ValueError: If it has more MACs even with an MLP of width 1.
    """

    def count_macs(mlp_dim: int) -> int:
        return Arm(title="", config=change_config(config, variant={"mlp_dim": mlp_dim})).macs

    one = count_macs(1)
    mlp_dim = 1 + round((macs - one) / (count_macs(2) - one))
    if mlp_dim < 1:
        raise ValueError(
            f"The Transformer must have at most {macs:,} MACs. With an MLP of width 1 it has "
            f"{one:,}."
        )
    return change_config(config, variant={"mlp_dim": mlp_dim})


def make_finetuned(
    title: str,
    model: StartConfig,
    run: RunConfig,
    *,
    start: str = "",
    image_size: int | None = None,
    new_positions: bool = False,
    families: tuple[str, ...] = (),
) -> Arm:
    """Returns an arm that fine-tunes a model.

    Args:
        title: Title of the arm.
        model: A config with the model and its options, such as the one of the start.
        run: Settings of the fine-tuning.
        start: Name of the start; "" for random weights.
        image_size: Side of the images, in pixels. Default: that of `model`.
        new_positions: See `Arm`.
        families: See `Arm`.
    """
    config = FinetuneConfig(
        # A name for the plan and the report. Each run replaces it by the path of its weights.
        weights=f"{start or 'none'}{', new positions' * new_positions}",
        model=model.model,
        variant=model.variant,
        model_options=model.model_options,
        image_size=image_size or model.image_size,
        run=run,
    )
    return Arm(
        title=title, config=config, families=families, start=start, new_positions=new_positions
    )


def make_start_config(config: StartConfig, seed: int) -> StartConfig:
    """Returns the config of the pre-training run with this seed."""
    return replace(config, run=replace(config.run, seed=seed))


def make_seed_config(config: Config, rate: float, seed: int) -> Config:
    """Returns the config of a run that is tested: on the whole training set, unless the arm stops
    early.

    The test set is opened once, at the end, whatever the arm says about evaluations.
    """
    run = config.run
    loop = run.loop if run.data.held_out else replace(run.loop, evaluate_every=0)
    optimizer = replace(run.optimizer, learning_rate=rate)
    return replace(config, run=replace(run, seed=seed, optimizer=optimizer, loop=loop))


def make_rate_config(config: Config, rate: float) -> Config:
    """Returns the config of a run that measures a learning rate on held-out images.

    It names no test set, so that none can be opened.
    """
    config = make_seed_config(config, rate, seed=0)
    data = replace(config.run.data, held_out=config.run.data.held_out or HELD_OUT, test="")
    return replace(config, run=replace(config.run, data=data))
