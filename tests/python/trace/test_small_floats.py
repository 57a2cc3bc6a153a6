"""8-bit floating-point tensors of PyTorch: in memory, in its files and in histories, against their values."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np  # noqa: E402

import twinrun  # noqa: E402

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no 8-bit numbers"
)

TYPES = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_code_is_what_pytorch_takes_it_for(kind, tmp_path):
    codes = torch.arange(256).to(torch.uint8).reshape(16, 16)
    small = codes.view(kind)
    wide = small.double()
    assert twinrun.compare({"w": small}, {"w": wide}, types="values").same
    torch.save({"w": small}, tmp_path / "small.pt")
    assert twinrun.compare(tmp_path / "small.pt", {"w": wide}, types="values").same
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(0, {"w": small, "x": wide})
    assert twinrun.compare(tmp_path / "run", {"w": wide, "x": wide}, types="values").same
    other = wide.clone()
    other[3, 7] = 0.123
    found = twinrun.compare(tmp_path / "run", {"w": other, "x": wide}, types="values")
    assert found.different == 1 and found.first.first_index == (3, 7)
    assert found.first.types == (str(kind).removeprefix("torch."), "f64")


def test_bytes_are_compared_without_being_asked_for_values(tmp_path):
    x = torch.linspace(-2, 2, 64).to(torch.float8_e4m3fn)
    assert twinrun.compare({"w": x}, {"w": x.clone()}).same
    changed = x.view(torch.uint8).clone()
    changed[5] ^= 1
    found = twinrun.compare({"w": x}, {"w": changed.view(torch.float8_e4m3fn)})
    assert found.different == 1
    for other in (x.view(torch.uint8), x.view(torch.float8_e5m2), x.float()):
        with pytest.raises(twinrun.Incomparable, match="types must agree"):
            twinrun.compare({"w": x}, {"w": other})
    for name, values in (
        ("a", x),
        ("b", changed.view(torch.float8_e4m3fn)),
        ("c", x.view(torch.float8_e5m2)),
    ):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(0, {"w": values, "n": np.zeros(2)})
    assert twinrun.compare(tmp_path / "a", tmp_path / "a").same
    assert twinrun.compare(tmp_path / "a", tmp_path / "b").different == 1
    assert twinrun.compare(tmp_path / "a", tmp_path / "c", partial=True).verdict == "incomparable"


def test_scaled_weights_against_the_exact_product():
    torch.manual_seed(1)
    w = torch.randn(32, 48)
    scale = w.abs().amax(1, keepdim=True) / 448
    small = (w / scale).to(torch.float8_e4m3fn)
    exact = small.double() * scale.double()
    assert twinrun.compare({"w": small, "w_scale": scale}, {"w": exact}, types="values").same
    rounded = small.float() * scale  # rounded to float32: not what the numbers stand for
    found = twinrun.compare({"w": small, "w_scale": scale}, {"w": rounded}, types="values")
    assert found.different == int((exact != rounded.double()).sum()) > 0
