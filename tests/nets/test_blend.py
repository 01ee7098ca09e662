"""A blend: the weighted mean of a net and a logistic regression, each learnt as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from tracecvr.authoring.method import Method
from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.checks.subject import small_log
from tracecvr.learn.engine import Engine
from tracecvr.learn.optimisers import REGRESSION, ForgettingAdagrad, ShareOptimiser, make_optimisers, take_step
from tracecvr.methods.pretrain import Pretrain
from tracecvr.methods.vanilla_dup import VanillaDup
from tracecvr.nets.backbones import WideDeep, shift_outputs, start_at
from tracecvr.nets.blend import Blend, loss_of_each
from tracecvr.nets.numpy_mlp import numpy_form
from tracecvr.plugins.completer import CompleterNet
from tracecvr.stream.source import TableSource

TABLE = small_log()
SCHEMA = TABLE.schema


def blend(outputs: int = 3) -> Blend:
    torch.manual_seed(0)
    net = Blend(SCHEMA, outputs, (8,), 4)
    for table in net.weights.parameters():
        nn.init.normal_(table)
    nn.init.constant_(net.intercept, 0.5)
    return net


def ids(clicks: int = 64, seed: int = 1) -> Tensor:
    sizes = torch.tensor([feature.size for feature in SCHEMA.features])
    return (torch.rand(clicks, len(sizes), generator=torch.Generator().manual_seed(seed)) * sizes).int()


def test_the_first_output_is_the_mean_of_both_and_others_are_the_nets() -> None:
    net, x = blend().eval(), ids()
    alone = WideDeep.forward(net, x)
    assert torch.allclose(net(x)[:, :1], (alone[:, :1] + net.regression(x)) / 2)
    assert torch.equal(net(x)[:, 1:], alone[:, 1:])


def test_in_training_each_answers_alone_and_the_batch_counts_once() -> None:
    net, x = blend().train(), ids()
    outputs = net(x)
    seen = int(net.layers[2].num_batches_tracked)  # type: ignore[arg-type]
    with net.regression_alone():
        answers = net(x)
    assert torch.equal(answers[:, :1], net.regression(x))
    assert torch.equal(answers[:, 1:], outputs[:, 1:])
    answers.sum().backward()
    assert net.layers[0].weight.grad is None
    assert net.intercept.grad is not None
    assert int(net.layers[2].num_batches_tracked) == seen == 1  # type: ignore[arg-type]


def test_a_step_is_that_of_the_net_alone_and_adagrad_on_the_regression() -> None:
    net, x = blend(outputs=1).train(), ids()
    label = (x[:, 0] % 2).float()
    twin, table, intercept = blend(outputs=1).train(), *(p.detach().clone() for p in net.regression_parameters())
    optimisers = make_optimisers("adam", net, 1e-3, 0.0)

    def loss() -> Tensor:
        return binary_cross_entropy_with_logits(net(x)[:, 0], label)

    take_step(optimisers.values(), loss_of_each(net, len(x), loss, lambda: None), "here")
    own = {id(parameter) for parameter in [*twin.regression_parameters(), twin.shares]}
    adam = torch.optim.Adam([p for p in twin.parameters() if id(p) not in own], lr=1e-3, fused=True)
    binary_cross_entropy_with_logits(twin(x)[:, 0], label).backward()
    adam.step()
    for (name, value), (_, expected) in zip(_net_weights(net), _net_weights(twin), strict=True):
        assert torch.equal(value, expected), name
    error = (torch.sigmoid(twin.regression(x)) - label[:, None]).sum().detach()
    assert torch.allclose(net.intercept, intercept - 0.1 * error / (error**2 + 0.99 * 0.01).sqrt())
    assert not torch.equal(net.weights.table.weight, table)
    assert REGRESSION in optimisers


def _net_weights(net: Blend) -> Iterator[tuple[str, Tensor]]:
    own = {id(parameter) for parameter in net.regression_parameters()}
    return ((name, value) for name, value in net.named_parameters() if id(value) not in own)


def test_shares_are_those_that_would_have_been_best_so_far() -> None:
    """With squared errors the loss is a parabola of the share, so the best one has a closed form."""
    net = blend(outputs=2).train()
    optimiser, losses = ShareOptimiser(net.shares), []
    for seed in range(3):
        x = ids(seed=seed)
        truth = torch.randn(64, 1, generator=torch.Generator().manual_seed(seed)) + 1

        def loss(x: Tensor = x, truth: Tensor = truth) -> Tensor:
            error: Tensor = net(x)[:, :1] - truth
            return 0.5 * error.square().mean()

        net.shares.grad = None
        loss_of_each(net, len(x), loss, lambda: None).backward()
        optimiser.step()
        with torch.no_grad():
            perceptron, regression = WideDeep.forward(net, x)[:, :1], net.regression(x)
        losses.append((regression - perceptron, truth - perceptron))
    difference, error = (torch.cat(column).double() for column in zip(*losses, strict=True))
    best = (12.5 + (difference * error).sum()) / (25 + difference.square().sum())
    assert 0.05 < float(best) < 0.95
    assert abs(float(best) - 0.5) > 0.05
    assert net.shares.tolist() == pytest.approx([1 - float(best), float(best)], rel=1e-4)
    alone = WideDeep.forward(net.eval(), x)[:, :1]
    assert torch.allclose(net(x)[:, :1], alone + best * (net.regression(x) - alone), atol=1e-5)


def test_shares_stay_between_0_and_1() -> None:
    shares = nn.Parameter(torch.tensor([0.5, 0.5]))
    optimiser = ShareOptimiser(shares)
    for slopes, share in (((-500.0, -400.0), 1.0), ((900.0, 950.0), 0.0), ((0.0, -1_000.0), 0.0)):
        shares.grad = torch.tensor(slopes)
        optimiser.step()
        assert shares.tolist() == [1 - share, share]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_fast_form_has_the_share_of_the_net(share: float) -> None:
    net, x = blend().eval(), ids()
    net.shares.data = torch.tensor([1 - share, share])
    fast = numpy_form(net)
    assert fast is not None
    assert torch.from_numpy(fast(x.numpy())).allclose(net(x)[:, 0], atol=1e-5)


def test_shares_are_learnt_in_the_stream_and_not_in_warm_up() -> None:
    """Where models have learnt outcomes by heart, they would look too good."""
    engine, source = Engine(Pretrain(hidden=(8,)), SCHEMA), TableSource(TABLE)
    stream = Engine(VanillaDup(hidden=(8,)), SCHEMA)
    for one in (engine, stream):
        one.warm_up(source.history(SCHEMA.split, "mature"))
        net = one.method.nets["main"]
        assert isinstance(net, Blend)
        assert net.shares.tolist() == [0.5, 0.5]
    stream.tick(source, SCHEMA.split, SCHEMA.split + DAY)
    slope, curvature = stream.state()["shares.shares.parabola"].tolist()
    assert isinstance(net, Blend)
    share = net.shares[1].item()
    assert share == pytest.approx(slope / curvature)
    assert share != 0.5


@pytest.mark.parametrize("sparse", [False, True])
def test_squares_are_forgotten_by_steps_that_touch_a_row(sparse: bool) -> None:
    table = nn.Parameter(torch.zeros(3, 1))
    optimiser = ForgettingAdagrad([table], lr=0.1, memory=10)
    squares, weight = [0.01] * 3, [0.0] * 3
    for row, grad in ((0, 1.0), (1, -2.0), (0, 0.5), (0, -1.0)):
        dense = torch.zeros(3, 1)
        dense[row] = grad
        table.grad = dense.to_sparse(1) if sparse else dense
        optimiser.step()
        squares[row] = 0.9 * squares[row] + grad**2
        weight[row] -= 0.1 * grad / squares[row] ** 0.5
    assert table[:, 0].tolist() == pytest.approx(weight)


def test_both_start_at_a_rate_and_move_by_a_shift() -> None:
    net, x = blend().eval(), ids()
    before = net(x)[:, 0]
    shift_outputs(net, torch.tensor([0.3, torch.nan, torch.nan]))
    assert torch.allclose(net(x)[:, 0], before + 0.3)
    start_at(net, torch.tensor([-2.0, torch.nan, torch.nan]))
    assert net.intercept.item() == -2


# What the two losses of a batch share.


def warmed(method: str) -> Engine:
    engine = Engine(registry.get("method", method)(hidden=(8,), warm_epochs=1), SCHEMA)
    engine.warm_up(TableSource(TABLE).history(SCHEMA.split, "censored"))
    return engine


@pytest.mark.parametrize(
    ("method", "owner", "name"),
    [("telescoped", registry.get("method", "telescoped"), "log_chain"), ("trace", CompleterNet, "forward")],
)
def test_what_does_not_depend_on_the_rate_is_computed_once(
    method: str, owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, original = warmed(method), getattr(owner, name)
    calls: list[int] = []

    def count(*given: Any) -> Any:
        calls.append(1)
        return original(*given)

    monkeypatch.setattr(owner, name, count)
    engine.tick(TableSource(TABLE), SCHEMA.split, SCHEMA.split + DAY)
    assert len(calls) == engine.steps > 0


def test_what_is_shared_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    def learnt() -> str:
        engine = warmed("telescoped")
        engine.tick(TableSource(TABLE), SCHEMA.split, SCHEMA.split + DAY)
        return engine.fingerprint()

    shared = learnt()
    monkeypatch.setattr(Method, "of_other_outputs", lambda _, function, *given: function(*given))
    assert learnt() == shared
