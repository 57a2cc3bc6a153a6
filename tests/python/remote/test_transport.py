"""What errors of stores are called."""

from types import SimpleNamespace

import pytest

from twinrun.errors import FormatError
from twinrun.remote import transport


class ClientError(Exception):
    def __init__(self, status):
        super().__init__("no")
        self.response = {"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": status}}


class FlexibleChecksumError(Exception):
    """As botocore raises it."""


@pytest.mark.parametrize(
    ("error", "words", "advice"),
    [
        (ClientError(500), "HTTP status 500, X", "try again later"),
        (ClientError(503), "HTTP status 503, X", "try again later"),
        (ClientError(403), "HTTP status 403, X", "credentials"),
        (FlexibleChecksumError(), "do not have the checksum", "restore the object"),
        (ValueError(), "cannot be read (ValueError)", "credentials"),
    ],
)
def test_the_status_of_an_answer_is_told_with_advice_that_fits(monkeypatch, error, words, advice):
    def raised(*_):
        raise error

    monkeypatch.setattr(transport, "_result", raised)
    with pytest.raises(FormatError) as caught:
        transport.wait(SimpleNamespace(loop=None), lambda: None, "s3://bucket/x", 1)
    assert words in str(caught.value) and advice in str(caught.value)
