"""Models as ONNX (an extra), checked against torch: a directory that scores clicks without this package."""
