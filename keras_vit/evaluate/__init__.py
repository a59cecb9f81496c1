"""What a trained model gives: exact accuracy, ReaL, features, few-shot and linear evaluation, VTAB."""

from keras_vit.evaluate.accuracy import Answers, accuracy, answer
from keras_vit.evaluate.features import Features, extract, load
from keras_vit.evaluate.imagenet_sets import (
    by_wordnet_id,
    imagenet_folder,
    imagenet_real,
    imagenet_real_tfds,
    imagenet_v2,
    objectnet,
)
from keras_vit.evaluate.label_sets import LabelSets, label_set_accuracy

__all__ = [
    "Answers",
    "Features",
    "LabelSets",
    "accuracy",
    "answer",
    "by_wordnet_id",
    "extract",
    "imagenet_folder",
    "imagenet_real",
    "imagenet_real_tfds",
    "imagenet_v2",
    "label_set_accuracy",
    "load",
    "objectnet",
]
