"""The page of results: all studies that have rows, with their verdicts.

It depends on `trials.csv`, `study.json` and `inside.csv` of each study alone: the same files give
the same bytes.
It begins with tables of all studies: their states, and the verdicts on the claims of the paper.
An unfinished study is shown with its rows so far. What does not live here: the tables, verdicts and
pictures of one study (`ablations/report.py`), and the script (`results.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.arms import STEPS, VARIANT, Arm, Study, make_base
from ablations.inside import FILE, check_runs, read_findings
from ablations.inside_page import judge_inside, make_inside
from ablations.plan import show_command, study_of
from ablations.rates import find_tried, list_stuck, next_rates
from ablations.report import (
    draw,
    find_drawable,
    make_arm_table,
    make_start_table,
    make_verdict_table,
    select_tested,
    verdict,
    wrap,
)
from ablations.rows import Results, Row
from ablations.studies import STUDIES, make_study
from ablations.verdicts import RULE
from keras_vit.weights.secrets import join_command
from keras_vit.writing import table, write_text

DATA = {"kind": "image_folder", "name": "/data/cifar10"}


def write_results(results: Path, docs: Path) -> Path:
    """Writes the page and the pictures, each atomically, and returns the path of the page.

    Args:
        results: Folder with a folder for each study. It may be absent.
        docs: Folder of the page.

    Raises:
        ValueError: If the rows of a study are damaged, or belong to another study or other configs.
    """
    parts, states, trials = [], [], []
    claims, insides, others = [], [], []
    for name in STUDIES:
        found = Results(results / name)
        rows, plan = found.rows(), found.plan()
        picture = docs / f"results_{name}.png"
        if not rows:
            picture.unlink(missing_ok=True)
            study = make_study(name, "cifar10", DATA)
            states.append([study.title, f"`{name}`", shorten_source(study), "not run", "-"])
            continue
        if plan.get("study") != name:
            raise ValueError(
                f"{found.plan_file} must be the plan of the study {name}, but its study is "
                f"{plan.get('study')}. Restore the file."
            )
        study = study_of(plan)
        draw(picture, study, select_tested(study, rows, plan["seeds"]), plan["seeds"])
        done, total = count_trials(study, rows, plan["seeds"])
        state = f"finished: {total} trials" if done == total else f"{done} of {total} trials"
        hours, link = describe_hours(rows), _link(study.title)
        states.append([link, f"`{name}`", shorten_source(study), state, hours])
        trials += rows
        parts += make_section(name, study, rows, plan)
        findings = read_findings(results / name / FILE)
        check_runs(results / name / FILE, findings, rows)
        parts += make_inside(plan, study, findings, docs)
        judged = judge_published(study, rows, plan)
        claims += [["" if number else link, *line] for number, line in enumerate(judged)]
        others += [link] * (not judged)
        for arm in dict.fromkeys(finding.arm for finding in findings):
            judged = judge_inside([finding for finding in findings if finding.arm == arm], plan)
            insides += [["" if number else link, *line] for number, line in enumerate(judged)]
    page = make_introduction()
    states.append(["all studies", "", "", "", describe_hours(trials)])
    page += [table(["study", "name", "in the paper", "state", "processor hours"], states)]
    if claims:
        page += [
            wrap(
                "The claims of the paper and the verdicts on them, with few-shot accuracy (before "
                "fine-tuning, if there is one) and test accuracy:"
            ),
            table(["study", "claim of the paper", "few-shot", "test"], claims),
        ]
    if insides:
        page += [
            "What the paper sees inside trained models (Figure 7), and the verdicts on it:",
            table(["study", "claim of the paper", "here"], insides),
        ]
    if others:
        page += [wrap(f"The paper does not state the differences of: {'; '.join(others)}.")]
    write_text(docs / "results.md", "\n\n".join([*page, *parts]) + "\n")
    return docs / "results.md"


def judge_published(study: Study, rows: Sequence[Row], plan: Mapping[str, Any]) -> list[list[str]]:
    """Returns the claims of a study that the paper makes, each with the verdicts on it: with few-shot
    accuracy, or "-" if the study has none, and with test accuracy.

    Args:
        study: The study.
        rows: All rows of its `trials.csv`.
        plan: Its `study.json`.
    """
    tested = select_tested(study, rows, plan["seeds"])
    fewshot = next((metric for metric in study.metrics if metric != "test"), "")
    return [
        [
            claim.words,
            verdict(claim, study, tested, fewshot, plan) if fewshot else "-",
            verdict(claim, study, tested, "test", plan),
        ]
        for claim in study.claims
        if claim.is_judged and claim.is_published
    ]


def describe_hours(rows: Sequence[Row]) -> str:
    """Returns the time of one processor core that all trials took together, in hours. Rows of old
    versions have none.
    """
    times = [row["cpu_seconds"] for row in rows if row["cpu_seconds"]]
    known = f", of {len(times):,} of {len(rows):,} trials" if len(times) < len(rows) else ""
    return f"{sum(times) / 3600:.1f}{known}"


def _link(title: str) -> str:
    """Returns a link to the section of this page with a title, as MkDocs and GitHub name sections."""
    return f"[{title}](#{title.lower().replace(' ', '-')})"


def shorten_source(study: Study) -> str:
    """Returns the sections and figures of a study, without the number of the paper."""
    return study.source.removeprefix("arXiv:2010.11929, ")


def make_introduction() -> list[str]:
    """Returns title and first paragraphs of the page."""
    macs = Arm(title="", config=make_base("cifar10", DATA)).macs
    return [
        "# Results of the ablations",
        wrap(
            "This page compares claims of the paper with small models that we trained on two CPU "
            f"cores. The base is a ViT with patches of {VARIANT['patch_size']} pixels, width "
            f"{VARIANT['width']}, {VARIANT['depth']} layers and {VARIANT['num_heads']} heads, "
            f"{macs / 1e6:.1f} million multiply-adds per image of 32 pixels. The data are CIFAR-10 "
            f"and generated fractals. A run has {STEPS} steps of 128 images. A pre-training has at "
            "most 1,000 steps; a fine-tuning, or a run from random weights that is compared with "
            "one, has 200 to 600. The paper's ViT-B/16 has 1,600 times the compute per image and "
            "sees 2 billion images in pre-training on JFT-300M. A claim that holds here holds for "
            "these models and runs. A claim that does not hold here is not refuted at the size of "
            "the paper: many of its effects need large models or much data."
        ),
        wrap(
            f"{RULE} The interval covers the variation between seeds. It does not cover the choice "
            "of the learning rate, which is made once, with seed 0, on 5,000 held-out images (the "
            "standard error of an accuracy of 50 % is 0.7 points), nor that of the 10,000 test images "
            "(0.5 points), and it is not corrected for the number of claims. Studies whose claims "
            "three seeds left open were continued to five. With this second look a difference of 0 "
            "gets a verdict in at most 9 % of all cases instead of 5 %. A claim has no verdict until "
            "all runs of its arms are finished."
        ),
        wrap(
            "Accuracies are in %: mean and sample standard deviation over the seeds. Compute: "
            "multiply-adds per image, relative to the first arm; exaFLOPs of the training of one "
            "run, without its pre-training, calculated from them. *n*-shot: ridge regression on "
            "frozen features of *n* images per class, the mean of ten draws from 1,000 training "
            "images, on which the arms themselves may have been trained. *5-shot, pre-trained*: the "
            "same on the features of the pre-trained model, before it is fine-tuned. Each arm has "
            "the learning rate that is best on held-out training images, of equal ones the smaller. "
            "[Experiments](../experiments/README.md#ablations) describes the procedure. "
            "`experiments/results.py` writes this page from the rows of the trials."
        ),
    ]


def make_section(
    name: str, study: Study, rows: Sequence[Row], plan: Mapping[str, Any]
) -> list[str]:
    """Returns the section of a study that has rows.

    Args:
        name: Name of the study.
        study: The study.
        rows: All rows of its `trials.csv`.
        plan: Its `study.json`.
    """
    seeds = plan["seeds"]
    tested, facts = select_tested(study, rows, seeds), list_facts(name, study, rows, plan)
    section = [
        f"## {study.title}",
        wrap(f"The paper ({shorten_source(study)}): {study.finding}"),
        wrap(study.about),
        table(facts[0], facts[1:]),
        make_arm_table(study, rows, seeds),
    ]
    if study.starts:
        section += ["Pre-training:", make_start_table(study, rows, seeds)]
    if study.claims:
        section += [make_verdict_table(study, rows, plan)]
    if find_drawable(study, tested):
        section += [f"![{study.title}](results_{name}.png)"]
    return section


def list_facts(
    name: str, study: Study, rows: Sequence[Row], plan: Mapping[str, Any]
) -> list[list[str]]:
    """Returns the table of the state of a study. Its arguments are those of `make_section`."""
    images = next((row["test_images"] for row in rows if row["test_images"]), None)
    folder = f"../experiments/results/{name}"
    command = join_command(["python", *show_command(plan), f"--seeds={plan['seeds']}"])
    return [
        ["command", f"`{command}`"],
        ["trials", describe_state(study, rows, plan["seeds"])],
        ["seeds", str(plan["seeds"])],
        ["test images", "-" if images is None else f"{images:,}"],
        ["processor hours, sum over the trials", describe_hours(rows)],
        ["processors", count_processors(rows)],
        ["files", f"[trials.csv]({folder}/trials.csv), [study.json]({folder}/study.json)"],
    ]


def describe_state(study: Study, rows: Sequence[Row], seeds: int) -> str:
    """Returns how many trials are finished, and what is left."""
    done, total = count_trials(study, rows, seeds)
    if done == total:
        return f"{total}, finished"
    if stuck := list_stuck(study, rows):
        return f"{done} of {total}; the study has stopped: {' '.join(stuck)}"
    left = "the runs of the arms are not finished"
    if _list_missing_rates(study, rows):
        left = "learning rates are still compared, and their grid may grow"
    return f"{done} of {total}: {left}"


def count_processors(rows: Sequence[Row]) -> str:
    """Returns the names of the processors, with the number of trials of each if there are several."""
    counts = Counter(row["processor"] for row in rows if row["processor"])
    if len(counts) < 2:
        return "".join(counts) or "-"
    return "; ".join(
        f"{name}: {count} trial{'s' * (count > 1)}" for name, count in sorted(counts.items())
    )


def count_trials(study: Study, rows: Sequence[Row], seeds: int) -> tuple[int, int]:
    """Returns the number of finished trials, and of all trials as far as they are known: the grid of
    rates of an arm may be widened later.
    """
    missing = _list_missing_rates(study, rows)
    starts = [row for row in rows if row["kind"] == "start" and row["seed"] < seeds]
    finished = sum(row["kind"] == "rate" for row in rows)
    done = finished + len(select_tested(study, rows, seeds)) + len(starts)
    return done, finished + len(missing) + seeds * (len(study.arms) + len(study.starts))


def _list_missing_rates(study: Study, rows: Sequence[Row]) -> list[float]:
    """Returns the rates to try next, of all arms."""
    return [
        rate
        for name, arm in study.arms.items()
        if not arm.rate_of
        for rate in next_rates(arm.config.run.optimizer.learning_rate, find_tried(rows, name))
    ]
