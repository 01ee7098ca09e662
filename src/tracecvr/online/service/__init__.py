"""The service: a live model over HTTP. An extra: `pip install tracecvr[serve]`.

One process answers: it scores with the version that serves and accepts events through one committer. The learner is a
process of its own, started and watched by `tracecvr serve`, so that neither ever waits for training.

A request passes `gate`; a few clicks are answered there (`few_clicks`), all else by the routes of `app` and
`inference_protocol`. These share `scoring`, which asks `scorer`. `serve` puts it together.
"""
