"""Backbones: their formulas, and that every method takes every one of them."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch

from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.data.table import Feature
from tracecvr.nets.backbones import MLP, DCNv2, ElapsedNet, Embedding, WideDeep

SCHEMA = small_log().schema


def test_backbones_are_found_by_name() -> None:
    assert set(registry.available("backbone")) >= {"blend", "wide_deep", "mlp", "dcn_v2"}


class Mine(MLP):
    name = "mine"


def test_a_third_partys_backbone_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "test_backbones:Mine", "tracecvr.nets")
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]).select(group=group))
    assert registry.available.__wrapped__("backbone")["mine"] is Mine


def test_features_share_tables_and_one_hot_ones_have_none() -> None:
    features = (Feature("a", 3, "t"), Feature("b", 3, "t"), Feature("c", 4, "c", one_hot=True), Feature("d", 2, "d"))
    net = Embedding(replace(SCHEMA, features=features), dim=5)
    assert net.table.weight.shape == (5, 5)
    out = net(torch.tensor([[2, 2, 3, 1]], dtype=torch.int32))
    assert out.shape == (1, net.width) == (1, 3 * 5 + 4)
    assert torch.equal(out[0, :5], out[0, 5:10])
    assert torch.equal(out[0, 10:15], net.table.weight[4])
    assert out[0, 15:].tolist() == [0, 0, 0, 1]


def test_dcn_v2_by_hand() -> None:
    net = DCNv2(SCHEMA, 2, (4, 3), 5).eval()
    e = torch.randn(7, net.embedding.width, generator=torch.Generator().manual_seed(0))
    crossed = e
    for layer in net.crosses:
        crossed = e * (crossed @ layer.weight.T + layer.bias) + crossed  # type: ignore[operator]
    expected = torch.cat([crossed, net.deep(e)], 1) @ net.out.weight.T + net.out.bias
    torch.testing.assert_close(net.top(e), expected)


@pytest.mark.parametrize("batch", [5, 2000])
def test_a_linear_part_adds_a_number_per_value_to_the_first_output(batch: int) -> None:
    torch.manual_seed(0)
    net = WideDeep(SCHEMA, 3, (4,), 5).eval()
    sizes = list(SCHEMA.tables.values())
    x = torch.stack([torch.randint(size, (batch,)) for size in sizes], dim=1).int()
    plain = net.top(net.embedding(x))
    torch.testing.assert_close(net(x), plain)  # it starts at zero
    torch.nn.init.normal_(net.wide.table.weight)
    ids = x + torch.tensor([0, *sizes[:-1]]).cumsum(0)
    expected = plain.clone()
    expected[:, 0] += net.wide.table.weight[:, 0][ids].sum(1)
    torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(net.of_embedded(x, net.embedding(x)), expected)


def test_a_linear_part_leaves_one_hot_features_out() -> None:
    net = Embedding(replace(SCHEMA, features=(Feature("c", 4, "c", one_hot=True),)), dim=1)
    assert net.total(torch.tensor([[3], [1]])).tolist() == [[0.0], [0.0]]


def test_elapsed_time_changes_the_answer() -> None:
    net = ElapsedNet(MLP(SCHEMA, 4, (4,), 5), 4, (4,)).eval()
    x = torch.zeros(2, 3, dtype=torch.int32)
    early, late = net(x, torch.tensor([60, 5 * DAY]))
    assert early != late


@pytest.mark.parametrize("method", list(registry.available("method")))
def test_every_method_takes_another_backbone(method: str) -> None:
    table = small_log()
    engine, source = Subject(method).warmed(table, plan_for(table), backbone="dcn_v2")
    engine.tick(source, 3 * DAY, 3 * DAY + DAY // 4)
    assert torch.isfinite(torch.from_numpy(engine.score(source.clicks(4 * DAY, 5 * DAY).x))).all()
