"""Faults that are planted into trainings: each changes a value in one module, in one iteration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from trainings import Training

AT = 1  # the iteration of each fault: the optimizer has a state by then


class Fault(NamedTuple):
    """model: which. plant: changes the training. module, phase: what must be named. operation: a part of its name."""

    model: str
    name: str
    plant: Callable[[Training], None]
    module: str
    phase: str = "forward"
    level: str = "modules"
    operation: str = ""


def unseen() -> contextlib.AbstractContextManager:
    """What a device does by itself is no operation of the program."""
    return _disable_current_modes()


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


def bit(path: str, number: int = 0, at: int = -1) -> Callable[[Training], None]:
    """One bit of the output."""

    def change(m, usual, *args):
        y = usual(*args)
        if isinstance(y, tuple):
            return (straight(y[0], flipped(y[0], at, number)), *y[1:])
        return straight(y, flipped(y, at, number))

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
                with torch.no_grad(), unseen():
                    p.copy_(flipped(p))

        training.before = before

    return plant


class Scaled(torch.autograd.Function):
    """The identity, with a gradient that is one bit off.

    It is no low bit: sums inside of the module could round that away, and then nothing differs outside.
    """

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return flipped(g, bit=14)


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
        with unseen():
            p.grad.copy_(p.grad.bfloat16())

    return at_iteration("between", change)


def state(path: str, what: str, key: str = "weight") -> Callable[[Training], None]:
    """One bit of the optimizer's state."""

    def change(t: Training) -> None:
        one = t.optimizer.state[getattr(t.model.get_submodule(path), key)]
        with unseen():
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
    torch.rand(1, device=t.device)


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
    scores = scores.masked_fill(~torch.tril(m.mask[:t, :t], 1 - 1).logical_or(torch.eye(t, dtype=torch.bool, device=x.device).roll(1, 1)),
                                float("-inf"))  # fmt: skip
    return m.proj((m.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, c))


