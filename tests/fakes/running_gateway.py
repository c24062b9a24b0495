"""A gateway in a thread of the test, on a free port."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from draftyard.nouns.web import FrontLimits
from draftyard.verbs.gateway import GatewayOptions, open_gateway, run_gateway

MODEL = "small"


@contextmanager
def running_gateway(grpc_url: str, limits: FrontLimits | None = None, **options: object) -> Iterator[str]:
    """Yields the address without `/v1`; on leaving the gateway is drained and gone."""
    opened = open_gateway(GatewayOptions(port=0, model=MODEL, limits=limits or FrontLimits(), **options))
    stop = threading.Event()
    thread = threading.Thread(target=run_gateway, args=(opened, grpc_url, lambda: not stop.is_set()))
    thread.start()
    try:
        yield opened.url.removesuffix("/v1")
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
