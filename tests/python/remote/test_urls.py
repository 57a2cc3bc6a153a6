import pytest

from twinrun import TwinrunError
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
        ("/work/https:/me:pw@h/a?t: gone", "/work/https:/h/a: gone"),
        ("HTTPS://me:pw@h/a?t", "HTTPS://h/a"),
        ("file://me@h/a?t", "file://me@h/a?t"),
        ("no URL?", "no URL?"),
    ],
)
def test_secrets_of_urls_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    error = TwinrunError(text, where=text, fix=text)
    for said in (error.what, error.where, *error.args, str(error)):
        assert "pw" not in str(said) and "Signature" not in str(said) and "s=1" not in str(said)


def test_a_further_object_keeps_the_end_of_its_name() -> None:
    assert numbered("https://host/a/x.npy", 2) == "https://host/a/~2/x.npy"