def other_kernel_of_attention(m, usual, x):
    b, t, c = x.shape
    q, k, v = (z.view(b, t, m.heads, -1).transpose(1, 2) for z in m.qkv(x).chunk(3, dim=-1))
    scores = (q.double() @ k.double().transpose(-1, -2)).float() / (c // m.heads) ** 0.5
    scores = scores.masked_fill(~m.mask[:t, :t], float("-inf"))
    return m.proj((m.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, c))


def permuted_sum(m, usual, x, source, target):
    order = torch.arange(len(source) - 1, -1, -1, device=x.device)
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
    with torch.autocast(args[0].device.type, torch.bfloat16):
        return usual(*args).float()


def stale_hidden(m, usual, x):
    # What a cache that was not cleared would give.
    stale = torch.full((2, x.shape[0], m.hidden_size), 1e-3, device=x.device)
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


def of_precision(t: torch.Tensor, bits: int) -> torch.Tensor:
    """Rounded to so many bits of the mantissa, to nearest."""
    cut = 23 - bits
    words = t.detach().contiguous().view(torch.int32)
    return ((words + (1 << (cut - 1))) & -(1 << cut)).view(torch.float32)


def tf32(path: str) -> Callable[[Training], None]:
    """Operands of one product with the ten bits that tensor cores keep."""

    def change(m, usual, x):
        with unseen():
            small, weight = of_precision(x, 10), of_precision(m.weight, 10)
        x, weight = straight(x, small), straight(m.weight, weight)
        if isinstance(m, nn.Conv2d):
            return nn.functional.conv2d(x, weight, m.bias, m.stride, m.padding)
        return nn.functional.linear(x, weight, m.bias)

    return replaced(path, change)


def coarse(path: str) -> Callable[[Training], None]:
    """The output passes through bfloat16."""

    def change(m, usual, *args):
        y = usual(*args)
        with unseen():
            small = y.detach().bfloat16().float()
        return straight(y, small)

    return replaced(path, change)


def split_k(path: str, parts: int = 2) -> Callable[[Training], None]:
    """A product whose inner dimension is cut, as by another choice of kernel."""

    def change(m, usual, x):
        cuts = torch.tensor_split(torch.arange(m.in_features, device=x.device), parts)
        sums = [nn.functional.linear(x[..., c], m.weight[:, c]) for c in cuts]
        total = sums[0]
        for one in sums[1:]:
            total = total + one
        return total if m.bias is None else total + m.bias

    return replaced(path, change)


def shuffled(count: int, seed: int, device: torch.device) -> torch.Tensor:
    """The same order on each device."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(device)


class Scattered(torch.autograd.Function):
    """A look-up whose gradient is summed in an order of its own, as atomic additions do."""

    @staticmethod
    def forward(ctx, weight, tokens, seed):
        ctx.save_for_backward(tokens)
        ctx.shape, ctx.seed = weight.shape, seed
        return nn.functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx, g):
        (tokens,) = ctx.saved_tensors
        order = shuffled(tokens.numel(), ctx.seed, g.device)
        rows, all_of = tokens.reshape(-1), g.reshape(-1, g.shape[-1])
        return g.new_zeros(ctx.shape).index_add(0, rows[order], all_of[order]), None, None


def atomic_gradient(seed: int) -> Callable[[Training], None]:
    return replaced("embed", lambda m, usual, tokens: Scattered.apply(m.weight, tokens, seed))


def atomic_sum(seed: int):
    """The order of additions of a scatter is that of chance."""

    def change(m, usual, x, source, target):
        order = shuffled(len(source), seed, x.device)
        return usual(x, source[order], target[order])

    return change


def attention(
    scores_of: Callable, softmax: Callable = lambda s: s.softmax(-1), fill: float = float("-inf")
) -> Callable:
    """The attention with other code of its own."""

    def change(m, usual, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, m.heads, -1).transpose(1, 2) for z in m.qkv(x).chunk(3, dim=-1))
        scores = scores_of(q, k, (c // m.heads) ** 0.5).masked_fill(~m.mask[:t, :t], fill)
        return m.proj((m.drop(softmax(scores)) @ v).transpose(1, 2).reshape(b, t, c))

    return change


def scores(q, k, root):
    return (q @ k.transpose(-1, -2)) / root


def scaled_first(q, k, root):
    return (q / root) @ k.transpose(-1, -2)


def softmax_by_hand(s):
    e = s.exp()
    return e / e.sum(-1, keepdim=True)


def coarse_softmax(s):
    return s.bfloat16().softmax(-1).float()


def residual_in_half(m, usual, x):
    x = (x.bfloat16() + m.attn(m.ln1(x)).bfloat16()).float()
    return x + m.mlp(m.ln2(x))


def other_gelu(m, usual, x):
    return nn.functional.gelu(x, approximate="tanh")


def mean_by_sum(m, usual, tokens):
    x = m.embed(tokens)
    for layer in m.layers:
        x = layer(x)
    return m.head(m.norm(x).sum(1) * (1 / 6))


def negative_zero(m, usual, x):
    y = usual(x)
    with unseen():
        changed = torch.where(y == 0, torch.tensor(-0.0, device=y.device), y.detach())
    return straight(y, changed)


def chance_of_experts(m, usual, x):
    """Experts add their results in the opposite order."""
    x = m.inp(x)
    weight, chosen = m.router(x).softmax(-1).topk(2, dim=-1)
    made = []
    for number, expert in enumerate(m.experts):
        row, slot = (chosen == number).nonzero(as_tuple=True)
        if len(row):
            made.append((row, expert(x[row]) * weight[row, slot, None]))
    y = x
    for row, one in reversed(made):
        y = y.index_add(0, row, one)
    return m.head(y)


def other_labels(given: list) -> list:
    (inputs, target), *rest = given
    return [(inputs, (target + 1) % 5), *rest]


def smoothed_loss(t: Training) -> None:
    t.loss = nn.CrossEntropyLoss(label_smoothing=2**-12)


def fewer_items(given: list) -> list:
    (inputs, target), *rest = given
    return [(tuple(x[:-1] for x in inputs), target[:-1]), *rest]


def stale_gradient(path: str, key: str = "weight") -> Callable[[Training], None]:
    """What is left of a gradient that was not set to zero."""

    def change(t: Training) -> None:
        p = getattr(t.model.get_submodule(path), key)
        with unseen():
            p.grad = torch.full_like(p, 2**-10)

    return at_iteration("before", change)


def clipped(t: Training) -> None:
    nn.utils.clip_grad_norm_(t.model.parameters(), 1e-3)


def scaled_gradients(t: Training) -> None:
    with unseen():
        for p in t.model.parameters():
            p.grad.mul_(1 + 2**-20)


def set_in_group(key: str, value) -> Callable[[Training], None]:
    return at_iteration("between", lambda t: t.optimizer.param_groups[0].__setitem__(key, value))


def set_in_module(path: str, key: str, value) -> Callable[[Training], None]:
    return at_iteration("before", lambda t: setattr(t.model.get_submodule(path), key, value))


def not_training(path: str) -> Callable[[Training], None]:
    return at_iteration("before", lambda t: t.model.get_submodule(path).eval())


# (layer, name, its own code)
ATTENTION = [
    (0, "scaled before the product", attention(scaled_first)),
    (1, "softmax in half", attention(scores, coarse_softmax)),
    (2, "softmax by hand", attention(scores, softmax_by_hand)),
    (1, "weak mask", attention(scores, fill=-5.0)),
]

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
    # Reduced precision of one product
    *(Fault("cnn", f"TF32 in {p}", tf32(p), p) for p in ("stem.0", "block.0", "head")),
    *(Fault("transformer", f"TF32 in {p}", tf32(p), p) for p in
      ("layers.0.attn.qkv", "layers.1.attn.proj", "layers.2.mlp.2", "head")),
    *(Fault("graph", f"TF32 in {p}", tf32(p), p) for p in ("layers.0.message", "layers.0.update", "layers.1.update", "head")),
    Fault("lstm", "TF32 in head", tf32("head"), "head"),
    *(Fault("moe", f"TF32 in {p}", tf32(p), p) for p in ("inp", "router", "experts.0.0", "experts.2.2", "head")),
    *(Fault("transformer", f"bfloat16 of {p}", coarse(p), p) for p in ("layers.0", "layers.1.attn.drop")),
    *(Fault("cnn", f"bfloat16 of {p}", coarse(p), p) for p in ("stem.1", "pool")),
    # Another order of additions
    *(Fault("transformer", f"split {p}", split_k(p, n), p) for p, n in
      (("layers.0.mlp.2", 4), ("layers.1.mlp.0", 3), ("layers.2.attn.proj", 2))),
    *(Fault("moe", f"split {p}", split_k(p), p) for p in ("inp", "router", "experts.1.2")),
    *(Fault("graph", f"atomic order {s} of {p}", replaced(p, atomic_sum(s)), p) for s in (1, 2) for p in ("layers.0", "layers.1")),
    *(Fault(m, f"atomic order {s} of a gradient", atomic_gradient(s), "embed", "backward") for s in (1, 2) for m in ("transformer", "lstm")),
    Fault("moe", "order of experts", replaced("", chance_of_experts), ""),
    # Bits of every weight and other places in a word
    *(Fault("cnn", f"bit {b} of {p}", bit(p, b, a), p) for p, b, a in
      (("stem", 31, 0), ("block", 23, 7), ("stem.0", 30, 3), ("block.2", 1, 5), ("pool", 12, 0), ("head", 22, 2))),
    *(Fault("transformer", f"bit {b} of {p}", bit(p, b, 1), p) for p, b in
      (("layers.0", 31), ("layers.1.ln1", 20), ("layers.2.attn.qkv", 23))),
    *(Fault("lstm", f"bit {b} of {p}", bit(p, b, 0), p) for p, b in (("embed", 31), ("lstm", 22), ("head", 5))),
    Fault("cnn", "negative zeros", replaced("stem.2", negative_zero), "stem.2"),
    *(Fault("cnn", f"{k} of {p}", weight(p, k), p) for p, k in (("stem.1", "bias"), ("head", "bias"), ("block.1", "running_mean"))),
    *(Fault("transformer", f"{k} of {p}", weight(p, k), p) for p, k in
      (("layers.0.attn.proj", "bias"), ("head", "weight"))),
    *(Fault("graph", f"{k} of {p}", weight(p, k), p) for p, k in (("layers.0.update", "bias"), ("norm", "weight"), ("head", "weight"))),
    *(Fault("lstm", f"{k} of lstm", weight("lstm", k), "lstm") for k in ("weight_ih_l0", "bias_hh_l1")),
    *(Fault("moe", f"{k} of {p}", weight(p, k), p) for p, k in (("inp", "bias"), ("experts.0.0", "weight"), ("head", "bias"))),
    # Gradients
    *(Fault("cnn", f"gradient of {p}", gradient(p), p, "backward") for p in ("stem.2", "block.0", "drop", "block")),
    *(Fault("transformer", f"gradient of {p}", gradient(p), p, "backward") for p in
      ("embed", "layers.1.attn.drop", "norm")),
    *(Fault("graph", f"gradient of {p}", gradient(p), p, "backward") for p in ("layers.1.update", "layers.0", "norm", "head")),
    *(Fault("moe", f"gradient of {p}", gradient(p), p, "backward") for p in ("inp", "router", "head")),
    *(Fault(m, f"stale gradient of {p}", stale_gradient(p), p, "backward") for m, p in
      (("cnn", "block.0"), ("transformer", "layers.1.ln2"), ("graph", "head"), ("lstm", "embed"), ("moe", "inp"))),
    # What the optimizer takes
    *(Fault(m, f"lossy gradient of {p}", rounded_gradient(p), p, "optimizer") for m, p in
      (("cnn", "stem.0"), ("cnn", "head"), ("transformer", "embed"), ("transformer", "head"), ("graph", "layers.1.update"), ("moe", "experts.3.2"))),
    *(Fault(m, f"{w} of {p}", state(p, w), p, "optimizer") for m, p, w in
      (("cnn", "stem.0", "step"), ("cnn", "block.1", "exp_avg_sq"), ("transformer", "layers.2.attn.qkv", "exp_avg"),
       ("graph", "norm", "step"), ("lstm", "head", "exp_avg"), ("moe", "router", "exp_avg_sq"))),
    *(Fault(m, f"{what}", plant, p, "optimizer") for m, p in
      (("cnn", "stem.0"), ("graph", "layers.0.message"), ("lstm", "embed"), ("moe", "inp")) for what, plant in
      (("clipped gradients", at_iteration("between", clipped)), ("scaled gradients", at_iteration("between", scaled_gradients)),
       ("betas", set_in_group("betas", (0.9, 0.998))), ("epsilon of the optimizer", set_in_group("eps", 2e-8)))),
    # Settings of modules
    Fault("cnn", "momentum", set_in_module("stem.1", "momentum", 0.2), "stem.1"),
    Fault("cnn", "evaluation of block.1", not_training("block.1"), "block.1"),
    Fault("transformer", "epsilon of norm", set_in_module("norm", "eps", 1e-6), "norm"),
    Fault("transformer", "evaluation of a dropout", not_training("layers.1.attn.drop"), "layers.1.attn.drop"),
    Fault("lstm", "evaluation of drop", not_training("drop"), "drop"),
    # Data and loss
    *(Fault(m, "other labels", batches(other_labels), "", "record") for m in ("cnn", "transformer", "graph", "lstm", "moe")),
    *(Fault(m, "smoothed loss", at_iteration("before", smoothed_loss), "", "record") for m in ("cnn", "graph", "moe")),
    *(Fault(m, "fewer items", batches(fewer_items), "") for m in ("cnn", "transformer", "lstm", "moe")),
    # Code of the attention's own
    *(Fault("transformer", name, replaced(f"layers.{n}.attn", change), f"layers.{n}.attn") for n, name, change in ATTENTION),
    Fault("transformer", "half residual", replaced("layers.1", residual_in_half), "layers.1"),
    Fault("transformer", "other GELU", replaced("layers.0.mlp.1", other_gelu), "layers.0.mlp.1"),
    Fault("transformer", "mean by sum", replaced("", mean_by_sum), ""),
]  # fmt: skip

# The same with every operation: the operation has a name of its own.
FAULTS += [
    *(Fault("transformer", f"ops: {name}", replaced(f"layers.{n}.attn", change), f"layers.{n}.attn", level="ops", operation=op)
      for (n, name, change), op in zip(ATTENTION, ("div", "_to_copy", "_softmax", "masked_fill"), strict=True)),
    Fault("transformer", "ops: half residual", replaced("layers.1", residual_in_half), "layers.1", level="ops"),
    Fault("transformer", "ops: other GELU", replaced("layers.0.mlp.1", other_gelu), "layers.0.mlp.1", level="ops", operation="gelu"),
    Fault("transformer", "ops: mean by sum", replaced("", mean_by_sum), "", level="ops"),
    *(Fault("transformer", f"ops: TF32 in {p}", tf32(p), p, level="ops") for p in ("layers.0.attn.qkv", "head")),
    Fault("transformer", "ops: atomic order of a gradient", atomic_gradient(1), "embed", "backward", "ops"),
    *(Fault("transformer", f"ops: weight of {p}", weight(p), p, level="ops") for p in ("embed", "layers.1.attn.qkv")),
    Fault("transformer", "ops: gradient of layers.2.ln2", gradient("layers.2.ln2"), "layers.2.ln2", "backward", "ops"),
    Fault("transformer", "ops: state", state("layers.1.ln1", "exp_avg"), "layers.1.ln1", "optimizer", "ops"),
    *(Fault("graph", f"ops: atomic order of {p}", replaced(p, atomic_sum(3)), p, level="ops", operation="") for p in ("layers.0", "layers.1")),
    Fault("graph", "ops: bit of norm", bit("norm"), "norm", level="ops"),
    Fault("graph", "ops: lossy gradient", rounded_gradient("norm"), "norm", "optimizer", "ops"),
    Fault("graph", "ops: other labels", batches(other_labels), "", "outside", "ops"),
    *(Fault("cnn", f"ops: TF32 in {p}", tf32(p), p, level="ops") for p in ("stem.0", "block.0")),
    Fault("cnn", "ops: other dropout", at_iteration("before", dropped_more), "drop", level="ops"),
    Fault("cnn", "ops: gradient of pool", gradient("pool"), "pool", "backward", "ops"),
    Fault("lstm", "ops: bit of lstm", bit("lstm"), "lstm", level="ops"),
    Fault("lstm", "ops: weight of lstm", weight("lstm", "weight_hh_l1"), "lstm", level="ops"),
    Fault("moe", "ops: order of experts", replaced("", chance_of_experts), "", level="ops"),
    *(Fault("moe", f"ops: split {p}", split_k(p), p, level="ops") for p in ("router", "experts.1.2")),
]  # fmt: skip
