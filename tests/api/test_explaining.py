"""Which features matter, why a score is what it is, and a torch module of one's own."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

import tracecvr as tc
from shop import shop
from tracecvr.base import registry
from tracecvr.base.errors import UserError
from tracecvr.data.table import Schema

QUICK = {"hidden": [16], "warm_epochs": 3, "progress": False}


@pytest.fixture(scope="module")
def log() -> tc.Log:
    """`campaign` decides a shop's rate, `price` does nothing."""
    roles = {"id": "click", "click_time": "ts", "conversion_time": "sold_at", "progress": False}
    return tc.read(shop().wide, **roles)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(log: tc.Log) -> tc.Model:
    return tc.replay(log, "vanilla", **QUICK).model  # type: ignore[arg-type]


def test_a_feature_that_decides_matters_more(log: tc.Log, model: tc.Model) -> None:
    lost = model.importance(log)
    assert lost["feature"].to_list() == ["campaign", "price"]
    assert lost["nll"][0] > 5 * abs(lost["nll"][1])
    assert lost["auc"][0] > 0.02
    assert lost.equals(model.importance(log))
    assert not lost.equals(model.importance(log, seed=1))
    with pytest.raises(UserError, match="this log has other features than the model's"):
        model.importance(tc.dataset("synthetic", clicks=2000))


def test_effects_are_differences_of_log_odds(log: tc.Log, model: tc.Model) -> None:
    clicks = pl.DataFrame({"campaign": ["camp 0", "camp 3"], "price": [10.0, 10.0]})
    effects = model.effects(clicks)
    without = model.log_odds(clicks.with_columns(campaign=pl.lit(None, pl.String)))
    assert np.allclose(effects["campaign"], model.log_odds(clicks) - without)
    others = shop().clicks.head(50)
    against = model.effects(clicks, background=others)
    assert against["campaign"][0] < 0 < against["campaign"][1]
    mean = np.mean([model.log_odds(clicks.with_columns(price=pl.lit(price)))[0] for price in others["price"]])
    assert against["price"][0] == pytest.approx(model.log_odds(clicks)[0] - mean, abs=1e-5)


def test_a_torch_module_is_a_backbone(log: tc.Log) -> None:
    @tc.register
    class Wide(nn.Module):
        """A weight for each id: a logistic regression."""

        name = "wide"

        def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
            super().__init__()
            sizes = torch.tensor([0, *(feature.size for feature in schema.features)])
            self.register_buffer("starts", sizes.cumsum(0)[:-1])
            self.weights = nn.EmbeddingBag(int(sizes.sum()), outputs, mode="sum")
            nn.init.zeros_(self.weights.weight)

        def forward(self, x: Tensor) -> Tensor:
            total: Tensor = self.weights(x + self.get_buffer("starts"))
            return total

    try:
        made = tc.replay(log, "vanilla", backbone="wide", **QUICK)  # type: ignore[arg-type]
        assert any(isinstance(one, Wide) for one in made.model.engine.method.nets.modules())
        assert (made.metrics["nll"] or 1) < 0.68, "it starts at log 2"
        board = tc.compare(log, {"wide": {"method": "vanilla", "backbone": "wide"}}, workers=2, **QUICK)  # type: ignore[arg-type]
        assert list(board.frame["method"]) == ["wide"]
    finally:
        registry.unregister("backbone", "wide")
    with pytest.raises(UserError, match="a Method, a Plugin, a Dataset or a torch module"):
        tc.register(int)
