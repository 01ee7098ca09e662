"""The service: a live model over HTTP. An extra: `pip install tracecvr[serve]`.

One process answers: it scores with the version that serves and accepts events through one committer. The learner is a
process of its own, started and watched by `tracecvr serve`, so that neither ever waits for training.

Rooms: `gate` (what a request has to pass), `few_clicks` (the short way of a few), `app` (routes), `bodies` (what
requests and answers look like), `inference_protocol` (KServe's routes), `auth` (tokens and scopes), `limits` and
`connections` (what one sender may ask for, and how slowly), `front` (names, headers, the page), `scoring` (what routes
share), `scorer` (the version that serves), `routing` (which model answers), `published` (what replicas need), `replica`
(a scorer that follows a writer), `gauges` (metrics), `processes` (the learner and workers beside the service), `serve`
(the command), `options` (flags and configuration file), `page.html` (what is seen).
"""
