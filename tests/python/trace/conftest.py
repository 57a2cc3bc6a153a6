"""Where the tests of traces run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import DEVICE, DEVICES


@pytest.fixture(scope="module", params=DEVICES)
def job_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the processes of a job compute: on the host with Gloo, or on a GPU each with NCCL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DEVICE, request.param)
        yield request.param
