"""What is given as a URL is shown without its secrets, by every verb, whatever happens."""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import Outcome, command
from object_server import ObjectServer, serving

import twinrun
from twinrun import TwinrunError, golden
from twinrun.remote import objects

pytest.importorskip("fsspec", reason="objects of stores need fsspec: pip install 'twinrun[remote]'")
pytest.importorskip("aiohttp", reason="objects of web servers need aiohttp: pip install 'twinrun[remote]'")

WORD = "hidden"


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    x = np.arange(1000.0)
    with serving({"a.npy": npy(x), "b.npy": npy(x + 1)}) as found:
        found.asks_password = f"me:{WORD}"
        yield found


def with_secrets(server: ObjectServer, name: str, scheme: str = "http") -> str:
    host = server.url.removeprefix("http://")
    return f"{scheme}://me:{WORD}@{host}/{name}?X-Amz-Signature={WORD}#{WORD}"


def check(done: Outcome, folder: Path, status: int | None = None) -> None:
    assert status is None or done.status == status, done
    texts = [
        done.out,
        done.err,
        *(f.read_bytes().decode("latin-1") for f in folder.rglob("*") if f.is_file()),
    ]
    assert not any(WORD in text for text in texts), texts


_VERBS = [
    ("show", "A"),
    ("show", "A", "--step", "7"),
    ("log", "A"),
    ("log", "A", "--json"),
    ("verify", "A"),
    ("index", "A"),
    ("index", "A", "-o", "o.twm"),
    ("restore", "A", "-o", "out"),
    ("pack", "A", "-o", "out"),
    ("compact", "A"),
    ("golden", "save", "A", "-o", "golden"),
    ("golden", "check", "A", "B"),
    ("golden", "update", "A", "B"),
    ("golden", "show", "A"),
    (
        "compare",
        "A",
        "B",
        "-v",
        "--json",
        "r.json",
        "--html",
        "r.html",
        "--junit",
        "r.xml",
        "--list-differences",
        "d",
    ),
    ("compare", "A", "B", "-v", "--json", "-"),
    ("compare", "A", "nothing.npy", "--json", "r.json", "--html", "r.html"),
    ("compare", "A", "B", "--closer-to", "A", "--json", "r.json"),
    ("compare", "A", "B", "--tolerances", "B"),
    ("compare", "A", "B", "--html", "B"),
    ("compare", "A", "B", "--json", "nowhere/A"),
    ("compare", "A", "B", "--atol", "A"),
    ("compare", "A", "B", "--mpi"),
    ("compare", "A", "--replicas"),
    ("compare", "A", "B", "B"),
    ("accept", "A", "B", "--json", "r.json"),
    ("tolerances", "A", "B", "-o", "t.toml"),
    ("particles", "A", "B", "--json", "r.json"),
    ("melt", "A"),
    ("aggregate", "join", "A"),
    ("training", "A", "B"),
    ("A",),
    ("compare", "--A"),
]


@pytest.mark.parametrize("scheme", ["http", "ftp"])
@pytest.mark.parametrize("words", _VERBS, ids=" ".join)
def test_no_verb_shows_secrets(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], scheme: str
) -> None:
    monkeypatch.chdir(tmp_path)
    urls = {"A": with_secrets(server, "a.npy", scheme), "B": with_secrets(server, "b.npy", scheme)}
    given = [word.replace("A", urls["A"]).replace("B", urls["B"]) for word in words]
    with warnings.catch_warnings(record=True) as warned:
        check(command(*given), tmp_path)
    assert not any(WORD in str(w.message) for w in warned)


def test_a_file_that_is_shown_is_named(server: ObjectServer, tmp_path: Path) -> None:
    done = command("show", with_secrets(server, "a.npy"))
    check(done, tmp_path, 0)
    assert f"{server.url}/a.npy" in done.out


def test_a_scheme_that_is_not_read(server: ObjectServer, tmp_path: Path) -> None:
    done = command("compare", with_secrets(server, "a.npy", "ftp"), with_secrets(server, "b.npy"))
    check(done, tmp_path, 2)
    assert "ftp:// is not read; name it by https://, s3:// or gs://" in done.err


def test_tracebacks_show_no_secrets(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect, and words of a library that repeat the URL."""
    url = with_secrets(server, "a.npy")

    def defect(self: object, *_: object) -> None:
        try:
            raise ValueError(f"URL({url!r})")
        except ValueError as error:
            raise KeyError(url) from error

    monkeypatch.setattr(objects.RemoteObject, "__init__", defect)
    for traced in ("", "1"):
        monkeypatch.setenv("TWINRUN_TRACEBACK", traced)
        done = command("show", url)
        check(done, tmp_path, 2)
        assert ("ValueError" in done.err) == bool(traced) and f"{server.url}/a.npy" in done.err


def test_errors_of_the_package_show_no_secrets(server: ObjectServer, tmp_path: Path) -> None:
    url = with_secrets(server, "none.npy")
    for call in (
        lambda: twinrun.compare(url, url),
        lambda: twinrun.index(url),
        lambda: twinrun.verify(url),
        lambda: golden.check(url, url),
        lambda: golden.save(url, tmp_path / "golden"),
        lambda: twinrun.compare(url.replace("http", "ftp"), url),
    ):
        with pytest.raises(TwinrunError) as error:
            call()
        parts = (error.value.what, error.value.where, error.value.fix, *error.value.args, repr(error.value))
        assert not any(WORD in str(part) for part in parts)
