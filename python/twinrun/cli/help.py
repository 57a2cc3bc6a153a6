"""Help of every verb: its options in groups, those of beginners first, then examples and exit statuses.

`twinrun VERB --help`, `twinrun` alone and the manual pages (`manual.py`) come from the same
commands and from what stands here.
"""

from __future__ import annotations

import re

import click

__all__ = [
    "EXAMPLES",
    "GROUPS",
    "QUICK",
    "STATUSES",
    "Group",
    "Verb",
    "examples_of",
    "options_of",
    "statuses_of",
    "write_overview",
]

QUICK = "measure"  # the name of twinrun ensemble without a verb, which nobody types
# What a new user looks for, and the verbs that do it. No line is longer than 80 columns take.
GROUPS: dict[str, dict[str, str]] = {
    "Compare": {
        "compare": "Do two runs agree? Where do they first differ, by how much?",
        "tolerances": "Propose tolerances from the spread of repeated runs.",
        "accept": "Do new runs belong to the distribution of reference runs?",
        "perturb": "Write perturbed copies of inputs, for reference runs.",
        "index": "Build metadata beside files: comparing reads a few percent.",
        "show": "Show fields of a run or file, or what this machine offers.",
    },
    "Capture": {
        "log": "List the steps that a run captured.",
        "verify": "Check every checksum of captured or indexed files.",
        "flush": "Bring steps that a dead node left to their history.",
    },
    "Keep": {
        "pack": "Keep every step of a run at a fraction of its size.",
        "restore": "Write steps of a record back as files, every byte checked.",
        "compact": "Remove steps of a record.",
    },
    "CI": {
        "golden": "Keep digests of a run, and compare later runs with them.",
    },
    "Time": {
        "ensemble": "Is the time of runs reproducible? Which command is faster?",
        "interpose": "Count and time a program's calls of MPI, POSIX and stdio.",
        "noise": "Measure the time that the operating system takes from cores.",
    },
    "More": {
        "demo": "Run a simulation twice, and show where the runs differ.",
        "aggregate": "Plan and study how many ranks write few files; join files.",
        "completion": "Print what completes twinrun's words in bash, zsh or fish.",
        "manual": "Write the manual pages (man twinrun-compare) to a folder.",
        "help": "Show the help of a verb.",
    },
}

# By the words of a command: a line, and what it does.
EXAMPLES: dict[str, list[tuple[str, str]]] = {
    "": [
        ("twinrun compare run1/ run2/ --atol 1e-6", "two folders of files, of any common format"),
        ("twinrun golden save run1 -o golden/run --atol 1e-6", "a golden file of a few percent, for CI"),
        ("twinrun ensemble -- ./a --vs ./b", "which is faster, and how sure that is"),
    ],
    "compare": [
        ("twinrun compare a.npy b.npy --atol 1e-6", "two files"),
        ("twinrun compare run1/ run2/ --atol 1e-6 --html report.html", "two folders, and a page to look at"),
        ("twinrun compare run1/ run2/ --field 'velocity*' --steps 100:200", "a part of them"),
        ("twinrun compare a.dump b.dump --key id --period 10.77", "particles by ID, in a periodic box"),
        ("twinrun compare runs/a --replicas", "data-parallel ranks of one trace of a training"),
    ],
    "tolerances": [
        ("twinrun tolerances run1 run2 run3 -o tolerances.toml", "rules by field"),
        ("twinrun compare run1 run4 --tolerances tolerances.toml", "what they are for"),
    ],
    "accept": [
        ("twinrun accept reference/* --new port/*", "another compiler, library, machine or precision"),
    ],
    "perturb": [
        ("twinrun perturb input.nml --match 'temperature = (\\S+)' --members 20 -o inputs", "one ULP each"),
        ("twinrun perturb state.npz --relative 1e-14 --members 20 -o inputs", "arrays"),
    ],
    "index": [
        ("twinrun index run1/ run2/ --atol 1e-6", "once"),
        ("twinrun compare run1/ run2/", "from then on: reads the metadata, and data only where it must"),
    ],
    "show": [
        ("twinrun show run1", "the fields of the first step, and the conditions of the run"),
        ("twinrun show --system", "instruction sets, io_uring and cores of this machine"),
    ],
    "log": [("twinrun log runs/a", "")],
    "verify": [("twinrun verify runs/a runs/b", "")],
    "flush": [("twinrun flush /local/scratch/run --to runs/a", "")],
    "pack": [
        ("twinrun pack runs/a records/a", "a captured run, or a folder of any program's files"),
        ("twinrun pack runs/b records/b --against records/a", "only what differs from another run's record"),
    ],
    "restore": [
        ("twinrun restore records/a back --step 40", "one step, bit for bit"),
        ("twinrun restore records/a back --step 40 --flat", "other programs' files: without a folder step-40"),
    ],
    "compact": [("twinrun compact records/a --keep-last 10", "")],
    "golden": [
        ("twinrun golden save run1 -o golden/run --atol 1e-6", "once; then commit golden/run"),
        ("twinrun golden check golden/run run2", "in every build"),
    ],
    "golden save": [("twinrun golden save run1 -o golden/run --atol 1e-6", "")],
    "golden check": [
        ("twinrun golden check golden/run run2", ""),
        ("twinrun golden check golden/run run2 --junit report.xml --github", "on GitHub"),
    ],
    "interpose": [("twinrun interpose -- mpirun -n 4 ./code", "")],
    "noise": [("twinrun noise --seconds 60", "")],
    "demo": [("twinrun demo", "into the folder twinrun-demo"), ("twinrun demo --deterministic", "two equal runs"),
             ("twinrun demo --pytorch", "a training; needs PyTorch"), ("twinrun demo --lammps", "a melt; needs LAMMPS")],
    "completion": [
        ('eval "$(twinrun completion bash)"', "for this shell; in ~/.bashrc for all later ones"),
        ("twinrun completion fish > ~/.config/fish/completions/twinrun.fish", "fish"),
    ],
    "ensemble": [
        ("twinrun ensemble -- './code --old' --vs './code --new'", "which is faster, and how sure that is"),
        ("twinrun ensemble -L threads 1,2,4 -- './code -t {threads}'", "the same command with other values"),
        ("twinrun ensemble run study.toml", "a study of many conditions; init writes its file"),
    ],
    "ensemble init": [("twinrun ensemble init -o study.toml -- './code --old' --vs './code --new'", "")],
    "ensemble plan": [("twinrun ensemble plan study.toml", "")],
    "ensemble run": [
        ("twinrun ensemble run study.toml", "into the folder study"),
        ("twinrun ensemble report study", "what it shows"),
    ],
    "ensemble status": [("twinrun ensemble status study.toml", "")],
    "ensemble report": [
        ("twinrun ensemble report study --html study.html", "a study that ran"),
        ("twinrun ensemble report times.csv", "measurements of another program"),
    ],
    "aggregate": [
        ("twinrun aggregate plan --topology dragonfly:8x16x4 --ranks-per-node 8", "who would write for whom"),
        ("twinrun aggregate join out/checkpoint", "one file of the sub-files out/checkpoint.00000, ..."),
    ],
    "aggregate plan": [
        ("twinrun aggregate plan --topology dragonfly:8x16x4 --ranks-per-node 8", "a machine by its parameters"),
        ("twinrun aggregate plan --topology hwloc --html plan.html", "this machine, and a page"),
    ],
    "aggregate join": [("twinrun aggregate join out/checkpoint -o checkpoint.bin", "")],
    "help": [("twinrun help compare", "")],
    "manual": [("twinrun manual ~/.local/share/man/man1", "then: man twinrun-compare")],
}  # fmt: skip

