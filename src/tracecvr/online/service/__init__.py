"""The service: a live model over HTTP. An extra: `pip install tracecvr[serve]`. A request passes `gate`, which
answers a few clicks at once. The routes of `app` and `inference_protocol` answer all else, by way of `scoring`, which
asks `scorer`. `serve` puts it together, with the learner beside it."""
