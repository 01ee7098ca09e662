"""Models for other systems (an extra): a directory that scores clicks without this package.

score.onnx      ids (B, F) of features to the log-odds served at the click; or score.pt2
posterior.onnx  the same of an open click, if the method has more to say of it: ids, elapsed (B,) seconds since the
                click, age (B, K) delay of each action known so far, or `never`
scorer.py       from raw features to scores: needs onnxruntime, and xxhash if a feature is hashed; nothing else
manifest.json   how raw features become ids, what the model is, hashes of all files, how far they are from torch
README.txt      how to use it

What is written was checked against torch first; it is written whole or not at all.
"""
