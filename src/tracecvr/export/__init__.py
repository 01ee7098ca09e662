"""Models as ONNX (an extra): a directory that scores clicks without this package; see docs/export.md.

What is written was checked against torch first; it is written whole or not at all.
"""
