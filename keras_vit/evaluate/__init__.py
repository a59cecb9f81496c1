"""Evaluation of trained models: accuracy, ReaL, features, few-shot and linear evaluation, VTAB."""

from keras_vit.evaluate.accuracy import Answers, accuracy, answer
from keras_vit.evaluate.features import Features, extract, load
from keras_vit.evaluate.fewshot import FewshotResult, fewshot, select_ridge
from keras_vit.evaluate.imagenet_sets import (
    by_wordnet_id,
    imagenet_folder,
    imagenet_real,
    imagenet_real_tfds,
    imagenet_v2,
    objectnet,
)
from keras_vit.evaluate.knn import KnnResult, knn
from keras_vit.evaluate.label_sets import LabelSets, label_set_accuracy
from keras_vit.evaluate.probe import ProbeResult, linear_probe
from keras_vit.evaluate.streaming_probe import streaming_probe
from keras_vit.evaluate.vtab import jobs, vtab

__all__ = [
    "Answers",
    "Features",
    "FewshotResult",
    "KnnResult",
    "LabelSets",
    "ProbeResult",
    "accuracy",
    "answer",
    "by_wordnet_id",
    "extract",
    "fewshot",
    "imagenet_folder",
    "imagenet_real",
    "imagenet_real_tfds",
    "imagenet_v2",
    "jobs",
    "knn",
    "label_set_accuracy",
    "linear_probe",
    "load",
    "objectnet",
    "select_ridge",
    "streaming_probe",
    "vtab",
]
