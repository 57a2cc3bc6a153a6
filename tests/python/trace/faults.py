"""Faults that are planted into trainings: each changes a value in one module, in one iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from trainings import Training

AT = 2  # the iteration of each fault


class Fault(NamedTuple):
    """model: which. plant: changes the training. module: what must be named. phase: where; '' for any."""

    model: str
    name: str
    plant: Callable[[Training], None]
    module: str
    phase: str = "forward"
    level: str = "modules"


def flipped(t: torch.Tensor, at: int = -1, bit: int = 0) -> torch.Tensor:
    """A copy with one bit of one element changed."""
    made = t.detach().clone().contiguous()
    words = made.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])
    words.view(-1)[at] ^= 1 << bit
    return made


def straight(t: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
    """`changed`, with the gradient of `t`."""

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return changed.clone()

        @staticmethod
        def backward(ctx, g):
            return g

    return Exchange.apply(t)


def replaced(path: str, change: Callable) -> Callable[[Training], None]:
    """Another forward of one module: change(module, its forward, *arguments)."""

    def plant(training: Training) -> None:
        module = training.model.get_submodule(path)
        usual = module.forward

        def forward(*args, **kwargs):
            if training.iteration != AT:
                return usual(*args, **kwargs)
            return change(module, usual, *args, **kwargs)

        module.forward = forward

    return plant


def bit(path: str) -> Callable[[Training], None]:
    """One bit of the output."""

    def change(m, usual, *args):
        y = usual(*args)
        if isinstance(y, tuple):
            return (straight(y[0], flipped(y[0])), *y[1:])
        return straight(y, flipped(y))

    return replaced(path, change)


def kernel(path: str) -> Callable[[Training], None]:
    """The same product with another order of additions."""

    def change(m, usual, x):
        return (x.double() @ m.weight.double().T).float() + (m.bias if m.bias is not None else 0)

    return replaced(path, change)


def slow_norm(m, usual, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + m.eps).sqrt() * m.weight + m.bias


def weight(path: str, key: str = "weight") -> Callable[[Training], None]:
    """One bit of a parameter, before the iteration."""

    def plant(training: Training) -> None:
        def before(t: Training, i: int) -> None:
            if i == AT:
                owner = t.model.get_submodule(path)
                p = getattr(owner, key)
                with torch.no_grad():
                    p.copy_(flipped(p))

        training.before = before

    return plant


class Scaled(torch.autograd.Function):
    """The identity, with a gradient that is one bit off."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return flipped(g)


def gradient(path: str) -> Callable[[Training], None]:
    """A wrong gradient inside of a module, whose output is right."""
    return replaced(path, lambda m, usual, x, *rest: Scaled.apply(usual(x, *rest)))


def at_iteration(name: str, change: Callable[[Training], None]) -> Callable[[Training], None]:
    def plant(training: Training) -> None:
        def call(t: Training, i: int) -> None:
            if i == AT:
                change(t)

        setattr(training, name, call)

    return plant


def rounded_gradient(path: str, key: str = "weight") -> Callable[[Training], None]:
    """What a lossy all-reduce does to a gradient."""

    def change(t: Training) -> None:
        p = getattr(t.model.get_submodule(path), key)
        p.grad.copy_(p.grad.bfloat16())

    return at_iteration("between", change)


def state(path: str, what: str, key: str = "weight") -> Callable[[Training], None]:
    """One bit of the optimizer's state."""

    def change(t: Training) -> None:
        one = t.optimizer.state[getattr(t.model.get_submodule(path), key)]
        one[what].copy_(flipped(one[what]))

    return at_iteration("between", change)


def batches(change: Callable[[list], list]) -> Callable[[Training], None]:
    def plant(training: Training) -> None:
        training.batches = lambda i, given: change(given) if i == AT else given

    return plant


def first_input(given: list) -> list:
    (inputs, target), *rest = given
    x = inputs[0]
    changed = flipped(x) if x.is_floating_point() else torch.cat([(x[:1] + 1) % 20, x[1:]])
    return [((changed, *inputs[1:]), target), *rest]


def extra_draw(t: Training) -> None:
    torch.rand(1)


def no_mask(m, usual, x):
    kept = m.mask.clone()
    m.mask.fill_(True)
    try:
        return usual(x)
    finally:
        m.mask.copy_(kept)


