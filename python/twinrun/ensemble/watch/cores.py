"""Lists of cores, and the cores of a level."""

from __future__ import annotations

import re

__all__ = ["cores_of_level", "list_of_numbers", "numbers_of_list"]


def numbers_of_list(text: str) -> list[int]:
    """The numbers of "0-2,5", as the kernel writes lists."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found.extend(range(int(low), int(high or low) + 1))
    return found


def list_of_numbers(numbers: object) -> str:
    """Numbers as "0-2,5"."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):  # type: ignore[call-overload]
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def cores_of_level(level: str, share: list[int], spare: int | None = None) -> list[int]:
    """The cores of a level, among those that the task may have: all | all-but-one | a number | a list as
    0,2-3.

    spare: the core that all-but-one leaves free; by default the first, where interrupts go by default.
    """
    share = sorted(share)
    if level == "all":
        return share
    if level == "all-but-one":
        if len(share) < 2:
            raise ValueError(f"all-but-one of {len(share)} core leaves none")
        free = share[0] if spare is None or spare not in share else spare
        return [c for c in share if c != free]
    if re.fullmatch(r"[0-9]+", level):
        if not 1 <= int(level) <= len(share):
            raise ValueError(f"{level} cores of {len(share)}")
        return share[-int(level) :]
    listed = numbers_of_list(level.removeprefix("list:"))
    if not set(listed) <= set(share):
        raise ValueError(f"cores {level} are not all among {list_of_numbers(share)}")
    return sorted(set(listed))
