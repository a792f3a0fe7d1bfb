"""Processes of a job, and how its driver calls them: by lines of JSON, or as actors of Ray. Counts
the bytes that pass through the driver."""

import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import hosts


class Ended(RuntimeError):
    """The process is gone."""


class Process:
    """An object of a class in a process of its own, called by lines of JSON."""

    def __init__(self, name: str, *arguments: Any, machine: hosts.Host | None = None) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, str(Path(__file__)), name, json.dumps(arguments)]
        if machine is not None:
            command = machine.command(*command)
        self._process = subprocess.Popen(command, **pipes)
        self.bytes = 0

    def begin(self, method: str, *arguments: Any) -> None:
        line = _json([method, *arguments])
        self.bytes += len(line)
        try:
            print(line, file=self._process.stdin, flush=True)
        except OSError:
            raise Ended(method) from None

    def end(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # Mooncake writes there too
            if line.startswith("="):
                self.bytes += len(line)
                return json.loads(line[1:])
        raise Ended("it was killed")

    def call(self, method: str, *arguments: Any) -> Any:
        self.begin(method, *arguments)
        return self.end()

    def stop(self) -> None:
        """It stays, and does nothing any more."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass


class Actor:
    """The same as an actor of Ray, by whose messages ObjectRefs can travel."""

    def __init__(self, name: str, *arguments: Any) -> None:
        import ray

        self._actor = ray.remote(class_of(name)).options(num_cpus=0).remote(*arguments)
        self.bytes = 0

    def begin(self, method: str, *arguments: Any) -> None:
        import ray

        self.bytes += len(ray.cloudpickle.dumps(arguments))
        self._answer = getattr(self._actor, method).remote(*arguments)

    def end(self) -> Any:
        import ray

        try:
            answer = ray.get(self._answer)
        except ray.exceptions.RayActorError:
            raise Ended("it was killed") from None
        self.bytes += len(ray.cloudpickle.dumps(answer))
        return answer

    def call(self, method: str, *arguments: Any) -> Any:
        self.begin(method, *arguments)
        return self.end()

    def kill(self) -> None:
        import ray

        ray.kill(self._actor)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def shared(scheme: str, value: Any) -> tuple[Any, int]:
    """What to hand to several workers, and the bytes that this took. With Ray it is put into the
    object store, from where each of them fetches it."""
    if scheme != "ray":
        return value, 0
    import ray

    return ray.put(value), len(ray.cloudpickle.dumps(value))


def class_of(name: str) -> Any:
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(module), kind)


def worker(
    scheme: str, name: str, *arguments: Any, machine: hosts.Host | None = None
) -> Process | Actor:
    """name: "module:Class"."""
    if scheme == "ray":
        return Actor(name, *arguments)
    return Process(name, *arguments, machine=machine)


if __name__ == "__main__":
    target = class_of(sys.argv[1])(*json.loads(sys.argv[2]))
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print("=" + _json(getattr(target, method)(*arguments)), flush=True)
