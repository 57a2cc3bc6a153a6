"""`twinrun.digest` of tensors on a GPU: the numbers of the same tensors on the host."""

from __future__ import annotations

import pytest

import twinrun

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

KINDS = [
    getattr(torch, name)
    for name in (
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64", "uint8", "bool",
        "float8_e4m3fn", "float8_e5m2",
    )
    if hasattr(torch, name)
]  # fmt: skip


def some(kind: torch.dtype, *shape: int, seed: int = 1) -> torch.Tensor:
    """Random bits, NaNs and negative zeros among them."""
    made = torch.Generator().manual_seed(seed)
    item = torch.empty(0, dtype=kind).element_size()
    raw = torch.randint(0, 256, (*shape, item), dtype=torch.uint8, generator=made)
    return (raw[..., 0] & 1).bool() if kind is torch.bool else raw.view(kind).reshape(shape)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gpu_digests_are_those_of_the_host(kind: torch.dtype) -> None:
    whole = {
        "a number": some(kind, 1)[0],
        "nothing": some(kind, 0),
        "rows": some(kind, 33, 129),
        "several chunks": some(kind, 70_001),
        "not aligned": some(kind, 5_001)[1:],
        "every other": some(kind, 5_000)[::2],
        "columns": some(kind, 64, 70).t(),
    }
    on_device = {}
    for name, t in whole.items():
        base = t if t._base is None else t._base
        moved = base.cuda()
        on_device[name] = moved.as_strided(t.size(), t.stride(), t.storage_offset())
    expected = twinrun.digest(whole)
    assert {k: int(v) for k, v in twinrun.digest(on_device).items()} == {
        k: int(v) for k, v in expected.items()
    }


def test_gpu_digests_of_all_kinds_in_one_call() -> None:
    tensors = {f"{kind} {n}": some(kind, n, seed=n) for kind in KINDS for n in (1, 1000, 40_000)}
    found = twinrun.digest({name: t.cuda() for name, t in tensors.items()})
    assert found == twinrun.digest(tensors)


def test_gpu_every_bit_matters() -> None:
    t = some(torch.bfloat16, 100_000)
    seen = {int(twinrun.digest(t.cuda()))}
    for at in (0, 1, 2047, 2048, 32_767, 32_768, 65_536, 99_999):
        for bit in (0, 7, 15):
            other = t.clone()
            other.view(torch.int16)[at] ^= -(1 << 15) if bit == 15 else 1 << bit
            seen.add(int(twinrun.digest(other.cuda())))
    assert len(seen) == 1 + 8 * 3


def test_gpu_reads_what_the_work_before_wrote_and_nothing_later() -> None:
    """A launch begins while the kernel before it ends: it must wait for what that one writes."""
    sizes = (1, 3_000, 200_000, 4_000_001)
    counters = [torch.zeros(n, dtype=torch.int32, device="cuda") for n in sizes]
    expected = [
        [int(twinrun.digest(torch.full((n,), k, dtype=torch.int32))) for n in sizes] for k in range(1, 101)
    ]
    found = []
    for _ in range(100):
        for counter in counters:
            counter.add_(1)
        found.append([twinrun.digest(counter) for counter in counters])
    assert [[int(d) for d in of] for of in found] == expected


def test_gpu_streams_may_end_before_their_digests_are_read() -> None:
    stream = torch.cuda.Stream()
    t = some(torch.float32, 100_000)
    moved = t.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        on_stream = twinrun.digest(moved)
        moved.zero_()
    on_default = [twinrun.digest(torch.ones(n + 1, device="cuda")) for n in range(200)]
    del stream
    assert on_stream == twinrun.digest(t)
    for n in (199, 3, 0):
        assert on_default[n] == twinrun.digest(torch.ones(n + 1))
