"""What this project aims at, computed from the measurements: met, not met, or not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lines import Outcome
from measure import Spread
from table import number

# GB/s of one run's bytes that the published code reached on 2 quiet cores of this kind of machine, with a file of 1.07 GB
# of 7 f32 fields, page cache warm, io_uring: the best of what was recorded. Rows: cases.Recipe.published; columns: chunk.
PUBLISHED_CODE = {
    "identical": {4 << 10: 48, 64 << 10: 450, 512 << 10: 1700},
    "sparse 1e-3": {4 << 10: 30, 64 << 10: 10.8, 512 << 10: 2.6},
    "sparse 1e-7": {4 << 10: 17, 64 << 10: 10.4, 512 << 10: 2.0},
    "ulp": {4 << 10: 0.45, 64 << 10: 0.56, 512 << 10: 0.60},
    "1e-4": {4 << 10: 0.39, 64 << 10: 0.54, 512 << 10: 0.56},
    "1e-7": {4 << 10: 3.8, 64 << 10: 0.89, 512 << 10: 0.52},
}


@dataclass(frozen=True)
class Measured:
    """A line in a case. rate: GB/s of one run's data. amount: bytes of one run."""

    rate: Spread
    outcome: Outcome
    amount: int


@dataclass(frozen=True)
class Goal:
    """An aim. measured: None where this run has no number for it."""

    text: str
    aim: str
    measured: str | None
    met: bool | None


Results = Mapping[tuple[str, str, str], Measured]  # case, line, warm or cold


def _above(text: str, unit: str, aim: float, value: float | None, inclusive: bool = True) -> Goal:
    sign = "≥" if inclusive else ">"
    if value is None:
        return Goal(text, f"{sign} {aim:g}{unit}", None, None)
    met = value >= aim if inclusive else value > aim
    return Goal(text, f"{sign} {aim:g}{unit}", f"{number(value)}{unit}", met)


def all_goals(
    results: Results,
    storage: Mapping[str, float],
    building: Mapping[str, float],
    call_seconds: float | None,
) -> list[Goal]:
    """results: of compare's lines. storage: case -> the storage's read rate, bytes/s. building: line -> bytes/s, all cores."""

    def rate(case: str, line: str, state: str) -> float | None:
        found = results.get((case, line, state))
        return None if found is None else found.rate.median

    def ratio(case: str, line: str, other: str, state: str) -> float | None:
        x, y = rate(case, line, state), rate(case, other, state)
        return None if x is None or y is None else x / y

    four, direct = "ours-4-4096", "direct-uring"
    goals = [
        _above("identical, warm, 4 KiB chunks", " GB/s", 48, rate("identical", four, "warm"), False),
        _above("0.1% of chunks differ, warm, 4 KiB chunks", " GB/s", 30, rate("sparse", four, "warm"), False),
    ]
    for case, title in (
        ("noise-1", "every element off by 1% of eps"),
        ("noise-40", "every element off by 40% of eps"),
        ("ulp", "every element off by 1 ulp"),
        ("noise-1e-4", "every element off by 1e-4"),
        ("noise-1e-7", "every element off by 1e-7"),
    ):
        goals.append(_above(f"{title}, warm, 4 KiB chunks", " GB/s", 8, rate(case, four, "warm"), False))
    for case, title in (
        ("noise-1", "every element off by 1% of eps"),
        ("noise-40", "every element off by 40% of eps"),
    ):
        found = results.get((case, four, "warm"))
        read = None if found is None else found.outcome.element_bytes
        goals.append(
            Goal(
                f"{title}: element bytes read",
                "0",
                None if read is None else str(read),
                None if read is None else read == 0,
            )
        )
        goals.append(_above(f"{title}: cold, against direct", "x", 6, ratio(case, four, direct, "cold")))
    for case, title in (("identical", "identical"), ("sparse", "0.1% of chunks differ")):
        goals.append(_above(f"{title}: cold, against direct", "x", 50, ratio(case, four, direct, "cold")))
        goals.append(_above(f"{title}: warm, against direct", "x", 8, ratio(case, four, direct, "warm")))
    for case, title in (("identical", "identical"), ("noise-1", "every element off by 1% of eps")):
        found, limit = results.get((case, direct, "cold")), storage.get(case)
        value = None if found is None or not limit else 2 * found.rate.median * 1e9 / limit
        goals.append(
            _above(f"direct, io_uring, cold, against what the storage reads ({title})", "", 0.9, value)
        )
        goals.append(
            _above(
                f"direct, io_uring, warm, against numpy ({title})",
                "x",
                3,
                ratio(case, direct, "numpy", "warm"),
            )
        )
    limit, four_bits, published = (
        building.get("memory_read"),
        building.get("build/linear_4"),
        building.get("build/published"),
    )
    goals.append(
        _above(
            "building digests and 4-bit residues in memory, all cores, against reading memory",
            "",
            0.6,
            four_bits / limit if four_bits and limit else None,
        )
    )
    goals.append(
        _above(
            "the same against building published digests",
            "x",
            5,
            four_bits / published if four_bits and published else None,
        )
    )
    goals.append(
        Goal(
            "comparing two 4 KB arrays from Python",
            "< 1 ms",
            None if call_seconds is None else f"{1e3 * call_seconds:.3f} ms",
            None if call_seconds is None else call_seconds < 1e-3,
        )
    )
    return goals
