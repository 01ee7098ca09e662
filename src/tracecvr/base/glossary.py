"""The words that reports and pages explain on the spot: each in one or two plain sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A word of the field. `also` are other ways in which headings and sentences write it."""

    name: str
    meaning: str
    also: tuple[str, ...] = ()


TERMS = (
    Term(
        "AUC",
        "The chance that a click that converts has a higher score than a click that does not. 0.5 is guessing, 1 is "
        "perfect. Only the order of scores counts.",
    ),
    Term(
        "PR-AUC",
        "The area under the curve of precision over recall. Higher is better. It looks mainly at the clicks with the "
        "highest scores.",
    ),
    Term("AP", "Average precision: PR-AUC computed as a sum of steps. Higher is better."),
    Term(
        "NLL",
        "Negative log-likelihood: the mean penalty for wrong probabilities. Lower is better. A confident wrong "
        "prediction costs most.",
    ),
    Term(
        "NE",
        "Normalised entropy: NLL divided by the NLL of a constant that knows the mean rate. Below 1 is better than "
        "that constant.",
        also=("normalised entropy",),
    ),
    Term(
        "ECE",
        "Expected calibration error. Clicks are put into 15 bins by their prediction. ECE is the mean distance between "
        "prediction and outcome over bins. 0 is perfect.",
    ),
    Term("MCE", "Maximum calibration error: as ECE, but of the worst bin."),
    Term(
        "PCOC",
        "Predicted over observed conversions: mean prediction divided by the share of clicks that converted. 1 is "
        "right; 1.2 means that 20 % too many conversions are predicted.",
    ),
    Term("CVR", "Conversion rate: the share of clicks that convert.", also=("conversion rate",)),
    Term(
        "RI",
        "Relative improvement: how much of the distance between two methods is covered. 0 is the lower one, 1 is "
        "Oracle.",
    ),
    Term(
        "d_max",
        "The longest delay that counts. A conversion that comes later after its click is not counted, so the label of "
        "a click is final at this age.",
    ),
    Term(
        "events per click",
        "How many times a method was shown a click, on average: at the click, at later looks, at conversions.",
        also=("events/click", "events shown per click"),
    ),
    Term(
        "steps per 1000 clicks", "Steps of the optimiser for 1,000 clicks of the stream.", also=("steps/1000 clicks",)
    ),
    Term("seed", "A number from which the first weights and the order of clicks follow. Results vary between seeds."),
    Term(
        "intervals",
        "The stream is cut into intervals of time. A model predicts the clicks of an interval, then it learns from "
        "what became known in it.",
    ),
    Term(
        "95 % interval",
        "The range in which the difference would lie in 95 of 100 such comparisons. If it excludes zero, the "
        "difference is called statistically significant.",
        also=("95\u00a0% interval",),
    ),
    Term(
        "horizon",
        "An age at which the state of a click is looked at, such as an hour or a day.",
        also=("horizons",),
    ),
    Term("open click", "A click that has not converted and is younger than d_max.", also=("open clicks",)),
    Term("warm-up", "Training on the first part of the log, before the stream begins."),
    Term("Oracle", "A model that learns every final label at the click. It cannot be run live: it is the bound."),
    Term("Vanilla", "A model that takes every click without a conversion so far as a negative."),
    Term("Pretrain", "A model that learns from the warm-up part only and never from the stream."),
    Term(
        "mature",
        "A click is mature when it is older than d_max. Its label is then final.",
    ),
    Term(
        "forecast",
        "Conversions so far, and those that are still expected of clicks of this age and score. The interval comes "
        "from how far earlier forecasts were off.",
    ),
    Term("as served", "Judged by the scores that clients were answered with over HTTP, whichever version gave them."),
    Term(
        "prequential",
        "Judged by the scores of the learner's newest version, computed just before it learnt from the click. They "
        "exist for all clicks, also for those that were never scored over HTTP.",
    ),
    Term(
        "watermark",
        "The time up to which all events are taken to have come. An interval is learnt when the watermark has passed "
        "its end.",
    ),
    Term("tick", "One interval, learnt: it gives one version."),
    Term(
        "version",
        "The weights of the model after a tick. Training goes on whichever version serves.",
        also=("versions",),
    ),
)


def terms_in(text: str) -> list[Term]:
    """The words of a text that have an explanation, in the order of the glossary.

    >>> [term.name for term in terms_in("PR-AUC and NLL over intervals")]
    ['PR-AUC', 'NLL', 'intervals']
    """
    return [term for term in TERMS if _pattern(term).search(text)]


def _pattern(term: Term) -> re.Pattern[str]:
    names = "|".join(re.escape(name) for name in (term.name, *term.also))
    return re.compile(rf"(?<![\w-])(?:{names})(?![\w-])")
