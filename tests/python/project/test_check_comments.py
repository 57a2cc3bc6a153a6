"""The check of comments finds what it is for, and nothing in this tree."""

import check_comments
import pytest

LONG = "word " * 21  # with the mark, more than 100 columns


def found(suffix, text):
    return [
        number
        for number, _ in {".py": check_comments.check_python}.get(suffix, check_comments.check_cpp)(text)
    ]


def test_this_tree_is_in_order():
    wrong = [(path, *problem) for path in check_comments.files() for problem in check_comments.problems(path)]
    assert wrong == []


def test_all_rooms_are_read():
    names = {path.relative_to(check_comments.ROOT).as_posix() for path in check_comments.files()}
    assert {
        "include/twinrun/twinrun.h",
        "src/core/history/history.hpp",
        "src/core/digest/digest_cuda.cu",
        "src/core/digest/digest_kernel.cuh",
        "src/interpose/calls.inc",
        "python/twinrun/errors.py",
    } <= names


@pytest.mark.parametrize(
    ("suffix", "text", "lines"),
    [
        (".cpp", f"int a;\n// {LONG}\n", [2]),
        (".cpp", f"int a;\n    // {LONG}\nint b;\n// {LONG}\n", [2, 4]),
        (".h", f"/* {LONG}*/\nint a;\n", [1]),
        (".h", f"/* short\n * {LONG}\n */\n", [2]),
        (".py", f"a = 1\n# {LONG}\n", [2]),
        (".py", f'def f():\n    """One line.\n\n    {LONG}and more words\n    """\n', [4]),
    ],
)
def test_long_comments_are_found(suffix, text, lines):
    assert found(suffix, text) == lines


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".cpp", f'const char* a = "// {LONG}";\n'),
        (".cpp", f'const char* a = R"(\n// {LONG}\n)";\nint b;\n'),
        (".cpp", "// https://example.org/" + "x" * 100 + "\n"),
        (".cpp", "int a = 0;  // " + "w " * 50 + "\n"),  # behind its statement, which it leaves whole
        (".py", f'TEXT = """\n# {LONG}\n"""\n'),
        (".py", "# https://example.org/" + "x" * 100 + "\n"),
    ],
)
def test_what_is_no_long_comment_passes(suffix, text):
    assert found(suffix, text) == []


@pytest.mark.parametrize(
    ("suffix", "text", "line"),
    [
        (".hpp", "    std::uint64_t not_at =\n        0;  // all bits turned\n", 2),
        (".hpp", "std::vector<std::size_t>\n    own;  // number among the ranks\n", 2),
        (".hpp", "int f(int a,\n      int b);  // what it is for\n", 2),
        (".hpp", "void* find(\n    const char* name);  // the next one\n", 2),
        (".cpp", "if (a)\n    continue;  // as before\n", 2),
        (
            ".cpp",
            "constexpr std::size_t kBytes = 2\n                               << 20;  // of a page\n",
            2,
        ),
        (".py", "a = (\n    1\n    + b  # why\n)\n", None),
        (".py", "a = f(\n    b  # why\n)\n", 2),
    ],
)
def test_torn_statements_are_found(suffix, text, line):
    assert found(suffix, text) == ([] if line is None else [line])


@pytest.mark.parametrize(
    "text",
    [
        "int a = 0;  // first\nint b = 0;  // second\n",
        "enum class Kind {\n    one,  // first\n    two,  // second\n};\n",
        "switch (a) {\n    case 1: return b;  // first\n    default: return c;  // others\n}\n",
        "class A {\n   public:\n    int b;  // of it\n};\n",
        "template <class T>\nT f();  // of any\n",
        "#define A 1\nint b;  // of it\n",
        # Too long for one line without the comment too.
        "int f(const std::vector<std::uint64_t>& first_argument, const std::vector<std::uint64_t>& the_second_one,\n"
        "      int b);  // what it is for\n",
    ],
)
def test_whole_statements_pass(text):
    assert found(".cpp", text) == []


def test_program_names_places(tmp_path, capsys):
    path = tmp_path / "a.cpp"
    path.write_text(f"int a;\n// {LONG}\n", encoding="utf-8")
    assert check_comments.main([str(path)]) == 1
    assert ":2: the comment has" in capsys.readouterr().out
    path.write_text("int a;\n", encoding="utf-8")
    assert check_comments.main([str(path)]) == 0
