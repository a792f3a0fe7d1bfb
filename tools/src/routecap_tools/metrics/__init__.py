"""The load of the experts, and a capturer's counters, for Prometheus. Needs prometheus_client.

    server = routecap_tools.metrics.serve(capturer, port=9400)   # server.url: in its text format, and
    print(routecap_tools.metrics.text(capturer))                 # as OpenMetrics
    registry.register(routecap_tools.metrics.Collector(capturer))

alerts.yml and dashboard.json in this folder are alert rules and a dashboard of Grafana for them;
`folder` says where they are.
"""

from pathlib import Path

from ._collector import Collector, text
from ._server import Server, serve, serve_rank

for _each in (Collector, Server, serve, serve_rank, text):
    _each.__module__ = __name__  # where users find them

__all__ = ["Collector", "Server", "folder", "serve", "serve_rank", "text"]

folder = Path(__file__).parent
