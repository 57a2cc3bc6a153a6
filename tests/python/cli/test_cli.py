"""The command line: statuses, the verdict's line, options, streams."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from commands import COMMAND, HANG, check_error, command, load_json, process

import twinrun
from twinrun import _core
from twinrun.cli import _VERBS, cli
from twinrun.cli.common import SIZE
from twinrun.cli.help import EXAMPLES, GROUPS
from twinrun.cli.manual import is_page
from twinrun.comparison import parallel


def each_command(
    verb: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """A verb, and all verbs below it, with their contexts."""
    yield verb, context
    if isinstance(verb, click.Group):
        for name in verb.list_commands(context):
            found = verb.get_command(context, name)
            if found is not None and not found.hidden:
                yield from each_command(found, click.Context(found, parent=context, info_name=name))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: a and same agree, different parts at step 20 in v[3, 7]."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(1)
    for name in ("a", "same", "different"):
        rng = np.random.default_rng(1)
        with twinrun.Run(folder / name, atol=1e-9) as run:
            for step in (10, 20, 30):
                x, v = rng.normal(size=3000), rng.normal(size=(40, 50))
                if name == "different" and step >= 20:
                    v[3, 7] += 6.5e-3 * step
                run.capture(step, {"x": x, "v": v, "id": np.arange(3000)})
    return folder


def test_the_same(runs: Path) -> None:
    done = process("compare", runs / "a", runs / "same")
    assert (done.status, done.err) == (0, "")
    assert done.last.startswith("same: 3 fields, 3 steps, 24000 elements")


def test_different(runs: Path) -> None:
    done = process("compare", runs / "a", runs / "different")
    assert (done.status, done.err) == (1, "")
    assert (
        done.last == "different: first at step 20, v[3, 7]: 1.293 against 1.423, |a-b| = 0.13 > 1e-09 (10%)"
    )


def test_incomparable(runs: Path) -> None:
    done = process("compare", runs / "a", runs / "nowhere")
    assert done.out == ""
    check_error(done, f"{runs / 'nowhere'}: no such file or folder; check the path")


def test_json_has_all_keys(runs: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert command("compare", runs / "a", runs / "different", "--json", report).status == 1
    d = load_json(report.read_text())
    first = d["first_divergence"]
    assert d["verdict"] == "different"
    assert set(first) == {"step", "rank", "field", "index", "a", "b", "abs_diff"}
    assert (first["step"], first["rank"], first["field"], first["index"]) == (20, 0, "v", [3, 7])
    assert first["abs_diff"] == abs(first["a"] - first["b"])
    assert set(d["stages"]) >= {"tree", "sketch", "elements"}
    for stage in d["stages"].values():
        assert set(stage) >= {"chunks_in", "chunks_out", "bytes_read", "seconds"}
    assert len(d["fields"]) == 9
    keys = {"step", "rank", "field", "elements", "different", "max_abs_diff", "max_abs_diff_is_bound"}
    assert all(set(f) >= keys for f in d["fields"])
    assert d["bytes_compared"] == 3 * (24000 + 16000 + 24000) and d["seconds"] > 0
    assert [(f["step"], f["field"]) for f in d["fields"] if f["different"]] == [(20, "v"), (30, "v")]
    assert command("compare", runs / "a", runs / "same", "--json", report).status == 0
    same = load_json(report.read_text())
    assert same["verdict"] == "same" and same["first_divergence"] is None
    assert sorted(os.listdir(tmp_path)) == ["report.json"]


def test_json_on_standard_output_is_alone_there(runs: Path) -> None:
    done = command("compare", runs / "a", runs / "different", "--json", "-")
    assert done.status == 1
    assert load_json(done.out)["verdict"] == "different"
    assert done.err.splitlines()[-1].startswith("different: ")


def test_json_of_special_values_is_strict(tmp_path: Path) -> None:
    a, b = np.zeros(3), np.zeros(3)
    a[:], b[:] = (np.nan, np.inf, 1), (1, -np.inf, 1)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    done = command("compare", tmp_path / "a.npy", tmp_path / "b.npy", "--json", "-")
    d = load_json(done.out)
    assert d["first_divergence"]["a"] == "nan" and d["first_divergence"]["abs_diff"] == "inf"
    assert d["fields"][0]["max_abs_diff"] == "inf" and d["fields"][0]["infinite"] == 2
    assert "nan against 1" in done.err.splitlines()[-1]


def test_quiet_and_verbose(runs: Path) -> None:
    for other, status in (("same", 0), ("different", 1)):
        quiet = command("compare", runs / "a", runs / other, "-q")
        assert (quiet.status, quiet.out, quiet.err) == (status, "", "")
        loud = command("compare", runs / "a", runs / other, "-v")
        assert "tree: " in loud.out and loud.status == status
        assert loud.last.startswith("same: " if status == 0 else "different: ")


def test_fields_and_steps(runs: Path) -> None:
    def chosen(*options: str) -> set:
        done = command("compare", runs / "a", runs / "different", "--json", "-", *options)
        return {(f["step"], f["field"]) for f in load_json(done.out)["fields"]}

    everything = {(s, f) for s in (10, 20, 30) for f in ("x", "v", "id")}
    assert chosen() == everything
    assert chosen("--field", "i*", "--field", "x") == {p for p in everything if p[1] != "v"}
    assert chosen("--steps", "10,30") == {p for p in everything if p[0] != 20}
    assert chosen("--steps", "15:") == {p for p in everything if p[0] >= 15}
    assert chosen("--steps", ":20", "--field", "[vx]") == {
        p for p in everything if p[0] <= 20 and p[1] != "id"
    }
    assert command("compare", runs / "a", runs / "different", "--steps", "10").status == 0
    assert command("compare", runs / "a", runs / "different", "--field", "x").status == 0
    for options in (
        ("--steps", "11"),
        ("--steps", "40:"),
        ("--field", "y"),
        ("--steps", "x"),
        ("--steps", ""),
    ):
        check_error(command("compare", runs / "a", runs / "same", *options))


def test_the_table_is_capped_and_the_json_is_not(tmp_path: Path) -> None:
    fields = {f"field{i:03}": np.zeros(8) for i in range(200)}
    np.savez(tmp_path / "a.npz", **fields)
    fields["field150"] = np.ones(8)
    np.savez(tmp_path / "b.npz", **fields)
    done = command("compare", tmp_path / "a.npz", tmp_path / "b.npz", "--json", tmp_path / "r.json")
    assert len(done.out.splitlines()) < 60
    assert (
        "field150" in done.out and "… and 160 more fields, within the tolerance: --json has all" in done.out
    )
    assert done.last.startswith("different: first at field150[0]")
    assert len(load_json((tmp_path / "r.json").read_text())["fields"]) == 200


def test_progress_only_on_a_terminal(runs: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "compare", runs / "a", runs / "same"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=HANG,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(theirs)
        shown = os.read(ours, 65536)
    finally:
        os.close(ours)
    assert done.returncode == 0
    assert b"\x1b[" in shown and b"\x1b[" not in done.stdout
    assert process("compare", runs / "a", runs / "same", env=os.environ | {"TERM": "xterm"}).err == ""


def test_wrong_options_are_one_line(runs: Path, tmp_path: Path) -> None:
    a, b = runs / "a", runs / "same"
    raw = tmp_path / "x.dat"
    raw.write_bytes(bytes(64))
    for arguments in (
        ("compare",),
        ("compare", a),
        ("frobnicate",),
        ("compare", a, b, "--atol", "nan"),
        ("compare", a, b, "--atol", "-1"),
        ("compare", a, b, "--rtol", "inf"),
        ("compare", a, b, "--atol", "wide"),
        ("compare", a, b, "--memory", "-1"),
        ("compare", a, b, "--memory", "1e30"),
        ("compare", a, b, "--memory", "much"),
        ("compare", a, b, "--memory", "nan"),
        ("compare", a, b, "--threads", "-1"),
        ("compare", a, b, "--threads", "99999999999"),
        ("compare", a, b, "--method", "magic"),
        ("compare", a, b, "--io", "floppy"),
        ("compare", raw, raw, "--shape", "8"),
        ("compare", raw, raw),
        ("compare", raw, raw, "--dtype", "f65"),
        ("compare", raw, raw, "--dtype", "f64", "--shape", "3x"),
        ("compare", raw, raw, "--dtype", "f64", "--shape", "9"),
        ("compare", raw, raw, "--dtype", "f64", "--offset", "65"),
        ("compare", raw, raw, "--format", "parchment"),
        ("index", raw, "--dtype", "f64", "--chunk", "5000"),
        ("index", raw, "--dtype", "f64", "--chunk", "5G"),
        ("index", raw, "--dtype", "f64", "--atol", "-1"),
        ("index", raw, "--dtype", "f64", "--residue-bits", "3"),
        ("show",),
        ("show", a, "--step", "11"),
        ("log", tmp_path),
        ("verify",),
        ("verify", tmp_path),
    ):
        check_error(command(*arguments))
    assert os.listdir(tmp_path) == ["x.dat"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("7", 7),
        ("4096", 4096),
        ("4K", 4096),
        ("1.5k", 1536),
        ("2MiB", 2 << 20),
        ("1g", 1 << 30),
        ("3 GB", 3 << 30),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["1_0", "1_0M", "1_0.5k"])
def test_no_size_takes_what_only_python_reads(text: str) -> None:
    with pytest.raises(click.UsageError, match="is not a size"):
        SIZE.convert(text, None, None)


@pytest.mark.parametrize("text", ["1_0", "\u0665"])
@pytest.mark.parametrize(
    "line",
    ["compare a b --atol", "compare a b --threads", "compare a b --ulp", "golden save a -o g --rtol",
     "tolerances a b --margin", "restore a b --step", "ensemble plan a --blocks"],
)  # fmt: skip
def test_numbers_as_python_writes_them_are_none(line: str, text: str) -> None:
    found = command(*line.split(), text)
    assert found.status == 2 and f"{text!r} is no number" in found.err, found.err


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1_0"])
def test_no_range_takes_what_is_no_finite_number(text: str) -> None:
    tried = 0
    for verb, context in each_command(cli, click.Context(cli, info_name="twinrun", **cli.context_settings)):
        for option in verb.params:
            if isinstance(option.type, click.FloatRange):
                with pytest.raises(click.BadParameter):
                    option.type.convert(text, option, context)
                tried += 1
    assert tried >= 5


ALL = list(each_command(cli, click.Context(cli, info_name="twinrun", **cli.context_settings)))


@pytest.mark.parametrize(("verb", "context"), ALL, ids=[c.command_path for _, c in ALL])
def test_help(verb: click.Command, context: click.Context) -> None:
    """Every verb says what it does, each option with its help, an example where it has one, and exit statuses."""
    words = context.command_path.split()[1:]
    done = command(*words, "--help")
    assert done.status == 0 and f"Usage: twinrun {' '.join(words)}" in done.out and done.err == ""
    assert command("help", *words).out == done.out
    assert max(map(len, done.out.splitlines())) <= 80
    if words:
        assert "\nExit status:\n" in done.out
    for option in verb.params:
        if isinstance(option, click.Option) and not option.hidden and words[:1] != ["ensemble"]:
            assert option.opts[-1] in done.out and option.help, option.opts
    for line, _ in EXAMPLES.get(" ".join(words), []):
        assert f"  {line}\n" in done.out


@pytest.mark.parametrize("words", [w for w in EXAMPLES if w not in ("ensemble",)])
def test_examples_are_of_options_that_exist(words: str) -> None:
    for line, _ in EXAMPLES[words]:
        found = shlex.split(line.partition(">")[0].removeprefix('eval "$(').removesuffix(')"'))
        assert found[0] == "twinrun"
        # A command keeps the help option of the first context that it sees: this one is as users' are.
        verb, rest = cli, found[1:]
        context = click.Context(cli, info_name="twinrun", **cli.context_settings)
        while isinstance(verb, click.Group) and "--" not in rest[:1]:
            context = click.Context(verb, parent=context)
            verb, rest = verb.get_command(context, rest[0]), rest[1:]
            assert verb is not None, line
        if verb.name != "ensemble":
            verb.make_context(verb.name, rest, parent=context)


def test_no_verb_at_all() -> None:
    """Who types `twinrun` asks what it is: the answer is that of `--help`, with its stream and status."""
    done = process()
    assert (done.status, done.err) == (0, "") and done.out == command("--help").out == command().out
    for group in GROUPS:
        assert f"\n{group}:\n" in done.out
    assert "twinrun compare run1/ run2/ --atol 1e-6" in done.out


def test_an_unknown_verb_names_near_ones() -> None:
    assert "there is no verb 'comapre'; did you mean compare?" in check_error(command("comapre", "a", "b"))
    check_error(command("frobnicate"), "there is no verb 'frobnicate'; verbs: twinrun --help")
    check_error(command("help", "golden", "chek"), "there is no verb 'golden chek'")
    check_error(command("compare", "a"), "Missing argument 'RUN_B'. (see: twinrun compare --help)")
    check_error(command("golden", "save", "a"), "(see: twinrun golden save --help)")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, tmp_path: Path) -> None:
    script = command("completion", shell).out
    assert "_TWINRUN_COMPLETE" in script
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([program, "-n", tmp_path / "script"], check=True, timeout=HANG)
    environment = os.environ | {
        "_TWINRUN_COMPLETE": "bash_complete",
        "COMP_WORDS": "twinrun gol",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.stdout == "plain,golden\n"


@pytest.mark.parametrize("what", ["text", "changed", "empty", "link", "folder"])
def test_manual_replaces_only_its_own_pages(tmp_path: Path, what: str) -> None:
    assert command("manual", tmp_path).status == 0
    assert command("manual", tmp_path).status == 0  # its own
    page = tmp_path / "twinrun-show.1"
    if what == "changed":
        page.write_bytes(b"mine\n" + page.read_bytes())
    elif what in ("text", "empty"):
        page.write_bytes(b"mine\n" if what == "text" else b"")
    else:
        page.unlink()
        (tmp_path / "mine").write_bytes((tmp_path / "twinrun.1").read_bytes())
        page.symlink_to(tmp_path / "mine") if what == "link" else page.mkdir()
    (tmp_path / "twinrun.1").unlink()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    done = command("manual", tmp_path)
    assert done.status == 2 and "twinrun-show.1" in done.err and "nothing was written" in done.err
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    assert not (tmp_path / "twinrun.1").exists()


def test_the_build_writes_the_manual_pages_that_wheels_have(tmp_path: Path) -> None:
    """From the sources of Python and a module that lies elsewhere, with click and nothing else."""
    script = Path(__file__).parents[3] / "python" / "bindings" / "manual.py"
    (tmp_path / "built").mkdir()
    module = Path(_core.__file__)
    (tmp_path / "built" / module.name).symlink_to(module)
    (tmp_path / "nothing").mkdir()
    for package in ("numpy", "rich", "msgspec", "jinja2"):
        (tmp_path / "nothing" / f"{package}.py").write_text(
            "raise ImportError('is no requirement of the build')"
        )
    done = subprocess.run(
        [sys.executable, "-B", script, script.parents[1], tmp_path / "built", tmp_path / "man1"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "nothing")},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0 and done.stderr == "", done
    assert command("manual", tmp_path / "again").status == 0
    found, expected = ({p.name: p.read_text() for p in (tmp_path / n).iterdir()} for n in ("man1", "again"))
    assert found == expected


def test_manual_pages(tmp_path: Path) -> None:
    """One for each verb; man, where it is there, warns of none."""
    (tmp_path / "man1").mkdir()
    (tmp_path / "man1" / "other.1").write_text("stays")
    done = command("manual", tmp_path / "man1")
    assert done.status == 0
    pages = {p.name: p.read_text() for p in (tmp_path / "man1").iterdir() if p.name != "other.1"}
    assert set(pages) == {c.command_path.replace(" ", "-") + ".1" for _, c in ALL} and len(pages) > 25
    for name, text in pages.items():
        title = name.removesuffix(".1").upper().replace("-", "\\-")
        assert text.startswith(f'.TH "{title}" 1 ') and "\n.SH NAME\n" in text
        # A line that begins with a dot is a macro that man(7) has.
        assert is_page(text.encode()) and not is_page(text.encode() + b"mine\n")
        macros = {line.split()[0] for line in text.splitlines()[:-1] if line[:1] == "."}
        assert macros <= {".TH", ".SH", ".B", ".BR", ".PP", ".TP", ".nf", ".fi", ".RS", ".RE", ".br"}, (
            name,
            macros,
        )
    assert "\\-\\-atol X" in pages["twinrun-compare.1"]
    ensemble = pages["twinrun-ensemble.1"]  # what it does without a verb has options too
    assert "[OPTIONS] \\-\\- COMMAND [\\-\\-vs COMMAND]..." in ensemble and "\\-\\-warmup N" in ensemble
    assert "\n.SH FOR EXPERTS\n" in pages["twinrun-compare.1"]
    if man := shutil.which("groff"):
        for name in pages:
            said = subprocess.run(
                [man, "-Kutf8", "-man", "-ww", "-z", tmp_path / "man1" / name],
                capture_output=True,
                text=True,
                timeout=HANG,
            )
            assert said.stderr == ""


def test_each_help_ends_alike() -> None:
    """The option for help is the last of the first group; numbers and their limits have one letter; exit
    statuses are said once; every verb has an example.
    """
    for found, ctx in ALL:
        if ctx.parent is None:
            continue
        text = found.get_help(ctx)
        options = text.split("\n\nOptions", 1)[1].split("\n\n")[0]
        last = [line for line in options.splitlines() if re.match(r"  -", line)][-1]
        assert last.startswith("  -h, --help"), (ctx.command_path, options)
        assert not re.search(r"\b(INTEGER|FLOAT)\b|1000000000", text), (ctx.command_path, text)
        assert len(re.findall(r"(?i)exit\s+status:", text)) == 1, ctx.command_path
        assert not re.search(r"^  -- ", text, re.MULTILINE), ctx.command_path
    for name in _VERBS:
        assert EXAMPLES.get(name), name
    said = command("demo", "--help").out
    assert "What is looked at" not in said and "  --steps N  " in said


def test_the_list_of_verbs_has_each() -> None:
    """It is kept beside them: a list of verbs loads none. No line is cut or wrapped at 80 columns."""
    listed = {
        name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))
    }
    assert len(listed) == len(set(_VERBS)) == sum(map(len, GROUPS.values()))
    for name, verb in listed.items():
        assert verb is not None and verb.name == name
        assert verb.help and len(_VERBS[name]) <= 64 and _VERBS[name].endswith((".", "?"))
    assert cli.get_command(click.Context(cli), "common") is None


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_what_needs_no_verb_loads_none(option: str) -> None:
    """Nor numpy, nor rich: most of the time of a short command."""
    program = (
        "import sys; from twinrun.cli import main\n"
        f"try: main(['{option}'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    loaded = set(done.stderr.split())
    assert "twinrun.cli" in loaded and not loaded & {
        "numpy",
        "rich",
        "twinrun.comparison",
        "twinrun.cli.compare",
    }


def test_the_option_mpi_has_the_modes_of_the_comparison() -> None:
    assert f"[{'|'.join(parallel.MODES)}]" in command("compare", "--help").out


def test_version() -> None:
    done = command("--version")
    assert (done.status, done.out) == (0, f"twinrun, version {twinrun.__version__}\n")


def test_closed_and_full_output(runs: Path) -> None:
    """A report that could not be written is neither 0 nor 1, and Python adds nothing of its own."""
    for arguments in (
        ("compare", runs / "a", runs / "same"),
        ("compare", runs / "a", runs / "different", "--json", "-"),
        ("log", runs / "a", "--json"),
    ):
        reading, writing = os.pipe()
        os.close(reading)
        for to, said in (
            (writing, "standard output was closed"),
            (os.open("/dev/full", os.O_WRONLY), "No space left"),
        ):
            done = subprocess.run(
                [*COMMAND, *arguments], stdout=to, stderr=subprocess.PIPE, text=True, timeout=HANG
            )
            os.close(to)
            assert done.returncode == 2
            assert done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


def test_a_terminal_without_the_signs(runs: Path) -> None:
    done = process("compare", runs / "a", runs / "different", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.status, done.err) == (1, "")
    assert done.last.startswith("different: first at step 20")


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    """Names come from files: line ends and terminal escapes in them are shown as escapes."""
    name = "x\nsame: 1 field\x1b[2J"
    for run, value in (("a", 0.0), ("b", 1.0)):
        with twinrun.Run(tmp_path / run, atol=0.1) as history:
            history.capture(1, {name: np.full(5, value)})
    done = command("compare", tmp_path / "a", tmp_path / "b")
    assert done.status == 1 and done.last.startswith(
        "different: first at step 1, x\\nsame: 1 field\\x1b[2J[0]"
    )
    assert "\x1b" not in done.out
    shown = command("show", tmp_path / "a")
    assert shown.status == 0 and "\x1b" not in shown.out and "\nsame" not in shown.out


def test_defects_are_never_taken_for_a_verdict(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object, **__: object) -> None:
        raise ValueError("some\ndefect")

    monkeypatch.setattr("twinrun.comparison.work.compare", defect)
    done = command("compare", runs / "a", runs / "same")
    assert done.status == 2 and done.err.count("\n") == 1
    assert "a defect of twinrun: ValueError: some\\ndefect; please report it" in done.err


def test_show_and_log(runs: Path) -> None:
    shown = command("show", runs / "a", "--step", "20")
    assert shown.status == 0 and "step 20, rank 0 (3 in all)" in shown.out
    assert "40x50" in shown.out and "1e-09, 4 bits" in shown.out and "exact" in shown.out
    listed = command("log", runs / "a")
    assert listed.status == 0 and listed.last.startswith("3 steps, ")
    d = load_json(command("log", runs / "a", "--json").out)
    assert [s["step"] for s in d["steps"]] == [10, 20, 30] and d["atol"] == 1e-9
    assert "kernels: " in command("show", "--system").out
    metadata = runs / "a" / "step-0000000010" / "rank-00000.twm"
    assert "40x50" in command("show", metadata).out


def test_json_of_every_verb_is_a_file(runs: Path, tmp_path: Path) -> None:
    """--json takes FILE, and - for standard output; without FILE, as verbs that took none had it, it prints."""
    report = tmp_path / "report.json"
    for verb, words in (("log", [runs / "a"]), ("pack", [runs / "a", tmp_path / "record"])):
        printed = []
        for number, form in enumerate(
            [[*words, "--json"], [*words, "--json", "-"], ["--json", *words], ["--json=-", *words]]
        ):
            if verb == "pack":
                form = [tmp_path / f"record{number}" if w == words[-1] else w for w in form]
            done = command(verb, *form)
            assert done.status == 0, done.err
            printed.append(done.out)
        assert len(set(printed)) == 1 and printed[0].startswith("{")
        done = command(verb, *words, "--json", report)
        assert done.status == 0 and report.read_text() == printed[0]
        assert "3 steps" in done.out and "{" not in done.out
        check_error(
            command(verb, "--json"), f"Missing argument '{'RUN' if verb == 'log' else 'SOURCE'}'. (see: "
        )
        check_error(
            command(verb, *words, "--json", runs / "a" / "manifest.jsonl"), "--json must not replace it"
        )
        assert "--json [FILE]" in command(verb, "--help").out
    # What was packed before an error is in the file: a report of an earlier run would look like one of this.
    check_error(command("pack", *words, "--json", report), "holds a history already")
    assert report.read_text() == ""


def test_the_largest_difference_may_come_from_the_metadata_alone(runs: Path) -> None:
    """A wider tolerance than captured: nothing differs, and the table says that the maximum is a bound."""
    done = command("compare", runs / "a", runs / "different", "--atol", "1")
    assert done.status == 0 and "≤ " in done.out


def test_options_of_a_format_reach_it(tmp_path: Path) -> None:
    data = tmp_path / "x.bin"
    data.write_bytes(np.arange(6.0).tobytes())
    described = ("--format", "raw", "--format-option", "dtype=f64", "--format-option", "shape=2x3")
    assert command("compare", data, data, *described).status == 0
    assert "2x3" in command("show", data, *described).out
    refused = command("compare", data, data, "--format-option", "dtype")
    assert refused.status == 2 and "NAME=VALUE" in refused.err
    unknown = command("compare", data, data, *described, "--format-option", "colour=red")
    assert unknown.status == 2 and "colour" in unknown.err


def test_standard_output_may_be_a_stream_of_the_caller() -> None:
    """One that knows nothing of encodings, as that of a program that calls `main`."""
    program = "import io, sys; from twinrun.cli import main; sys.stdout = io.StringIO(); main(['--version'])"
    outcome = process(python=("-c", program))
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
