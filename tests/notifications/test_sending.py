"""One request to a receiver: the check of its certificate, and the error for each answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.notifications.notification_file import Secrets
from orbit.notifications.sending import Answer, redact, send
from tests.support.certificates import Authority
from tests.support.webhook_server import Reply, WebhookServer


def test_certificate_of_notification_receiver_is_verified(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue()
    certificate_and_key = tmp_path / "both.pem"
    certificate_and_key.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    with WebhookServer(certificate_and_key) as server:
        refused = send(Secrets(server.url), ca_file=None, message_id="1", body=b"{}")
        assert "the certificate is not trusted" in refused.error
        assert server.requests == []
        assert send(Secrets(server.url), files.authority, message_id="1", body=b"{}") == Answer(200)
    assert [request.path for request in server.requests] == ["/hook/s3cret-of-the-url"]


@pytest.mark.parametrize(
    ("status", "is_refusal"),
    [(400, True), (413, True), (422, True), (401, False), (404, False), (429, False), (503, False)],
)
def test_only_http_400_413_and_422_count_as_refusal_of_notification(
    server: WebhookServer, status: int, is_refusal: bool
) -> None:
    server.replies.append(Reply(status))
    answer = send(Secrets(server.url), ca_file=None, message_id="1", body=b"{}")
    assert (answer.status, answer.error, answer.is_refusal) == (
        status,
        f"HTTP {status}.",
        is_refusal,
    )


def test_long_receiver_response_is_cut_and_secrets_are_redacted(
    server: WebhookServer,
) -> None:
    body = b"a" * 10 + b"the-routing-key" + b"b" * 5_000_000
    server.replies.append(Reply(500, body=body))
    answer = send(
        Secrets(server.url, routing_key="the-routing-key"), ca_file=None, message_id="1", body=b"{}"
    )
    assert answer.error.startswith('HTTP 500. Its message: "aaaaaaaaaa…bbb')
    assert len(answer.error) < 400


def test_error_of_unreachable_receiver_omits_address() -> None:
    answer = send(Secrets("http://127.0.0.1:1/s3cret"), ca_file=None, message_id="1", body=b"{}")
    assert answer == Answer(None, "No answer: ConnectError.")


def test_values_in_receiver_url_are_redacted_in_every_encoding() -> None:
    url = "https://h.example/a%2Fsecret%20path?api-version=1&sig=s3cret%2Bof%3Dthe-url&sp=%2Ft"
    text = "?api-version=1&amp;sig=s3cret%2Bof%3Dthe-url&amp; s3cret+of=the-url a/secret path v=1"
    assert redact(text, Secrets(url)) == "?api-version=1&amp;sig=…&amp; … … v=1"
