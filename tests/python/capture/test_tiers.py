"""What is in a history behind a node-local tier of any size is what a plain list of its captures says."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun

# Within the tier's limit, or past it.
SIZES = st.sampled_from([500, 5_000, 40_000])
SESSIONS = st.lists(st.lists(st.tuples(st.integers(0, 3), SIZES), max_size=6), min_size=1, max_size=3)
KEPT = st.one_of(
    st.just({}),
    st.just({"record": "runs"}),
    st.fixed_dictionaries({"keep_steps": st.integers(1, 3)}),
    st.fixed_dictionaries({"keep_data_steps": st.integers(1, 3)}),
)


@settings(max_examples=60, deadline=None)
@given(
    sessions=SESSIONS,
    kept=KEPT,
    background=st.booleans(),
    waits=st.booleans(),
    limit=st.sampled_from(["100 KiB", "200 KiB", None]),
)
def test_a_history_behind_a_tier_is_what_was_captured(sessions, kept, background, waits, limit):
    tier = {} if limit is None else {"local_limit": limit}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        here: dict[int, np.ndarray] = {}  # in the order of capture
        with_data: set[int] = set()
        value = 0.0
        for captures in sessions:
            with twinrun.Run(
                path, existing="append", local=Path(folder) / "local", background=background, replace_steps=True,
                **tier, **kept,
            ) as run:  # fmt: skip
                here = dict(sorted(here.items()))  # a new run knows of numbers only
                for step, size in captures:
                    value += 1e6
                    here.pop(step, None)
                    here[step] = np.arange(value, value + size)
                    with_data.add(step)
                    run.capture(step, {"x": here[step]})
                    if waits:
                        run.wait()
                    if not waits and background:
                        continue
                    assert (run.load(step)["x"] == here[step]).all()
            for step in list(here)[: -kept.get("keep_steps", len(here)) or None]:
                del here[step]
            with_data &= set(list(here)[-kept.get("keep_data_steps", len(here)) :] if here else [])
            record = {"record": kept["record"]} if "record" in kept else {}
            with twinrun.Run(path, existing="append", **record) as run:
                assert run.steps == sorted(here)
                for step in with_data:
                    assert (run.load(step)["x"] == here[step]).all()
            assert not twinrun.verify(path).problems
