"""What an ablation consists of: arms, each a config; claims, arithmetic on their accuracies; and
the one base of all.

What lives here: the dataclasses, and how one config is made of another. What does not: which
studies there are (`ablations/studies.py`), what is made of their runs (`ablations/report.py`), and
running them (`ablations.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_vit import cost
from keras_vit.train import (
    FinetuneConfig,
    LoopConfig,
    OptimizerConfig,
    PretrainConfig,
    load_config,
    smoke_form,
)
from keras_vit.train.config import row_of

Config = PretrainConfig | FinetuneConfig
Accuracies = Mapping[str, float]  # arm to accuracy, in percent

CONFIGS = Path(__file__).parents[1] / "configs"
SIZES = ("cifar10", "smoke")
STEPS = 1600  # of 128 images: 4.1 epochs of CIFAR-10
WARMUP_STEPS = 100
SMOKE_STEPS = 60
START = "start"  # stands for the weights of the run that all arms go on from


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One cell of an ablation.

    Attributes:
        title: For tables and pictures.
        config: Of its runs, but for the seed.
        families: The lines of the picture that it is a point of, if compute or data is on its axis.
        paper: The paper's number in percent, or None.
        paper_of: What that is of, where it is not obvious.
    """

    title: str
    config: Config
    families: tuple[str, ...] = ()
    paper: float | None = None
    paper_of: str = ""

    @property
    def macs(self) -> int:
        """Multiply-adds of one image; the head is left out, as it depends on the data."""
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
    """What the paper says of the arms.

    Attributes:
        words: The claim.
        value: Accuracies to a number that is above 0 if the claim holds.
        unit: Of that number.
    """

    words: str
    value: Callable[[Accuracies], float]
    unit: str = "points"


def better(one: str, other: str, words: str) -> Claim:
    """The claim that one arm is better than another."""
    return Claim(words=words, value=lambda a: a[one] - a[other])


@dataclass(frozen=True, kw_only=True)
class Study:
    """An ablation.

    Attributes:
        title: For people.
        source: Where the paper has it.
        about: What is asked, and how this differs from the paper.
        arms: Name to arm, in the order of the table; compute is relative to the first.
        claims: What the paper says.
        picture: "means", "compute" or "data": what accuracy is drawn against.
        metric: "fewshot" or "test": the accuracy that is drawn, where it is one: that which the
            paper has.
        paper_label: What the paper's numbers of the arms are.
        start: Of the run whose weights all arms go on from, if there is one.
    """

    title: str
    source: str
    about: str
    arms: Mapping[str, Arm]
    claims: tuple[Claim, ...] = ()
    picture: str = "means"
    metric: str = "fewshot"
    paper_label: str = ""
    start: PretrainConfig | None = None

    def relative_compute(self, name: str) -> float:
        """MACs of an arm over those of the first."""
        return self.arms[name].macs / next(iter(self.arms.values())).macs


def make_base(size: str, data: Mapping[str, str]) -> PretrainConfig:
    """What all arms have in common: the rows of Table 3 for JFT-300M, with the
    rate of ResNet-50.
    """
    config = load_config(str(CONFIGS / "cifar10_scratch.py"))
    config = smoke_form(config) if size == "smoke" else config
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
        loop=LoopConfig(
            total_steps=steps,
            log_every=max(1, steps // 16),
            evaluate_every=steps // 4,
            checkpoint_every=steps // 4,
        ),
    )
    return replace(config, run=run, variant={**config.variant, "name": "ViT_Ablation"})


def changed(
    config: PretrainConfig,
    *,
    variant: Any = (),
    options: Any = (),
    optimizer: Any = (),
    data: Any = (),
) -> PretrainConfig:
    """The same config with these fields changed."""
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


def as_resnet(base: PretrainConfig, units: tuple[int, ...], **variant: Any) -> PretrainConfig:
    """A ResNet of the paper with fewer units, trained as the base."""
    return replace(
        base,
        model="ResNet50x1",
        variant={"name": "ResNet_Ablation", "units": units, **variant},
        model_options={},
    )


def with_macs(config: PretrainConfig, macs: int) -> PretrainConfig:
    """The same Transformer with such an MLP that it costs as much as `macs` says."""

    def costs(mlp_dim: int) -> int:
        return Arm(title="", config=changed(config, variant={"mlp_dim": mlp_dim})).macs

    one = costs(1)
    mlp_dim = 1 + round((macs - one) / (costs(2) - one))
    if mlp_dim < 1:
        raise ValueError(
            f"This Transformer costs {one:,} MACs with an MLP of width 1, which is more than "
            f"{macs:,}."
        )
    return changed(config, variant={"mlp_dim": mlp_dim})
