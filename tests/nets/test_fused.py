"""The fast forms equal the plain ones: of each layer, of every net's gradient, and of whole training steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.data.table import Feature, Schema
from tracecvr.learn import net_calls
from tracecvr.learn.net_calls import NetCalls, PerClickCache, ShownEvents
from tracecvr.nets.backbones import MLP, Embedding, Perceptron, freeze, thaw
from tracecvr.nets.fused import Group, lookup, normed_linear, project
from tracecvr.stream.source import TableSource

# The plain forms: one line each, as a textbook has them.


def plain_embedding(self: Embedding, x: Tensor) -> Tensor:
    table = self.table.weight.split(self.sizes)
    parts = [table[t][x[:, j].long()] for t, j in zip(self.tables, self.embedded, strict=True)]
    parts += [torch.eye(size, dtype=self.table.weight.dtype)[x[:, j].long()] for j, size in self.one_hot]
    return torch.cat(parts, dim=1)


def plain_linear(self: Embedding, x: Tensor, layer: nn.Linear, *beside: Tensor) -> Tensor:
    out: Tensor = layer(torch.cat([plain_embedding(self, x), *beside], dim=1))
    return out


def plain_normed_linear(h: Tensor, norm: nn.BatchNorm1d, linear: nn.Linear, _precision: None = None) -> Tensor:
    out: Tensor = linear(norm(torch.relu(h)))
    return out


def plain_per_click(_calls: NetCalls, _key: object, net: nn.Module, shown: ShownEvents) -> Tensor:
    out: Tensor = net(shown.x)
    return out


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Everything in its plain form, until `undo`."""
    monkeypatch.setattr(Embedding, "forward", plain_embedding)
    monkeypatch.setattr(Embedding, "linear", plain_linear)
    monkeypatch.setattr("tracecvr.nets.backbones.normed_linear", plain_normed_linear)
    monkeypatch.setattr(NetCalls, "_per_click", plain_per_click)
    return monkeypatch


