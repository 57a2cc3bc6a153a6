"""Servers that are silent, slow, or send more than they were asked for: one clear line, in bounded time and memory."""

import contextlib
import gzip
import http.server
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from commands import HANG, check_error, command
from object_server import ObjectServer, serving

import twinrun
from twinrun import FormatError, TwinrunError
from twinrun.remote import caller
from twinrun.remote import transport as limits

pytest.importorskip("fsspec", reason="objects of stores need fsspec: pip install 'twinrun[remote]'")
pytest.importorskip("aiohttp", reason="objects of web servers need aiohttp: pip install 'twinrun[remote]'")

Request = http.server.BaseHTTPRequestHandler
COUNT = 32 << 10  # bytes of the range
LIMIT = 0.5  # seconds
MOST = 64 << 20  # bytes that a server can send before it sees that nobody reads: buffers of sockets


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr(limits, "_PAUSE", 0)
    with serving({"bucket/x.npy": bytes(range(256)) * 1000}) as found:
        for name, value in (
            ("ACCESS_KEY_ID", "test"),
            ("SECRET_ACCESS_KEY", "test"),
            ("ENDPOINT_URL", found.url),
        ):
            monkeypatch.setenv(f"AWS_{name}", value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield found


@pytest.fixture(params=["http", "s3", "http here", "s3 here"])
def read(server: ObjectServer, request: pytest.FixtureRequest) -> Iterator[object]:
    """What reads one range, over each kind of store that a server can play, in fsspec's thread or in this one."""
    from twinrun.remote.protocols import transport

    protocol, _, here = request.param.partition(" ")
    if protocol == "s3":
        s3fs = pytest.importorskip("s3fs")
        s3fs.S3FileSystem.clear_instance_cache()
    url = f"{server.url}/bucket/x.npy" if protocol == "http" else "s3://bucket/x.npy"
    caller._free.clear()

    def reading() -> bytes:
        how = transport(url, url)
        first = how.first(COUNT)
        return (how.here if here else how.read)(COUNT, COUNT, first.size, first.tag)

    yield reading
    caller._free.clear()
    if protocol == "s3":
        s3fs.S3FileSystem.clear_instance_cache()


def test_ranges_are_read(server: ObjectServer, read: object) -> None:
    assert read() == server.objects["bucket/x.npy"][COUNT : 2 * COUNT]


def answered(request: Request, headers: dict[str, str]) -> None:
    request.send_response_only(206)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()


@pytest.mark.parametrize("begun", [False, True])
def test_a_silent_server_is_waited_for_within_a_limit(
    server: ObjectServer, read: object, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    assert read()  # what a first client loads takes more than the limit on a busy machine
    server.asked.clear()
    monkeypatch.setenv("TWINRUN_REMOTE_TIMEOUT", str(LIMIT))
    monkeypatch.setattr(limits, "_LEAST_RATE", 1e9)
    ended = threading.Event()

    def send(request: Request, headers: dict[str, str], body: bytes) -> None:
        if begun:
            answered(request, headers | {"Content-Length": str(len(body))})
            request.wfile.write(body[:5])
        ended.wait(HANG)

    server.send = send
    try:
        with pytest.raises(
            FormatError, match=r"(sent nothing|no whole answer).*TWINRUN_REMOTE_TIMEOUT to more seconds"
        ):
            read()
    finally:
        ended.set()
    assert server.asked  # on a busy machine, making the client may take all attempts but one


def test_a_slow_server_is_waited_for_within_a_limit(
    server: ObjectServer, read: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, and all of them would take minutes."""
    monkeypatch.setenv("TWINRUN_REMOTE_TIMEOUT", str(LIMIT))
    monkeypatch.setattr(limits, "_LEAST_RATE", 1e9)
    ended = threading.Event()

    def send(request: Request, headers: dict[str, str], body: bytes) -> None:
        answered(request, headers | {"Content-Length": str(len(body))})
        with contextlib.suppress(OSError):
            for at in range(len(body)):
                request.wfile.write(body[at : at + 1])
                if ended.wait(LIMIT / 20):
                    break

    server.send = send
    try:
        with pytest.raises(FormatError, match=rf"no whole answer within {LIMIT} s.*TWINRUN_REMOTE_TIMEOUT"):
            read()
    finally:
        ended.set()


def test_a_server_at_the_least_rate_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []
    monkeypatch.setattr(limits, "wait", lambda fs, work, name, limit: seconds.append(limit))
    limits.Transport(None, "", "")._wait(lambda: None, 1 << 20)
    monkeypatch.setenv("TWINRUN_REMOTE_TIMEOUT", "5")
    limits.Transport(None, "", "")._wait(lambda: None, 1 << 20)
    assert seconds == [60 + (1 << 20) / 10_000, 5 + (1 << 20) / 10_000]


@pytest.mark.parametrize("told", ["soon", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_none(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("TWINRUN_REMOTE_TIMEOUT", told)
    with pytest.raises(TwinrunError, match=f"TWINRUN_REMOTE_TIMEOUT={told} is no number of seconds"):
        twinrun.compare(f"{server.url}/bucket/x.npy", {"x": np.zeros(3)})


class Endless:
    """Sends a body without end, and counts what it sent."""

    def __init__(self) -> None:
        self.sent, self.headers = 0, {}

    def __call__(self, request: Request, headers: dict[str, str], body: bytes) -> None:
        answered(request, headers | {"Transfer-Encoding": "chunked", **self.headers})
        piece = self.piece()
        with contextlib.suppress(OSError):
            while self.sent < 4 * MOST:
                request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.sent += len(piece)
        request.close_connection = True

    def piece(self) -> bytes:
        return bytes(1 << 16)


def test_no_more_is_read_than_the_range(server: ObjectServer, read: object) -> None:
    server.send = endless = Endless()
    with pytest.raises(FormatError, match="gave more bytes than it was asked for"):
        read()
    assert endless.sent < MOST


def test_one_byte_too_many_and_one_too_few(server: ObjectServer, read: object) -> None:
    def longer(request: Request, headers: dict[str, str], body: bytes) -> None:
        answered(request, headers | {"Content-Length": str(len(body) + 1)})
        request.wfile.write(body + b"?")

    def shorter(request: Request, headers: dict[str, str], body: bytes) -> None:
        answered(request, headers | {"Content-Length": str(len(body) - 1)})
        request.wfile.write(body[:-1])

    server.send = longer
    with pytest.raises(FormatError, match="gave more bytes than it was asked for"):
        read()
    server.send = shorter
    with pytest.raises(FormatError, match="gave fewer bytes than it was asked for; try it again"):
        read()


def test_encoded_answers_are_refused(server: ObjectServer) -> None:
    """A few bytes that unpack to many; and a range of the packed object, which is another one."""
    server.send = endless = Endless()
    endless.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(FormatError, match=r"encoded bytes \(gzip\); download it first"):
        twinrun.compare(f"{server.url}/bucket/x.npy", {"x": np.zeros(3)})
    assert endless.sent < MOST

    def packed(request: Request, headers: dict[str, str], body: bytes) -> None:
        assert request.headers["Accept-Encoding"] == "identity"
        content = gzip.compress(body)
        answered(request, headers | {"Content-Encoding": "gzip", "Content-Length": str(len(content))})
        request.wfile.write(content)

    server.send = packed
    with pytest.raises(FormatError, match=r"encoded bytes \(gzip\)"):
        twinrun.compare(f"{server.url}/bucket/x.npy", {"x": np.zeros(3)})


def test_a_redirect_to_an_endless_answer(server: ObjectServer) -> None:
    with serving({"y.npy": bytes(100_000)}) as other:
        other.send = endless = Endless()

        def send(request: Request, headers: dict[str, str], body: bytes) -> None:
            request.send_response_only(302)
            request.send_header("Location", f"{other.url}/y.npy")
            request.send_header("Content-Length", "0")
            request.end_headers()

        server.send = send
        with pytest.raises(FormatError, match="gave more bytes than it was asked for"):
            twinrun.compare(f"{server.url}/bucket/x.npy", {"x": np.zeros(3)})
        assert other.asked and endless.sent < MOST


def test_schemes_in_upper_case(server: ObjectServer) -> None:
    import io

    out = io.BytesIO()
    np.save(out, np.arange(3.0))
    server.objects["a.npy"] = out.getvalue()
    url = f"{server.url}/a.npy".replace("http", "HTTP")
    assert twinrun.compare(url, {"a": np.arange(3.0)}).verdict == "same"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://", "names no host; write http://HOST/NAME"),
        ("https:///x.npy", "names no host"),
        ("http://me:pw@/x.npy", "names no host"),
        ("http://?x", "names no host"),
        ("s3://", "names no bucket; write s3://BUCKET/NAME"),
        ("S3:///x.npy", "names no bucket"),
    ],
)
def test_urls_without_a_host(url: str, said: str) -> None:
    pytest.importorskip("s3fs")
    assert said in check_error(command("compare", url, "x.npy"))
