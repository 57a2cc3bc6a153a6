"""A bucket of S3, which moto's server plays: what it was asked for, and requests that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Bucket:
    """asked: (key, bytes) of each answer with content. requests: (method, path) of all. refuse: the status that
    a request gets in place of an answer, or "". endless: lists of objects have no end.
    """

    def __init__(self, server: object) -> None:
        import s3fs

        self.reset()
        host, port = server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self._server, self._inner = server._server, server._server.app
        self._server.app = self._counting
        self.fs = s3fs.S3FileSystem(endpoint_url=self.endpoint, key="test", secret="hidden")
        self.fs.mkdir("bucket")

    def reset(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.requests: list[tuple[str, str]] = []
        self.refuse: Callable[[str, str], str] = lambda method, path: ""
        self.endless = False

    def _counting(self, environ: dict, start: Callable) -> object:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        self.query = environ.get("QUERY_STRING", "")  # of the last one
        refused = self.refuse(method, path)
        if refused:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            code = refused.split(" ")[1]
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            start(refused, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [] if method == "HEAD" else [body]

        if self.endless and "list-type=2" in environ.get("QUERY_STRING", ""):
            body = self._page(f"{path.strip('/')}-{len(self.requests)}")
            start("200 OK", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]

        def answer(status: str, headers: list, *more: object) -> object:
            length = dict(headers).get("Content-Length") or dict(headers).get("content-length")
            if method == "GET" and not environ.get("QUERY_STRING"):
                self.asked.append((path, int(length or 0)))
            return start(status, headers, *more)

        return self._inner(environ, answer)

    @staticmethod
    def _page(token: str) -> bytes:
        """A part of a list, which says that more follows."""
        return (
            "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
            "<Name>bucket</Name><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>"
            f"<NextContinuationToken>{token}</NextContinuationToken><Contents><Key>loop/{token}</Key>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag><Size>1</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>"
        ).encode()

    def close(self) -> None:
        self._server.app = self._inner

    def put(self, key: str, content: bytes) -> None:
        self.fs.pipe_file(f"bucket/{key}", content)

    def get(self, key: str) -> bytes:
        return self.fs.cat_file(f"bucket/{key}")

    def keys(self, prefix: str) -> set[str]:
        self.fs.invalidate_cache()
        found = self.fs.find(f"bucket/{prefix}")
        return {name.removeprefix(f"bucket/{prefix}/") for name in found}

    def put_folder(self, folder: Path, key: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())
