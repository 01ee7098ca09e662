"""The paper's own numbers (Zhang et al., Follow the TRACE, SIGIR 2026) by dataset: beside ours, never mixed in."""

from __future__ import annotations

from collections.abc import Sequence

METRICS = ("auc", "nll", "pr_auc")
"""Order of the figures below: AUC, NLL and PR-AUC, weighted over intervals."""

TABLE1: dict[str, dict[str, tuple[float, float, float]]] = {
    "criteo": {
        "pretrain": (0.7200, 0.8928, 0.3410),
        "vanilla": (0.7247, 0.5868, 0.5133),
        "fnw": (0.7864, 0.5506, 0.5697),
        "ftp": (0.7929, 0.4543, 0.5852),
        "miss": (0.8016, 0.4107, 0.5978),
        "es_dfm": (0.8098, 0.4097, 0.6053),
        "gdfm": (0.8308, 0.4053, 0.6257),
        "defer": (0.8326, 0.3965, 0.6319),
        "defuse": (0.8335, 0.3959, 0.6336),
        "trace": (0.8382, 0.3919, 0.6370),
        "oracle": (0.8430, 0.3869, 0.6447),
    },
    "taobao": {
        "pretrain": (0.8152, 0.0686, 0.4775),
        "vanilla": (0.8295, 0.0721, 0.4865),
        "fnw": (0.8246, 0.0757, 0.4727),
        "ftp": (0.8265, 0.0677, 0.4261),
        "miss": (0.8229, 0.0743, 0.4334),
        "es_dfm": (0.8306, 0.0708, 0.4805),
        "gdfm": (0.8325, 0.0635, 0.4861),
        "defer": (0.8268, 0.0705, 0.4744),
        "defuse": (0.8316, 0.0647, 0.4901),
        "trace": (0.8354, 0.0610, 0.4911),
        "oracle": (0.8398, 0.0603, 0.4930),
    },
}

TABLE2: dict[str, dict[str, tuple[float, float, float]]] = {
    "criteo": {  # with the completer; without it, those of Table 1
        "fnw": (0.8107, 0.4933, 0.5911),
        "ftp": (0.8048, 0.4384, 0.5998),
        "miss": (0.8112, 0.4045, 0.6068),
        "es_dfm": (0.8254, 0.4064, 0.6206),
        "defer": (0.8341, 0.3950, 0.6341),
        "gdfm": (0.8333, 0.4033, 0.6295),
        "defuse": (0.8353, 0.3857, 0.6368),
    },
}

CAVEATS = {
    "criteo": "its Pretrain and Vanilla rows contradict GDFM's on the same split (AUC .8158 and .8207 there)",
    "taobao": "its log is a preprocessed file that is not published",
}


def figures(data: str, method: str, plugins: Sequence[str]) -> Sequence[float | None]:
    """The paper's figures of a method, alone or with the completer; None where it reports none."""
    tables = {(): TABLE1, ("completer",): TABLE2}
    return tables.get(tuple(plugins), {}).get(data, {}).get(method, [None] * len(METRICS))
