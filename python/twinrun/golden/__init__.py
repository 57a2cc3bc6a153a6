"""Golden files: what a run was, in a few percent of its bytes; and whether another run agrees with it.

>>> from twinrun import golden
>>> x = np.linspace(0, 1, 1000)
>>> facts = golden.save({"x": x}, "golden/x", atol=1e-6)  # once, and when a change of the results is meant
>>> result = golden.check("golden/x", {"x": x})  # ever after; the data of the first run is not needed
>>> result.verdict, len(result.fields)
('same', 1)

What is kept and why it suffices: docs/reference/golden.md.

writer        `save`
checker       `check`
result        what both return
folder        a folder of golden files: which files are golden files, how they are replaced and read
manifest      golden.json
selection     which steps, fields and attributes a call names
attributes    attributes of files, saved and checked
values        the values file: elements of small arrays
elements      one field against its kept values
particles     rows in the order of their IDs
rules         what counts as different, as for `compare`
fields        golden digests of one field, made and checked, of these:
  plan        the rule under which a field is digested
  proof       what digests and residues of one chunk prove
single        golden files of one test, for the pytest plugin
words         results in a line
"""

from __future__ import annotations

from .checker import check
from .result import GoldenCheck, GoldenElement, GoldenField, GoldenProblem, GoldenSpan, SaveFacts
from .writer import save

__all__ = [
    "GoldenCheck",
    "GoldenElement",
    "GoldenField",
    "GoldenProblem",
    "GoldenSpan",
    "SaveFacts",
    "check",
    "save",
]
