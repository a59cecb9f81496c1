"""A model as a file that others run: a SavedModel, TFLite, ONNX, OpenVINO; and the proof that it is still the model."""
