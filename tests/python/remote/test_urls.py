import pytest

from twinrun import TwinrunError
from twinrun.errors import one_line
from twinrun.urls import is_url, numbered, without_secrets


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("https://host/x.npy", True),
        ("S3://bucket/key", True),
        ("gs://bucket/key", True),
        ("runs/a", False),
        ("file:///x", False),
        ("s3:/bucket", False),
        ("a https://host", False),
        (3, False),
    ],
)
def test_what_is_a_url(path: object, is_one: bool) -> None:
    assert is_url(path) is is_one


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host:80/x.npy?X-Amz-Signature=1: gone", "https://host:80/x.npy: gone"),
        ("https://u:p@w@host/x", "https://host/x"),
        ("two: https://h/a?s=1&t=2, 's3://k:v@b/x'", "two: https://h/a, 's3://b/x'"),
        ("https://h/a#sig", "https://h/a"),
        ("/data/https:/me:pw@h/a?t: gone", "/data/https:/h/a: gone"),
        ("HTTPS://me:pw@h/a?t", "HTTPS://h/a"),
        ("file://me@h/a?t", "file://me@h/a?t"),
        ("ftp://me:pw@h/a.npy?t=1: no such file", "ftp://h/a.npy: no such file"),
        ("abfs+x://box@account/a?sig=1", "abfs+x://account/a"),
        ("/data/ftp:/me:pw@h/a?t: gone", "/data/ftp:/h/a: gone"),
        ("https://me:PASS/pw@h/a?t", "https://h/a"),  # a password that ought to be quoted
        ("s3://key:pw/pw/pw@bucket/a@2", "s3://2"),
        ("https://h:80/a@2.npy", "https://h:80/a@2.npy"),
        ("https://[::1]:80/a@2.npy", "https://[::1]:80/a@2.npy"),
        ("https://h/it's.npy?s=1", "https://h/it's.npy"),
        ("https://me:p'w@h/a?s='pw'&t", "https://h/a"),
        ("https://h/my file.npy?s=1: gone", "https://h/my file.npy: gone"),
        ("https://h/a.npy: is this it? Yes.", "https://h/a.npy: is this it? Yes."),
        ("x.h5:/group/a?b", "x.h5:/group/a?b"),
        ("simplecache::https://h/a?s=1", "simplecache::https://h/a"),
        ("no URL?", "no URL?"),
        ("http:// me:pw@h/x: gone", "http:// h/x: gone"),
        ("s3://  me:p@pw@h/x", "s3://  h/x"),
        ("file://me:pw@h/x and file:///a:b/c@d", "file://h/x and file:///a:b/c@d"),
        ("https:// is no URL: a@b", "https:// is no URL: a@b"),
    ],
)
def test_secrets_of_urls_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    error = TwinrunError(text, where=text, fix=text)
    for said in (error.what, error.where, *error.args, str(error)):
        assert "pw" not in str(said) and "Signature" not in str(said) and "s=1" not in str(said)


def test_lines_are_cut_behind_the_secrets() -> None:
    said = one_line(f"https://me:pw@h/{'a' * 5000}?{'s' * 5000} pw?")
    assert said.startswith("https://h/aaa") and said.endswith("a pw?") and len(said) < 3000


def test_a_further_object_keeps_the_end_of_its_name() -> None:
    assert numbered("https://host/a/x.npy", 2) == "https://host/a/~2/x.npy"