_DONE = [("0", "done"), ("2", "failed; one line on standard error says why")]
STATUSES: dict[str, list[tuple[str, str]]] = {
    "compare": [
        ("0", "the same"),
        ("1", "different"),
        ("2", "something could not be compared, or an error; one line on standard error says why"),
        ("125", "in place of 2, with --bisect: git bisect skips the commit"),
    ],
    "accept": [
        ("0", "accepted"),
        ("1", "rejected"),
        ("2", "undecided, or an error; one line on standard error says why"),
    ],
    "verify": [("0", "all is unchanged"), ("1", "something is damaged"), ("2", "the check failed")],
    "golden": [
        ("0", "done; of check: the same"),
        ("1", "of check: different, or undecided"),
        ("2", "something could not be compared, or an error; one line on standard error says why"),
    ],
    "demo": [
        ("0", "the demonstration ran, whatever the verdict"),
        ("2", "it failed; one line on standard error says why"),
    ],
    "ensemble report": [
        ("0", "done; with --exit-status: the time is reproducible"),
        ("1", "with --exit-status: it is not"),
        ("2", "failed, or with --exit-status: undecided"),
    ],
    "flush": [("0", "all steps are in the history"), ("2", "not all; one line on standard error says why")],
    "golden check": [("0", "the same"), ("1", "different, or undecided"), ("2", "something could not be compared")],
    "interpose": [("N", "that of the command; 128 + N where signal N ended it")],
}  # fmt: skip

# Options that most users never need, by their names in Python, of every verb.
_EXPERTS = frozenset(
    """method no_metadata cache io memory threads device mpi residue_bits chunk digest table verify_hashes level
    forget_missing nan_differs""".split()
)
# Options of files without a description of their content.
_FILES = frozenset("format_name dtype shape offset format_option".split())
_REPORTS = frozenset(
    """json_file picture html_file html junit github list_differences listing most_listed verbose quiet bisect
    export_json export_csv export_markdown""".split()
)
_SELECTION = frozenset(
    "fields steps ranks common replicas leave_out ignore_attributes key align ids".split()
)  # what is looked at


def _title(option: click.Parameter) -> str:
    name = option.name or ""
    if name in ("steps", "ranks") and isinstance(option.type, click.IntRange):  # how many, not which
        return "Options"
    for title, names in (("Reports", _REPORTS), ("What is looked at", _SELECTION), ("Raw and unusual files", _FILES), ("For experts", _EXPERTS)):  # fmt: skip
        if name in names:
            return title
    return "Options"


