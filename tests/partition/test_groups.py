"""A group of operators against autograd on the same operators in one graph."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from energy_lightning.partition.groups import run_group


def _ignore(_name: str) -> None: ...


def _operators(weight: Tensor) -> dict:
    return {
        "linear_0": lambda h, y: (h @ weight, y * 2),
        "activation_0": lambda a, y: (a.tanh(), y),
        "linear_1": lambda a, y: (a + y, a),
    }


def test_gradients_are_those_of_one_graph() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 3, generator=generator).requires_grad_()
    h, y, g0, g1 = (torch.randn(2, 3, generator=generator) for _ in range(4))
    outputs, group = run_group(_operators(weight), (h, y), (True, True), _ignore)
    received = group.backward((g0, g1), _ignore, (), keep_graph=False)

    expected_weight = weight.detach().clone().requires_grad_()
    inputs = [h.clone().requires_grad_(), y.clone().requires_grad_()]
    a = (inputs[0] @ expected_weight).tanh()
    torch.autograd.backward((a + inputs[1] * 2, a), (g0, g1))
    assert [output.requires_grad for output in outputs] == [False, False]
    torch.testing.assert_close(weight.grad, expected_weight.grad)
    torch.testing.assert_close(received, {0: inputs[0].grad, 1: inputs[1].grad})


def test_operators_announce_themselves_forward_and_watched_ones_backward_in_reverse() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    seen: list[str] = []
    _, group = run_group(_operators(weight), (torch.ones(2, 3), torch.ones(2, 3)), (True, True), seen.append)
    assert seen == ["linear_0", "activation_0", "linear_1"]
    seen.clear()
    gradient = torch.ones(2, 3)
    group.backward((gradient, gradient), seen.append, ("linear_0", "activation_0", "linear_1"), keep_graph=True)
    assert seen == ["linear_1", "activation_0", "linear_0"]
    seen.clear()
    group.backward((gradient, None), seen.append, ("activation_0",), keep_graph=False)
    assert seen == ["activation_0"]


def test_unwanted_gradients_are_left_out() -> None:
    frozen = torch.ones(3, 3)
    outputs, group = run_group(_operators(frozen), (torch.ones(2, 3), torch.ones(2, 3)), (False, False), _ignore)
    assert group.edges == (None,) * len(outputs)
    assert group.backward(outputs, _ignore, (), keep_graph=False) == {}
    _, group = run_group(_operators(frozen), (torch.ones(2, 3), torch.ones(2, 3)), (False, True), _ignore)
    assert list(group.backward((torch.ones(2, 3), None), _ignore, (), keep_graph=False)) == [1]


def test_inputs_that_no_operator_saved_are_freed() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    h, y = torch.ones(2, 3), torch.ones(2, 3)
    _outputs, group = run_group(_operators(weight), (h, y), (True, True), _ignore)
    alive = weakref.ref(y.untyped_storage())
    del y
    assert alive() is None
    del h, group
