"""A NaN that differs from a NaN is a difference by every method: digests do not tell where NaNs are."""

from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun


@pytest.mark.parametrize("digest", ["linear", "published"])
def test_all_methods_find_nans_that_differ(tmp_path: Path, digest: str) -> None:
    x = np.random.default_rng(3).normal(size=50_000)
    x[[100, 40_000]] = np.nan
    y = x.copy()
    y[7] += 1
    y[9] = np.nan
    method = "staged" if digest == "linear" else "published"
    for name, array in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array)
        twinrun.index(tmp_path / f"{name}.npy", atol=1e-6, digest=digest)
    a, b = tmp_path / "x.npy", tmp_path / "y.npy"
    for other in (b, a):
        found = {
            how: twinrun.compare(
                a, other, atol=1e-6, equal_nan=False, options=twinrun.CompareOptions(method=how)
            )
            for how in ("direct", "auto", method)
        }
        direct = found["direct"]
        assert direct.verdict == "different" and direct.different == (4 if other == b else 2)
        for result in found.values():
            assert (result.verdict, result.different) == (direct.verdict, direct.different)
            assert result.first.first_index == direct.first.first_index
            assert result.first.max_abs_diff == direct.first.max_abs_diff
    done = command("compare", a, b, "--atol", 1e-6, "--nan-differs", "--method", method)
    assert done.status == 1 and not done.err


def test_metadata_alone_cannot_tell(tmp_path: Path) -> None:
    x = np.full(1000, np.nan)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", x)
        twinrun.index(tmp_path / f"{name}.npy", atol=1e-6)
        (tmp_path / f"{name}.npy").unlink()
    done = command(
        "compare", tmp_path / "a.npy.twm", tmp_path / "b.npy.twm", "--nan-differs", "--method", "staged"
    )
    assert done.status == 2 and "there are NaNs, which are not to be taken for equal" in done.err