# Layers.


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 4), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1))
def test_lookup_sums_rows_and_hands_back_their_gradients(values: int, batch: int, n: int, dim: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    table = torch.randn(values, dim, dtype=torch.float64, generator=rng, requires_grad=True)
    ids = torch.randint(values, (batch, n), generator=rng)
    grad = torch.randn(batch, dim, dtype=torch.float64, generator=rng)
    fast, slow = lookup(table, ids), table[ids].sum(1)
    torch.testing.assert_close(fast, slow)
    dense, expected = (torch.autograd.grad(out, table, grad)[0] for out in (fast, slow))
    torch.testing.assert_close(dense, expected)
    rows = torch.autograd.grad(lookup(table, ids, sparse=True), table, grad)[0]
    assert rows.is_sparse
    assert rows._indices()[0].tolist() == ids.unique().tolist()
    torch.testing.assert_close(rows.to_dense(), expected)


def test_projection_is_the_product_of_each_block_with_tables_shared() -> None:
    rng = torch.Generator().manual_seed(0)
    table = torch.randn(7, 3, dtype=torch.float64, generator=rng, requires_grad=True)
    weight = torch.randn(5, 4 * 3 + 2, dtype=torch.float64, generator=rng, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, generator=rng, requires_grad=True)
    groups = [
        Group(2, (0,), torch.tensor([2])),
        Group(5, (2, 2), torch.tensor([0, 3])),  # two features on one table
    ]
    columns = [weight[:, 6:9], weight[:, 0:3], weight[:, 9:12]]
    fast = project(table, weight, bias, groups)
    slow = torch.cat([table[:2] @ columns[0].T + bias, table[2:] @ columns[1].T, table[2:] @ columns[2].T])
    torch.testing.assert_close(fast, slow)
    grad = torch.randn(12, 5, dtype=torch.float64, generator=rng)
    inputs = (table, weight, bias)
    for ours, theirs in zip(*(torch.autograd.grad(out, inputs, grad) for out in (fast, slow)), strict=True):
        torch.testing.assert_close(ours, theirs)


@given(st.integers(2, 40), st.booleans(), st.integers(0, 2**32 - 1))
def test_normalisation_folded_into_the_next_layer(batch: int, training: bool, seed: int) -> None:
    torch.manual_seed(seed)
    norm, linear = nn.BatchNorm1d(4).double(), nn.Linear(4, 3).double()
    nn.init.uniform_(norm.weight, -2, 2)
    nn.init.normal_(norm.bias)
    assert norm.running_mean is not None
    nn.init.normal_(norm.running_mean)
    norm.train(training)
    start = {name: value.clone() for name, value in norm.state_dict().items()}
    h = torch.randn(batch, 4, dtype=torch.float64, requires_grad=True)
    grad, inputs, results = (
        torch.randn(batch, 3, dtype=torch.float64),
        [h, *norm.parameters(), *linear.parameters()],
        [],
    )
    for form in (normed_linear, plain_normed_linear):
        norm.load_state_dict(start)
        out = form(h.clone(), norm, linear)  # the fast one overwrites it
        results.append([out, *torch.autograd.grad(out, inputs, grad), *(b.clone() for b in norm.buffers())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_frozen_net_keeps_its_projection_until_it_is_said_to_have_changed() -> None:
    net, x = MLP(SCHEMA, 1, (8, 8), 3).double(), torch.randint(2, (50, 5), dtype=torch.int32)
    freeze(net)
    before = net(x)
    assert net.embedding.projected
    adam = torch.optim.Adam(thaw(net).parameters(), lr=0.1, fused=True)
    net(x).sum().backward()
    adam.step()
    assert not torch.allclose(freeze(net)(x), before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Embedding, "linear", plain_linear)
        slow = net(x)
    torch.testing.assert_close(net(x), slow)
    net.load_state_dict({name: torch.zeros_like(value) for name, value in net.state_dict().items()})
    assert not freeze(net)(x).any()


SCHEMA = Schema(
    "test",
    (
        Feature("a", 4, "t"),
        Feature("kind", 3, "kind", one_hot=True),
        Feature("b", 4, "t"),
        Feature("c", 1000, "c"),
        Feature("d", 2, "d"),
    ),
    ("conversion",),
    (10, 20),
    20,
    100,
    10,
    1000,
)


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


@pytest.mark.parametrize("batch", [64, 128, 300])
def test_in_bfloat16_the_factors_of_large_products_are_rounded_and_nothing_else(batch: int) -> None:
    torch.manual_seed(0)
    norm, linear = nn.BatchNorm1d(64), nn.Linear(64, 80)
    torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)
    h, grad = torch.randn(batch, 64, requires_grad=True), torch.randn(batch, 80)
    out = normed_linear(h * 1.0, norm, linear, torch.bfloat16)
    of_h, of_weight, of_bias = torch.autograd.grad(out, [h, linear.weight, linear.bias], grad)

    r = torch.relu(h.detach())
    mean, variance = r.mean(0), r.var(0, unbiased=False)
    scale = norm.weight / (variance + norm.eps).sqrt()
    shift = norm.bias - mean * scale
    expected = rounded(rounded(r) @ rounded(linear.weight * scale).t()) + linear.bias + linear.weight @ shift
    torch.testing.assert_close(out, expected, rtol=0.0, atol=0.01 * float(expected.detach().abs().max()))
    folded = rounded(rounded(grad).t() @ rounded(r))
    product = folded * scale + torch.outer(grad.sum(0), shift)
    torch.testing.assert_close(of_weight, product, rtol=0.0, atol=0.01 * float(product.detach().abs().max()))
    assert torch.equal(of_bias, grad.sum(0))

    h32 = h.detach().clone().requires_grad_()
    exact = normed_linear(h32 * 1.0, norm, linear)
    theirs = torch.autograd.grad(exact, [h32, linear.weight], grad)
    assert not torch.equal(out, exact)
    for ours, one in zip((of_h, of_weight), theirs, strict=True):
        assert (ours - one).norm() < 0.01 * one.norm()


def test_a_net_that_answers_and_its_outputs_are_never_of_bfloat16() -> None:
    torch.manual_seed(0)
    norm, hidden, outputs = nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Linear(64, 1)
    h = torch.randn(100, 64)
    for linear, training in ((hidden, False), (outputs, True)):
        norm.train(training)
        assert torch.equal(
            normed_linear(h.clone(), norm, linear, torch.bfloat16), normed_linear(h.clone(), norm, linear)
        )


@pytest.mark.parametrize("batch", [0, 1, 3, 8, 50, 2000])
def test_embeddings_through_a_layer_whatever_is_projected(batch: int) -> None:
    torch.manual_seed(0)
    embedding, layer = Embedding(SCHEMA, 3).double(), nn.Linear(4 * 3 + 3 + 2, 6).double()
    x = torch.stack([torch.randint(f.size, (batch,), dtype=torch.int32) for f in SCHEMA.features], dim=1)
    beside = torch.randn(batch, 2, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(batch, 6, dtype=torch.float64)
    inputs = [embedding.table.weight, layer.weight, layer.bias, beside]
    fast, slow = embedding.linear(x, layer, beside), plain_linear(embedding, x, layer, beside)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(embedding(x), plain_embedding(embedding, x))
    expected = torch.autograd.grad(slow, inputs, grad)
    for ours, theirs in zip(torch.autograd.grad(fast, inputs, grad), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    embedding.table.sparse = True
    for ours, theirs in zip(
        torch.autograd.grad(embedding.linear(x, layer, beside), inputs, grad), expected, strict=True
    ):
        torch.testing.assert_close(ours.to_dense(), theirs)


def test_a_perceptron_without_hidden_layers_is_one_layer() -> None:
    net, inputs = Perceptron(3, (), 2), torch.randn(5, 3)
    torch.testing.assert_close(net(inputs), net[0](inputs))


# Whole nets and whole steps.


def _weights_after(method: str, steps: int) -> dict[str, Tensor]:
    """Of a run in double precision, warm-up included."""
    table = small_log()
    plan, source = plan_for(table), TableSource(table)
    # With a little decay no gradient is as small as Adam's epsilon, below which it magnifies rounding to any size.
    engine = Subject(method).engine(table.schema, passes=2, weight_decay=1e-3)
    for part in engine._parts.values():
        part.nets.double()
    engine.warm_up(source.history(plan.split, plan.warm_labels))
    for number in range(len(plan)):
        if engine.steps < steps:
            engine.tick(source, *plan.bounds(number))
    assert engine.steps >= steps
    return {name: value.clone() for name, value in engine.method.nets["main"].state_dict().items()}


@pytest.mark.parametrize("method", ["trace", "gdfm", "es_dfm", "fsiw", "ftp", "miss", "dfsn"])
def test_twenty_steps_in_double_precision_agree(method: str, plain: pytest.MonkeyPatch) -> None:
    expected = _weights_after(method, 20)
    plain.undo()
    weights = _weights_after(method, 20)
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9, msg=name)


def _gradients(seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    net = MLP(SCHEMA, 1, (32, 32, 16), 8)
    nn.init.normal_(net.embedding.table.weight)  # away from ReLU's kink, where rounding decides on which side one is
    x = torch.stack([torch.randint(f.size, (512,), dtype=torch.int32) for f in SCHEMA.features], dim=1)
    target = (torch.rand(512) < 0.3).float()
    loss = nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], target)
    return list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_in_single_precision_agree(seed: int, plain: pytest.MonkeyPatch) -> None:
    expected = _gradients(seed)
    plain.undo()
    for ours, theirs in zip(_gradients(seed), expected, strict=True):
        # Gradients that are zero but for rounding, of a bias that normalisation undoes, have no norm to compare with.
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm() + 1e-8


# Frozen nets are asked once per click.


def test_answers_are_asked_once_per_click_and_again_after_a_drop() -> None:
    table = small_log()
    source, asked = TableSource(table), []

    def ask(x: Tensor) -> Tensor:
        asked.append(len(x))
        return x.double()

    method = registry.get("method", "trace")()
    method.bind(table.schema, 0)
    answers, start, width = PerClickCache(), 4 * DAY, 6 * HOUR
    for interval in (start, start + width, start):
        events = source.reveals(method.schedule(), interval, interval + width)
        assert torch.equal(answers.of(events, source, interval, interval + width, ask), events.x.double())
    blocks = {int(t) for t in (table.click_ts - start) // width}
    assert len(asked) <= len(blocks)
    before = len(asked)
    answers.drop(start + width)
    events = source.reveals(method.schedule(), start, start + width)
    assert torch.equal(answers.of(events, source, start, start + width, ask), events.x.double())
    assert len(asked) > before


def test_answers_that_take_too_much_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = small_log()
    source, method = TableSource(table), registry.get("method", "trace")()
    method.bind(table.schema, 0)
    answers, start, width = PerClickCache(), 4 * DAY, 6 * HOUR
    events = source.reveals(method.schedule(), start, start + width)
    for _ in range(3):
        assert torch.equal(answers.of(events, source, start, start + width, Tensor.double), events.x.double())
        monkeypatch.setattr(net_calls, "MOST_BYTES", answers._bytes // 2)
        newest = max(answers._blocks)
        answers.drop(0)
        assert newest in answers._blocks
        assert answers._bytes == sum(block.answers.nbytes for block in answers._blocks.values()) <= net_calls.MOST_BYTES
