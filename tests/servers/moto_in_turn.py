"""moto's server, one request at a time: DynamoDB checks a condition and writes in one step, and moto doesn't."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import Client


class InTurn:
    """An application of WSGI that does one request after another, although each connection has its thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._turn:
            return list(self._app(environ, start_response))


ONE_REQUEST = {
    "X-Amz-Target": "DynamoDB_20120810.ListTables",
    "Content-Type": "application/x-amz-json-1.0",
    "Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host",
}

if __name__ == "__main__":
    app = InTurn(DomainDispatcherApplication(create_backend_app))
    # The first request imports DynamoDB, which can take longer than a client waits for an answer.
    Client(app).post("/", headers=ONE_REQUEST, data="{}").get_data()
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True, request_handler=MotoRequestHandler)
