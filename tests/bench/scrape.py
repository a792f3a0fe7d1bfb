"""What a scrape of the metrics costs the process of an engine: 58 layers of 256 experts.

    scrape.py

It is processor time, so that it is that of the code, whatever else the machine does: with a
Collector in the engine's process nearly all of it is under the interpreter's lock.
"""

import subprocess
import sys
import time

import numpy as np
import prometheus_client
import routecap
from routecap import metrics

LAYERS, K, EXPERTS, ROWS, SCRAPES = 58, 8, 256, 64, 20
SCRAPE = f"""
import sys, urllib.request
for _ in range({SCRAPES}):
    urllib.request.urlopen(sys.argv[1]).read()
"""


def busy_capturer() -> routecap.Capturer:
    capturer = routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, load=True)
    ids = np.argsort(np.random.default_rng(1).random((ROWS, EXPERTS)), axis=1)[:, :K]
    capturer.begin(ROWS)
    for layer in range(LAYERS):
        capturer.record(layer, ids.astype(np.int32))
    capturer.snapshot()
    capturer.issue(routecap.spans(request=capturer.open(), rows=ROWS)).wait()
    return capturer


def line(name: str, url: str) -> None:
    scraper = [sys.executable, "-c", SCRAPE, url]
    subprocess.run(scraper, check=True)
    before = time.process_time()
    subprocess.run(scraper, check=True)
    print(f"{name:38}  {1000 * (time.process_time() - before) / SCRAPES:10.2f}")


def main() -> None:
    print(f"{'processor time of the engine, a scrape':38}  {'ms':>10}")
    with busy_capturer() as capturer:
        with metrics.serve(capturer, 0) as server:
            line("routecap.metrics.serve", server.url)
        registry = prometheus_client.CollectorRegistry()
        registry.register(metrics.Collector(capturer))
        own, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
        line("a Collector in it", f"http://127.0.0.1:{own.server_port}/metrics")
        own.shutdown()
        own.server_close()
        thread.join()


if __name__ == "__main__":
    main()
