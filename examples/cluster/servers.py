"""The servers of each store, as users start them, on this machine and for one program."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import routecap.remote

SCHEMES = ("s3", "mooncake", "ray")
SECONDS = 20  # that any store may take to say that an object is gone


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def listens(port: int, process: "subprocess.Popen[Any]") -> None:
    """Return when the process listens. Raises: it has ended."""
    while process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} ended with {process.returncode}")


@contextmanager
def running(port: int, *command: str) -> Iterator["subprocess.Popen[Any]"]:
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
    ):
        try:
            listens(port, server)
            yield server
        finally:
            server.kill()


@contextmanager
def s3() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """A URL, its settings and the server's process."""
    port = free_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    program = Path(sys.executable).with_name("moto_server")
    with running(port, str(program), "-H", "127.0.0.1", "-p", str(port)) as server:
        settings = {
            "endpoint_url": f"http://127.0.0.1:{port}",
            "config_kwargs": {
                "connect_timeout": 2,
                "read_timeout": 5,
                "retries": {"max_attempts": 1},
            },
        }
        import s3fs

        s3fs.S3FileSystem(**settings).mkdir("routings")
        yield "s3://routings/step-1", settings, server


@contextmanager
def mooncake() -> Iterator[tuple[str, dict[str, Any], Any]]:
    port, metrics = free_port(), free_port()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOG_minloglevel", "3")
    os.environ.setdefault("MC_TRANSFER_TIMEOUT", "5")
    program = Path(sys.executable).with_name("mooncake_master")
    options = (f"--rpc_port={port}", f"--metrics_port={metrics}", "--enable_http_metadata_server=0")
    with running(port, str(program), *options) as server:
        yield f"mooncake://127.0.0.1:{port}", {}, server


@contextmanager
def ray() -> Iterator[tuple[str, dict[str, Any], Any]]:
    # Without these Ray reports to its makers, and writes into the home folder.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    import ray

    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        ray.init(
            address="local",
            num_cpus=8,
            object_store_memory=200 << 20,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
        ),
    ):
        yield "ray://", {"seconds": SECONDS}, None


def server_of(scheme: str) -> Any:
    return {"s3": s3, "mooncake": mooncake, "ray": ray}[scheme]()


def writer_settings(scheme: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Of a process that writes: with Mooncake objects lie in the memory that it gives."""
    return settings | ({"segment_bytes": 256 << 20} if scheme == "mooncake" else {})


def connect(url: str, settings: dict[str, Any]) -> routecap.remote.ObjectStore:
    return routecap.remote.connect(url, **settings)
