"""How often whole acceptances are wrong; bench/acceptance_rates.py makes the tables of docs/reference/acceptance.md from the same runs."""

from __future__ import annotations

import acceptance_rates as model
import pytest

RELATIVE = {"relative": 1e-14}
STEPS = (20, 100, 220, 500, 600, 700)
JUDGEMENTS = 20


def verdicts(code: model.Code, references: int, new: int, steps: tuple[int, ...] = STEPS) -> list[str]:
    own = model.runs(model.Code(), JUDGEMENTS * references, 3, RELATIVE, steps)
    other = model.runs(code, JUDGEMENTS * new, 3, RELATIVE, steps, first=1 << 30)
    found = []
    for k in range(JUDGEMENTS):
        states = model.together(
            own, other, slice(k * references, (k + 1) * references), slice(k * new, (k + 1) * new)
        )
        found.append(model.judged(states, references, permutations=299).verdict)
    return found


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize(("references", "new"), [(6, 3), (20, 1)])
def test_right_runs_are_rarely_rejected(order: str, references: int, new: int) -> None:
    """At 5%, more than 5 of 20 come in 3 of 10,000 such ensembles."""
    assert verdicts(model.Code(order), references, new).count("rejected") <= 5


@pytest.mark.parametrize("share", [1e-9, 1e-3])
def test_wrong_constants_are_found_from_the_first_step_on(share: float) -> None:
    assert verdicts(model.Code(forcing=8 * (1 + share)), 5, 3, (20, 500)) == ["rejected"] * JUDGEMENTS


def test_a_large_error_is_found_where_only_distributions_tell() -> None:
    """The forcing is 9.5 in place of 8."""
    found = verdicts(model.Code(forcing=9.5), 20, 3, (500, 550, 600, 650, 700))
    assert found.count("rejected") >= JUDGEMENTS - 1
