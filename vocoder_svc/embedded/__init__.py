"""The embedded decoder: the second half of a Piper voice on onnxruntime."""
