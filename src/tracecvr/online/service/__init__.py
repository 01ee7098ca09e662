"""The service: a live model over HTTP. An extra: `pip install tracecvr[serve]`.

One process answers: it scores with the version that serves and accepts events through one committer. The learner is a
process of its own, started and watched by `tracecvr serve`, so that neither ever waits for training.

Rooms: `app` (routes), `bodies` (what requests and answers look like), `auth` (tokens and scopes), `limits` (what one
sender may ask for), `scorer` (the version that serves), `routing` (which model answers), `published` (what replicas
need), `replica` (a scorer that follows a writer), `gauges` (Prometheus), `latency` (how long answers took of
late), `serve` (the command), `options` (flags and configuration file), `page.html` (what is seen).
"""
