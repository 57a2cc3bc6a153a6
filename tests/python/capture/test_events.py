"""Events on their way into a run."""

import gc

import numpy as np

from twinrun.capture.events import EventWriter
from twinrun.runs.digest import digest
from twinrun.runs.events import Event


def event() -> Event:
    return Event("forward", 0, "layer", "Linear", "forward", 0, -1, [])


def test_values_come_in_the_order_in_which_they_were_seen() -> None:
    writer = EventWriter("a", True)
    first, second = writer.add(event()), writer.add(event())
    x, y = np.arange(6.0).reshape(2, 3), np.ones(4, np.int16)
    no_array = np.array([None, "x"], object)
    writer.see(first, {"x": x, "bad": no_array, "y": y}, out=False)
    writer.known(first, "rate", digest(y), ("python", ()), out=False, role="setting")
    writer.see(second, {"y": y}, out=True, keep=np.copy)
    x[:] = 0  # what was seen is not what is there now
    for _ in range(2):  # reading changes nothing
        events, problems = writer.events()
        assert events == [first, second] and not problems
        names = [(v.name, v.out, v.dtype, v.shape) for e in events for v in e.values]
        assert names == [
            ("x", False, "float64", (2, 3)),
            ("bad", False, "object", (2,)),
            ("y", False, "int16", (4,)),
            ("rate", False, "python", ()),
            ("y", True, "int16", (4,)),
        ]
        assert [v.digest for v in first.values] == [
            int(digest(np.arange(6.0).reshape(2, 3))), 0, int(digest(y)), int(digest(y))
        ]  # fmt: skip
        assert first.values[1].missing and not first.values[0].missing
        assert second.values[0].digest == int(digest(y)) and writer.bytes_kept(second) == y.nbytes


def test_a_value_is_nothing_that_the_garbage_collector_looks_at() -> None:
    writer = EventWriter("a", True)
    x = np.ones(3)

    def see(count: int) -> None:
        for _ in range(count):
            writer.see(writer.add(event()), {"x": x, "y": x}, out=False)

    see(1)
    gc.collect()
    before = len(gc.get_objects())
    see(1000)
    gc.collect()
    # A list for each event.
    assert len(gc.get_objects()) - before < 1100
    events, _ = writer.events()
    assert len({v.digest for e in events for v in e.values}) == 1
