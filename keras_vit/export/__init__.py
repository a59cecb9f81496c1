"""Export to SavedModel, TFLite, ONNX and OpenVINO, and comparison of each file with its model.

`saved_model` and `tflite` are functions here; the modules of the same names contain them.
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
