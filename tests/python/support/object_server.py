"""A web server of objects in memory, which answers ranges, counts what it was asked for, and can misbehave."""

from __future__ import annotations

import gc
import hashlib
import http.server
import io
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from urllib.parse import unquote, urlsplit

import numpy as np


def npy(array: np.ndarray) -> bytes:
    """The array as a file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def noise(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count)


class ObjectServer:
    """objects: by path, without the first slash. asked: (path, first, count) of each range that was given."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)
        self.asked: list[tuple[str, int, int]] = []
        self.before = lambda path: None  # called before each answer
        self.statuses: list[int] = []  # of the next answers, in place of the right ones
        self.gives_ranges = True
        self.shift = 0  # by which the ranges that it gives are off
        self.validators: Mapping[str, str] | None = None  # None: an ETag of the content
        # Called with the request, headers and body of a range, in place of what sends them.
        self.send: Callable[[http.server.BaseHTTPRequestHandler, dict[str, str], bytes], None] | None = None
        self.asks_password = ""  # "user:password"
        self.lock = threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def bytes_asked(self) -> int:
        return sum(count for _, _, count in self.asked)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                owner.answer(self)

        return Handler

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path).lstrip("/")
        self.before(path)
        with self.lock:
            status = self.statuses.pop(0) if self.statuses else 0
            content = self.objects.get(path)
        if self.asks_password and not self._knows(request):
            status = 401
        if status == 0 and content is None:
            status = 404
        if status:
            return self._send(request, status, {}, b"")
        assert content is not None
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        facts = dict(self.validators or {"ETag": f'"{hashlib.md5(content).hexdigest()}"'})
        if found is None or not self.gives_ranges:
            return self._send(request, 200, facts, content)
        first, last = int(found[1]) + self.shift, min(int(found[2]) + self.shift, len(content) - 1)
        if first >= len(content):
            return self._send(request, 416, {**facts, "Content-Range": f"bytes */{len(content)}"}, b"")
        with self.lock:
            self.asked.append((path, first, last - first + 1))
        facts["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        if self.send is not None:
            return self.send(request, {"Date": formatdate(usegmt=True), **facts}, content[first : last + 1])
        self._send(request, 206, facts, content[first : last + 1])

    def _knows(self, request: http.server.BaseHTTPRequestHandler) -> bool:
        import base64

        told = base64.b64encode(self.asks_password.encode()).decode()
        return request.headers.get("Authorization") == f"Basic {told}"

    @staticmethod
    def _send(
        request: http.server.BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        request.send_response_only(status)
        for name, value in {"Date": formatdate(usegmt=True), **headers}.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@contextmanager
def serving(objects: Mapping[str, bytes]) -> Iterator[ObjectServer]:
    """A server in threads of this process, without a collector of garbage meanwhile.

    A thread of the server may free an object of h5py, and waits for h5py's lock then. The test may hold it
    while it waits for the server.
    """
    server = ObjectServer(objects)
    collects = gc.isenabled()
    gc.disable()
    thread = threading.Thread(target=server.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.server.shutdown()
        server.server.server_close()
        thread.join()
        if collects:
            gc.enable()
