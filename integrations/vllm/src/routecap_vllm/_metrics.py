"""Serving a capturer's counts to Prometheus."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import routecap

from routecap_tools.metrics import Server, serve_rank
from ._binding import MAX_EXPERTS
from ._options import Options

logger = logging.getLogger("vllm.routecap")  # which vLLM shows

# What ends the server at an address and port. vLLM makes a capturer to measure what its graphs take,
# and then another for good: the last one is served.
_served: dict[tuple[str, int], weakref.finalize[Any, Any]] = {}


def serve_metrics(capturer: routecap.Capturer, options: Options, until: object) -> Server | None:
    """Serve them, if the options say a port, for as long as `until` is there."""
    if not options.metrics_port or capturer.role != routecap.Role.OWNER:
        return None
    if capturer.experts == MAX_EXPERTS:
        return None  # it is opened again when it is bound
    where = options.metrics_address, options.metrics_port
    if where in _served:
        _served.pop(where)()
    server = serve_rank(
        capturer,
        options.metrics_port,
        options.metrics_address,
        logger=logger,
        experts=options.metrics_experts,
    )
    if server is not None:
        _served[where] = weakref.finalize(until, server.close)
    return server
