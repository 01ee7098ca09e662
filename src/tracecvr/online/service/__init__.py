"""The service: a live model over HTTP. An extra: `pip install tracecvr[serve]`.

A request passes `gate`; a few clicks are answered there, all else by the routes of `app` and `inference_protocol`.
These share `scoring`, which asks `scorer`. `serve` puts it together, with the learner beside it.
"""
