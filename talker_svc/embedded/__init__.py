"""The embedded voice: Piper on onnxruntime, without espeak."""