def off_by_one_mask(m, usual, x):
    b, t, c = x.shape
    q, k, v = (z.view(b, t, m.heads, -1).transpose(1, 2) for z in m.qkv(x).chunk(3, dim=-1))
    scores = (q @ k.transpose(-1, -2)) / (c // m.heads) ** 0.5
    scores = scores.masked_fill(~torch.tril(m.mask[:t, :t], 1 - 1).logical_or(torch.eye(t, dtype=torch.bool).roll(1, 1)),
                                float("-inf"))  # fmt: skip
    return m.proj((m.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, c))


def other_kernel_of_attention(m, usual, x):
    b, t, c = x.shape
    q, k, v = (z.view(b, t, m.heads, -1).transpose(1, 2) for z in m.qkv(x).chunk(3, dim=-1))
    scores = (q.double() @ k.double().transpose(-1, -2)).float() / (c // m.heads) ** 0.5
    scores = scores.masked_fill(~m.mask[:t, :t], float("-inf"))
    return m.proj((m.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, c))


def permuted_sum(m, usual, x, source, target):
    order = torch.arange(len(source) - 1, -1, -1)
    return usual(x, source[order], target[order])


def pad_that_nobody_wrote(m, usual, x):
    wide = nn.functional.pad(x, (1, 1, 1, 1))
    wide[..., 0, :] = 1e-3
    return nn.functional.conv2d(wide, m.weight, m.bias)


def stale_statistics(m, usual, x):
    kept = m.running_mean.clone()
    y = usual(x)
    m.running_mean.data.copy_(kept)  # without a new version, which backward would refuse
    return y


def half(m, usual, *args):
    with torch.autocast("cpu", torch.bfloat16):
        return usual(*args).float()


def stale_hidden(m, usual, x):
    # What a cache that was not cleared would give.
    stale = torch.full((2, x.shape[0], m.hidden_size), 1e-3)
    return usual(x, (stale, torch.zeros_like(stale)))


def swapped_experts(m, usual, x):
    x = m.inp(x)
    weight, chosen = m.router(x).softmax(-1).topk(2, dim=-1)
    y = torch.zeros_like(x)
    for number, expert in enumerate(m.experts):
        row, slot = (chosen == number).nonzero(as_tuple=True)
        if len(row):
            y = y.index_add(0, row, expert(x[row]) * weight[row, 1 - slot, None])
    return m.head(x + y)


def other_epsilon(m, usual, x):
    return nn.functional.layer_norm(x, m.normalized_shape, m.weight, m.bias, m.eps * 4)


def other_rate(t: Training) -> None:
    t.optimizer.param_groups[0]["lr"] *= 1 + 2**-50


def other_decay(t: Training) -> None:
    t.optimizer.param_groups[0]["weight_decay"] = 0.02


def dropped_more(t: Training) -> None:
    t.model.drop.p = 0.5


FAULTS: list[Fault] = [
    # CNN
    *(Fault("cnn", f"bit of {p}", bit(p), p) for p in ("stem.0", "stem.1", "stem.2", "block.0", "block.1", "pool", "drop", "head")),
    Fault("cnn", "kernel of head", kernel("head"), "head"),
    *(Fault("cnn", f"weight of {p}", weight(p), p) for p in ("stem.0", "block.1", "head")),
    Fault("cnn", "stale running mean", replaced("stem.1", stale_statistics), "stem.1"),
    Fault("cnn", "flipped running variance", weight("block.1", "running_var"), "block.1"),
    Fault("cnn", "unwritten pad", replaced("block.0", pad_that_nobody_wrote), "block.0"),
    Fault("cnn", "swapped microbatches", batches(lambda b: b[::-1]), ""),
    Fault("cnn", "bit of the input", batches(first_input), ""),
    Fault("cnn", "other random state", at_iteration("before", extra_draw), "drop"),
    Fault("cnn", "other dropout", at_iteration("before", dropped_more), "drop"),
    *(Fault("cnn", f"gradient of {p}", gradient(p), p, "backward") for p in ("stem.0", "pool", "head")),
    Fault("cnn", "lossy gradient", rounded_gradient("block.0"), "block.0", "optimizer"),
    Fault("cnn", "state of the optimizer", state("head", "exp_avg"), "head", "optimizer"),
    Fault("cnn", "half precision", replaced("block.0", half), "block.0"),
    # Transformer
    *(Fault("transformer", f"bit of {p}", bit(p), p) for p in
      ("embed", "layers.0.ln1", "layers.0.attn.qkv", "layers.1.attn.drop", "layers.1.attn.proj", "layers.1.mlp.0",
       "layers.2.mlp.1", "layers.2.mlp.2", "layers.2.attn", "layers.1", "norm", "head")),
    *(Fault("transformer", f"kernel of {p}", kernel(p), p) for p in
      ("layers.0.attn.qkv", "layers.1.attn.proj", "layers.2.mlp.0", "head")),
    Fault("transformer", "no mask", replaced("layers.1.attn", no_mask), "layers.1.attn"),
    Fault("transformer", "wrong mask", replaced("layers.2.attn", off_by_one_mask), "layers.2.attn"),
    Fault("transformer", "kernel of attention", replaced("layers.0.attn", other_kernel_of_attention), "layers.0.attn"),
    Fault("transformer", "slow norm", replaced("layers.1.ln2", slow_norm), "layers.1.ln2"),
    Fault("transformer", "other epsilon", replaced("layers.0.ln2", other_epsilon), "layers.0.ln2"),
    *(Fault("transformer", f"weight of {p}", weight(p), p) for p in ("embed", "layers.1.attn.qkv", "layers.2.ln1")),
    Fault("transformer", "stale mask", at_iteration("before", lambda t: t.model.layers[1].attn.mask.fill_(True)), "layers.1.attn"),
    Fault("transformer", "other random state", at_iteration("before", extra_draw), "layers.0.attn.drop"),
    *(Fault("transformer", f"gradient of {p}", gradient(p), p, "backward") for p in
      ("layers.0.attn", "layers.1.mlp.1", "layers.2.ln2", "layers.2")),
    Fault("transformer", "lossy gradient", rounded_gradient("layers.1.mlp.0"), "layers.1.mlp.0", "optimizer"),
    Fault("transformer", "state of the optimizer", state("layers.1.ln1", "exp_avg_sq"), "layers.1.ln1", "optimizer"),
    Fault("transformer", "learning rate", at_iteration("between", other_rate), "embed", "optimizer"),
    Fault("transformer", "swapped microbatches", batches(lambda b: b[::-1]), ""),
    Fault("transformer", "bit of the input", batches(first_input), ""),
    # Graph network
    *(Fault("graph", f"bit of {p}", bit(p), p) for p in ("layers.0.message", "layers.0.update", "layers.1.message", "layers.1", "norm")),
    Fault("graph", "order of additions", replaced("layers.0", permuted_sum), "layers.0"),
    Fault("graph", "order of additions, later", replaced("layers.1", permuted_sum), "layers.1"),
    Fault("graph", "kernel of update", kernel("layers.1.update"), "layers.1.update"),
    Fault("graph", "weight of message", weight("layers.1.message"), "layers.1.message"),
    Fault("graph", "gradient of message", gradient("layers.0.message"), "layers.0.message", "backward"),
    Fault("graph", "lossy gradient", rounded_gradient("norm"), "norm", "optimizer"),
    Fault("graph", "weight decay", at_iteration("between", other_decay), "layers.0.message", "optimizer"),
    Fault("graph", "bit of the input", batches(first_input), ""),
    # LSTM
    *(Fault("lstm", f"bit of {p}", bit(p), p) for p in ("embed", "lstm", "drop", "head")),
    Fault("lstm", "stale hidden state", replaced("lstm", stale_hidden), "lstm"),
    Fault("lstm", "weight of lstm", weight("lstm", "weight_hh_l1"), "lstm"),
    Fault("lstm", "other random state", at_iteration("before", extra_draw), "drop"),
    Fault("lstm", "lossy gradient", rounded_gradient("lstm", "bias_ih_l0"), "lstm", "optimizer"),
    Fault("lstm", "kernel of head", kernel("head"), "head"),
    Fault("lstm", "swapped microbatches", batches(lambda b: b[::-1]), ""),
    # Mixture of experts
    *(Fault("moe", f"bit of {p}", bit(p), p) for p in ("inp", "router", "experts.0.0", "experts.1", "experts.3.1", "head")),
    Fault("moe", "swapped weights of experts", replaced("", swapped_experts), ""),
    Fault("moe", "kernel of an expert", kernel("experts.2.2"), "experts.2.2"),
    Fault("moe", "weight of router", weight("router"), "router"),
    Fault("moe", "gradient of an expert", gradient("experts.1.0"), "experts.1.0", "backward"),
    Fault("moe", "lossy gradient", rounded_gradient("router"), "router", "optimizer"),
]  # fmt: skip
