"""The bucket of these tests: one server for all of them."""

import gc
import logging
from collections.abc import Iterator

import pytest
from s3_bucket import Bucket

_RUN = "run: pip install s3fs 'moto[s3]' flask flask-cors"


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[Bucket]:
    pytest.importorskip("s3fs", reason=f"buckets need s3fs; {_RUN}")
    moto = pytest.importorskip("moto.server", reason=f"the bucket of these tests needs moto; {_RUN}")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    found = Bucket(server)
    yield found
    found.close()
    server.stop()


@pytest.fixture(scope="module")
def fresh_stores(bucket_server: Bucket) -> Iterator[None]:
    """fsspec keeps its file systems: those of other modules have other settings.

    No garbage is collected meanwhile: see `object_server.serving`.
    """
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    collects = gc.isenabled()
    gc.disable()
    yield
    if collects:
        gc.enable()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(bucket_server: Bucket, fresh_stores: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Its content stays from test to test: each takes keys of its own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket_server.endpoint)
    bucket_server.reset()
    yield bucket_server
    bucket_server.reset()
