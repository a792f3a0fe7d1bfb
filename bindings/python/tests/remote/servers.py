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

import hosts
import routecap.remote

Server = tuple[str, dict[str, Any], Any]
SCHEMES = ("s3", "mooncake", "ray")
SECONDS = 10  # that a read of any store may take


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def listens(at: str, port: int, process: "subprocess.Popen[Any]") -> None:
    """Return when the process listens. Raises: it has ended."""
    while process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex((at, port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} ended with {process.returncode}")


@contextmanager
def running(port: int, *command: str, at: str = "127.0.0.1") -> Iterator["subprocess.Popen[Any]"]:
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
    ):
        try:
            listens(at, port, server)
            yield server
        finally:
            server.kill()


@contextmanager
def s3(host: hosts.Host | None = None, outside: str = "") -> Iterator[Server]:
    """A URL, its settings and the server's process."""
    port, address = free_port(), host.address if host else "127.0.0.1"
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    program = Path(sys.executable).with_name("moto_server")
    command = [str(program), "-H", address, "-p", str(port)]
    with running(port, *(host.command(*command) if host else command), at=address) as server:
        settings = {"endpoint_url": f"http://{address}:{port}"}
        import s3fs

        s3fs.S3FileSystem(**settings).mkdir("routings")
        yield "s3://routings/step-1", settings | {"seconds": SECONDS}, server


@contextmanager
def mooncake(host: hosts.Host | None = None, outside: str = "127.0.0.1") -> Iterator[Server]:
    port, metrics = free_port(), free_port()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOG_minloglevel", "3")
    program = Path(sys.executable).with_name("mooncake_master")
    options = (f"--rpc_port={port}", f"--metrics_port={metrics}", "--enable_http_metadata_server=0")
    with running(port, str(program), *options) as server:
        yield f"mooncake://{outside}:{port}", {"seconds": SECONDS}, server


@contextmanager
def ray(host: hosts.Host | None = None, outside: str = "") -> Iterator[Server]:
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


def server_of(scheme: str, host: hosts.Host | None = None, outside: str = "127.0.0.1") -> Any:
    """host: of the server of S3. outside: the address of this machine for all hosts."""
    return {"s3": s3, "mooncake": mooncake, "ray": ray}[scheme](host, outside)


def writer_settings(scheme: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Of a process that writes: with Mooncake objects lie in the memory that it gives."""
    return settings | ({"segment_bytes": 256 << 20} if scheme == "mooncake" else {})


def settings_at(scheme: str, settings: dict[str, Any], address: str | None) -> dict[str, Any]:
    """Of a process that others reach at this address."""
    return settings | ({"host": address} if scheme == "mooncake" and address else {})


def connect(url: str, settings: dict[str, Any]) -> routecap.remote.ObjectStore:
    return routecap.remote.connect(url, **settings)
