"""The learner: ticks and their guard, live metrics, and the archive of events that no tick needs any more."""
