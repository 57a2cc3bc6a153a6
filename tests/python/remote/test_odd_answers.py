"""Servers whose answers are odd, and URLs that are: the message says what is wrong and what to do."""

import http.server
from collections.abc import Callable
from email.utils import formatdate

import pytest
from object_server import noise, npy, serving

import twinrun
from twinrun import FormatError, TwinrunError, Unsupported
from twinrun.remote import transport as limits

pytest.importorskip("fsspec", reason="objects of stores need fsspec: pip install 'twinrun[remote]'")
pytest.importorskip("aiohttp", reason="objects of web servers need aiohttp: pip install 'twinrun[remote]'")

Request = http.server.BaseHTTPRequestHandler


def raw(answer: str) -> Callable[[Request, dict[str, str], bytes], None]:
    def send(request: Request, headers: dict[str, str], body: bytes) -> None:
        request.wfile.write(answer.encode())

    return send


def redirect(place: str) -> str:
    return f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (redirect("file:///etc/passwd"), r"an address that is not of the web; give that address"),
        (redirect("s3://bucket/x"), r"an address that is not of the web; give that address"),
        (redirect("/x.npy"), r"from one address to the next, and to no object; check the URL"),
        (redirect("http://[::1/x"), r"an address that is (no URL; check|not of the web)"),
        ("HTTP/1.1 206 OK\r\nContent-Length: x\r\n\r\n", r"damaged headers, or too long ones; check that"),
        (f"HTTP/1.1 206 OK\r\nX: {'a' * 100_000}\r\n\r\n", r"damaged headers, or too long ones; check that"),
    ],
)
def test_odd_answers(answer: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_PAUSE", 0)
    with serving({"x.npy": npy(noise(10))}) as server:
        server.send = raw(answer)
        with pytest.raises(FormatError, match=said):
            twinrun.compare(f"{server.url}/x.npy", {"x": noise(10)})


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/x.npy", "http://[::1/x.npy"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(TwinrunError, match="is no URL; check its host and port"):
        twinrun.compare(url, {"x": noise(10)})


def test_a_store_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    with pytest.raises(FormatError, match="no credentials for its store; set AWS_PROFILE, or AWS_ACC"):
        twinrun.compare("s3://bucket", {"x": noise(10)})


def test_validators_that_tell_nothing() -> None:
    with serving({"x.npy": npy(noise(10))}) as server:
        url = f"{server.url}/x.npy"
        server.validators = {"ETag": '""'}
        with pytest.raises(Unsupported, match="no ETag and no Last-Modified"):
            twinrun.compare(url, url)
        long_ago = formatdate(1_700_000_000, usegmt=True)
        server.validators = {"ETag": '""', "Last-Modified": long_ago}
        assert twinrun.compare(url, url).verdict == "same"
        server.validators = {"Last-Modified": long_ago, "Date": ""}
        with pytest.raises(Unsupported, match=r"no ETag and no Date.*download it first"):
            twinrun.compare(url, url)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("?sig=a%2Fb%2Bc%3D&t=1+2", "/a%20b.npy?sig=a%2Fb%2Bc%3D&t=1+2"),
        ("?sig=%7E%2f/", "/a%20b.npy?sig=%7E%2f/"),
        ("?x=é y#part", "/a%20b.npy?x=%C3%A9%20y"),
        ("", "/a%20b.npy"),
    ],
)
def test_a_query_is_sent_as_it_is_given(given: str, sent: str) -> None:
    asked: list[str] = []
    content = npy(noise(10))

    def send(request: Request, headers: dict[str, str], body: bytes) -> None:
        asked.append(request.path)
        server._send(request, 206, headers, body)

    with serving({"a b.npy": content}) as server:
        server.send = send
        assert twinrun.compare(f"{server.url}/a b.npy{given}", {"a b": noise(10)}).verdict == "same"
    assert set(asked) == {sent}
