"""A model as a file that others run: a SavedModel, TFLite, ONNX, OpenVINO; and the proof that it is
still the model.

`saved_model` and `tflite` are functions here, and modules of the same name hold them.
"""

from keras_vit.export.examples import Examples, take
from keras_vit.export.exchange import onnx, openvino
from keras_vit.export.saved_model import saved_model
from keras_vit.export.tflite import FLAVOURS, tflite
from keras_vit.export.verdicts import Outcome, Verdict, judge, run
from keras_vit.export.versions import latest, new_version

__all__ = [
    "FLAVOURS",
    "Examples",
    "Outcome",
    "Verdict",
    "judge",
    "latest",
    "new_version",
    "onnx",
    "openvino",
    "run",
    "saved_model",
    "take",
    "tflite",
]