_ORDER = ("Options", "What is looked at", "Reports", "Raw and unusual files", "For experts")


# What click says of numbers, and what stands for one in usage and limits.
_NUMBERS = {"INTEGER RANGE": "N", "FLOAT RANGE": "X", "INTEGER": "N", "FLOAT": "X"}
_LIMITS = re.compile(r"\[[^\[\]]*\]$")


def _worded(forms: str, said: str) -> tuple[str, str]:
    """An option's forms and help, with a letter for a number, and the same letter in its limits.

    '--threads INTEGER RANGE', '… [default: 0; 0<=x<=4096]' is '--threads N', '… [default: 0; 0<=N<=4096]'.
    """
    named = next((words for words in _NUMBERS if forms.endswith(f" {words}")), None)
    if named is not None:
        forms = forms.removesuffix(named) + _NUMBERS[named]
    letter = forms.split()[-1]
    if len(letter) == 1 and (limits := _LIMITS.search(said)):
        said = said[: limits.start()] + re.sub(r"(?<![\w.])x(?!\w)", letter, limits[0])
    return forms, said.replace("1000000000.0", "1e9").replace('[default: ""]', "").rstrip()


def options_of(
    command: click.Command, ctx: click.Context, grouped: bool = True
) -> list[tuple[str, list[tuple[str, str]]]]:
    """The options in groups, beginners' first: titles, and of each option its forms and its help.

    A group of verbs that does something without one has the options of that. grouped: False puts
    all into one group, in the order in which they are declared.
    """
    if isinstance(command, click.Group) and (quick := command.get_command(ctx, QUICK)) is not None:
        command = quick
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _ORDER}
    helps: list[tuple[str, str]] = []
    for option in command.get_params(ctx):
        if isinstance(option, click.Argument):  # the description says what they are
            continue
        if (record := option.get_help_record(ctx)) is not None:
            title = _title(option) if grouped else "Options"
            (helps if "--help" in option.opts else groups[title]).append(_worded(*record))
    if sum(map(len, groups.values())) < 8:  # few: groups would only spread them
        return [("Options", [record for records in groups.values() for record in records] + helps)]
    groups["Options"] += helps
    return [(title, records) for title, records in groups.items() if records]


def _words(ctx: click.Context) -> str:
    return " ".join(ctx.command_path.split()[1:])


def examples_of(ctx: click.Context) -> list[tuple[str, str]]:
    """Lines, and what each does."""
    return EXAMPLES.get(_words(ctx), [])


def statuses_of(ctx: click.Context) -> list[tuple[str, str]]:
    """Exit statuses, and what each means."""
    return STATUSES.get(_words(ctx), _DONE)


def _write_end(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    if examples := examples_of(ctx):
        with formatter.section("Examples"):
            for line, said in examples:
                _write_example(formatter, line, said)
    with formatter.section("Exit status"):
        formatter.write_dl(statuses_of(ctx))


def _write_example(formatter: click.HelpFormatter, line: str, said: str) -> None:
    """Lines to be copied are never broken: what they do goes above them."""
    indent = " " * formatter.current_indent
    if said:
        formatter.write(f"{indent}# {said}\n")
    formatter.write(f"{indent}{line}\n")


_NUMBER_TYPES = (type(click.INT), type(click.FLOAT))


class Verb(click.Command):
    """A verb, whose help has groups of options, examples and exit statuses."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=[*args])
        for param in self.get_params(ctx):
            if not isinstance(param.type, _NUMBER_TYPES):
                continue
            values = given.get(param.name)
            for text in values if isinstance(values, (list, tuple)) else [values]:
                # Python takes 1_0 for 10, and digits of any script.
                if isinstance(text, str) and ("_" in text or not text.isascii()):
                    raise click.BadParameter(f"{text!r} is no number.", ctx=ctx, param=param)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, records in options_of(self, ctx):
            with formatter.section(title):
                formatter.write_dl(records)
        _write_end(ctx, formatter)


class Group(click.Group):
    """A verb that has verbs of its own."""

    command_class = Verb
    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(1000)))  # wrapped, not cut
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_end(ctx, formatter)


def write_overview(
    ctx: click.Context, formatter: click.HelpFormatter, groups: dict[str, dict[str, str]]
) -> None:
    """The verbs in groups, and examples: what `twinrun` alone prints."""
    width = max(len(name) for verbs in groups.values() for name in verbs)
    for title, verbs in groups.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), said) for name, said in verbs.items()])
    with formatter.section("Options"):
        formatter.write_dl(
            [r for p in ctx.command.get_params(ctx) if (r := p.get_help_record(ctx)) is not None]
        )
    with formatter.section("Examples"):
        for line, said in EXAMPLES[""]:
            _write_example(formatter, line, said)
    formatter.write_paragraph()
    formatter.write_text("twinrun VERB --help has the options of a verb.")
