"""What the HTTP server of vLLM 0.21, 0.26 or the newest answers with routecap, and what a request may
ask for.

    python3 server.py FOLDER

Completions, chats and the generate endpoint, whole and as streams: without asking, what the
server's own code makes; in each format the same rows; a file that is on this machine; several
choices and several prompts; what is refused; and what conform says. From 0.31 on an oracle in the
engine's process says which rows these are. The server is started as `vllm serve` starts it, and
nothing is imported that it does not import itself. FOLDER is for what it writes.
"""

import base64
import concurrent.futures
import io
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import routecap

SERVES = "VLLM_ENGINE_SERVES"  # set in the server's processes; those that are spawned import this
if os.environ.get(SERVES):
    import engine

    if engine.ON_CPU:
        engine.cpu.in_each_process()

PROMPT = list(range(100, 133))
RELEASE = tuple(int(each) for each in version("vllm").split(".")[:2])
IS_21, IS_AUX = RELEASE == (0, 21), RELEASE >= (0, 31)  # of which design
BLOCK = 32 if IS_AUX else 16
# 0.26 gives all layers of the decoder, of which the model's second does not route.
ROWS, LAYERS, K, ROUTES = len(PROMPT) + 7, 3 if IS_21 else 4, 4, [0, 1, 2] if IS_21 else [0, 2, 3]
passed = failed = 0


def watch_routers():
    """In the process that has the worker: an oracle, before the worker makes its runner."""
    from oracle import Oracle
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    init_device = WorkerWrapperBase.init_device

    def init(wrapper):
        Oracle(BLOCK).serve(os.environ[ORACLE])
        init_device(wrapper)

    WorkerWrapperBase.init_device = init


ORACLE = "VLLM_ENGINE_ORACLE"  # the file of its answers
if os.environ.get(SERVES) and IS_AUX:
    watch_routers()


def serve(arguments):
    """In a process of its own: the command `vllm serve`."""
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", "serve", *arguments]
    main()


def expect(right, what):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print("FAILED", what, flush=True)


class Server:
    def __init__(self, folder, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        template = "{% for message in messages %}{{ message.content }} {% endfor %}"
        arguments = [str(folder), "--host", "127.0.0.1", "--port", str(port), "--load-format"]
        arguments += ["dummy", "--enable-return-routed-experts", "--max-num-seqs", "16"]
        arguments += ["--max-model-len", "512", "--max-num-batched-tokens", "128"]
        arguments += ["--chat-template", template, "--enforce-eager", "--served-model-name", "tiny"]
        arguments += ["--seed", "0", "--enable-prompt-tokens-details"]
        if IS_AUX:
            arguments.append("--enable-scale-out")  # which has the generate endpoint
        if os.environ.get("VLLM_ENGINE_ON_CPU") == "1":
            arguments += ["--dtype", "float32", "--block-size", str(BLOCK)]
            arguments += ["--compilation-config", json.dumps({"custom_ops": ["none"]})]
        environment = os.environ | {
            SERVES: "1",
            ORACLE: str(folder / "oracle"),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "ROUTECAP_VLLM": "1",
            "ROUTECAP_VLLM_FOLDER": str(folder / "rows"),
            "ROUTECAP_VLLM_FOLDER_BYTES": "50000",
            "ROUTECAP_VLLM_OBJECTS": f"file://{folder.resolve() / 'objects'}",
            "ROUTECAP_VLLM_STORE_BYTES": str(1 << 24),
        }
        self.log = Path(log)
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--serve", *arguments],
                env=environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait(self):
        for _ in range(600):
            try:
                return urllib.request.urlopen(self.address + "/health", timeout=5).status
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.5)
        raise RuntimeError(self.log.read_text()[-4000:])

    def end(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)

    def post(self, path, **body):
        """What comes, and its status: a JSON value, or of a stream a list of them."""
        request = urllib.request.Request(
            self.address + path,
            json.dumps({"model": "tiny"} | body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        if not body.get("stream"):
            return 200, json.loads(text)
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        return 200, [json.loads(line) for line in lines if line != "[DONE]"]

    def complete(self, stream=False, prompt=PROMPT, **asked):
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 1e-3, "ignore_eos": True}
        if IS_AUX:  # Triton's interpreter has no top_k
            body |= {"temperature": 1, "seed": 1} if "n" in asked else {"temperature": 0}
        else:
            body["top_k"] = 1
        extra = {"n": asked.pop("n", 1)} | start_of(asked)
        return self.post(
            "/v1/completions", **body, **extra, stream=stream, vllm_xargs=asked or None
        )

    def chat(self, stream=False, **asked):
        content = " ".join(f"w{i}" for i in PROMPT)
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8}
        body |= {"temperature": 0, "ignore_eos": True, "stream": stream} | start_of(asked)
        return self.post("/v1/chat/completions", **body, vllm_xargs=asked or None)

    def generate(self, stream=False, **asked):
        sampling = {"max_tokens": 8, "temperature": 0, "ignore_eos": True} | start_of(asked)
        sampling["extra_args"] = asked
        body = {"token_ids": PROMPT, "sampling_params": sampling, "stream": stream}
        return self.post("/inference/v1/generate", **body)


def start_of(asked):
    """From 0.31 on it is a parameter of vLLM's own, and is not left in `asked`."""
    if not IS_AUX or asked.get("routed_experts_start", -1) < 0:
        return {}
    return {"routed_experts_prompt_start": asked.pop("routed_experts_start")}


OBJECTS = Path(sys.argv[1]).resolve() / "objects" if len(sys.argv) == 2 else None


def ids_of(value, kind, start=0):
    """An array [rows, layers that route, k] of what was answered."""
    import numpy as np

    if not IS_21 and kind in ("lists", "npy.base64", "object", "nrlre1", "raw.base64"):
        dtype = np.uint8
        if kind == "object":
            dtype, value = value["dtype"], value["data"]
        elif kind == "nrlre1":
            _, dtype, _, value = value.split(":")
        ids = (
            np.array(value)
            if kind == "lists"
            else np.load(io.BytesIO(base64.b64decode(value)))
            if kind == "npy.base64"
            else np.frombuffer(base64.b64decode(value), dtype).reshape(-1, LAYERS, K)
        )
        if ids.ndim == 3:
            dense = [layer for layer in range(LAYERS) if layer not in ROUTES]
            assert not ids[:, dense].any(), kind
        return ids[:, ROUTES]

    import routecap_vllm

    if kind == "lists":
        return np.array(value)
    if kind == "npy.base64":
        return np.load(io.BytesIO(base64.b64decode(value)))
    if kind == "routecap.base64":
        return routecap.Routing.deserialize(base64.b64decode(value)).ids()
    if kind == "file":
        assert value["bytes"] == os.path.getsize(value["file"]) and value["offset"] == 0
        return routecap_vllm.read(value).ids()
    if kind == "reference":
        return read(value).ids()
    hint = {"experts": 32, "first": start}
    if kind == "raw.base64":
        hint |= {"columns": LAYERS, "k": K, "dtype": "uint8"}
    return routecap.wire_decode(value, kind, **hint)[0].ids()


def read(reference):
    """What a rank of a trainer reads."""
    from routecap import models, remote

    model = models.describe(OBJECTS.parent / "config.json")
    reader = remote.Reader(
        remote.connect(f"file://{OBJECTS}"),
        layers=len(model.layer_map),
        k=K,
        layer_map=model.layer_map,
        layer_experts=model.layer_experts,
    )
    found = reader.rows(reference).read(0, ROWS)
    expect(found is not None and found.mask().all(), f"reference: {reader.log}")
    return found


def own(server):
    """What nobody asked otherwise; returns all rows."""
    import numpy as np

    status, answer = server.complete()
    expect(status == 200, f"completion: {answer}")
    if not IS_21:
        return own_of_26(server, answer)
    prompt = np.array(answer["prompt_routed_experts"])
    rows = np.array(answer["choices"][0]["routed_experts"])
    expect(prompt.shape == (33, LAYERS, K) and rows.shape == (7, LAYERS, K), "own: its shapes")
    rows = np.concatenate((prompt, rows))
    expect((rows >= 0).all() and len(np.unique(rows)) > 4, "own: its rows")
    expect(
        not [key for key in answer["choices"][0] if key.startswith("routed_experts_")],
        "own: nothing else",
    )
    _, answer = server.chat()
    choice = answer["choices"][0]
    both = np.array(answer["prompt_routed_experts"] + choice["routed_experts"])
    expect(np.array_equal(both, rows), "own: a chat of the same tokens")
    _, answer = server.generate()
    expect("routed_experts" not in answer["choices"][0], "own: generate has none")
    _, chunks = server.complete(stream=True)
    expect("routed_experts" not in json.dumps(chunks), "own: streams have none")
    return rows


def own_of_26(server, answer):
    import numpy as np

    rows = ids_of(answer["choices"][0]["routed_experts"], "npy.base64")
    expect(rows.shape == (ROWS, len(ROUTES), K) and (rows >= 0).all(), "own: its rows")
    for way in (server.chat, server.generate):
        _, answer = way()
        same = ids_of(answer["choices"][0]["routed_experts"], "npy.base64")
        expect(np.array_equal(same, rows), f"own: {way.__name__}")
    for way in (server.complete, server.chat):
        _, chunks = way(stream=True)
        expect("routed_experts" not in json.dumps(chunks), f"own: {way.__name__} as a stream")
    return rows


def judged(folder, rows):
    """The rows are those that the routers chose for each request of these tokens."""
    import numpy as np

    file = folder / "oracle"
    Path(f"{file}.ask").touch()
    for _ in range(300):
        if Path(f"{file}.done").exists():
            break
        time.sleep(0.2)
    lives, odd = pickle.loads(file.read_bytes())
    whole = [life for each in lives.values() for life in each if len(life) == ROWS]
    expect(len(whole) > 3 and not odd, f"oracle: {len(whole)} requests, odd {dict(odd)}")
    for life in whole:
        chosen = np.stack([life[position][0] for position in range(ROWS)])
        expect(np.array_equal(chosen, rows), "own: the rows are what the routers chose")


def in_every_format(server, rows):
    import numpy as np

    from routecap_vllm._asked import FORMATS

    for kind in FORMATS:
        for start in (0, 20 if IS_AUX else 35):  # from 0.31 on: up to the prompt's end
            asked = {"routed_experts_format": kind, "routed_experts_start": start}
            asked["routed_experts_dtype"] = "int16" if kind == "nrlre1" else "uint8"
            asked["routed_experts_validity"] = 1
            found = {}
            for way in (server.complete, server.chat, server.generate):
                for stream in (False, True):
                    name = f"{way.__name__}, {kind}, from {start}{', stream' * stream}"
                    status, answer = way(stream=stream, **asked)
                    expect(status == 200, f"{name}: {answer}")
                    if status != 200:
                        continue
                    chunks = answer if stream else [answer]
                    choices = [each for chunk in chunks for each in chunk["choices"]]
                    having = [each for each in choices if each.get("routed_experts") is not None]
                    expect(
                        len(having) == 1 and having[0]["finish_reason"] == "length",
                        f"{name}: {len(having)} choices have rows",
                    )
                    if not having:
                        continue
                    expect(
                        all(each.get("prompt_routed_experts") is None for each in chunks),
                        f"{name}: all rows are in the choice",
                    )
                    value = having[0]["routed_experts"]
                    ids = ids_of(value, kind, start)
                    expect(np.array_equal(ids, rows[start:]), f"{name}: its rows")
                    if kind in ("npy.base64", "object", "nrlre1"):
                        found[name] = value
                    if kind == "npy.base64":
                        expect(ids.dtype == np.uint8, f"{name}: narrow")
                    if kind == "object":
                        stands = value["shape"] == [ROWS - start, LAYERS, K]
                        expect(
                            stands and value["start"] == start and value["dtype"] == "uint8",
                            f"{name}: {value['shape']}",
                        )
                    valid = having[0]["routed_experts_validity"]
                    valid = ids_of(valid, "lists" if kind == "lists" else "npy.base64")
                    expect(
                        valid.shape == (ROWS - start, len(ROUTES)) and valid.all(),
                        f"{name}: validity",
                    )
            expect(
                len({json.dumps(each) for each in found.values()}) <= 1,
                f"{kind}: the same of every endpoint",
            )


def several(server, rows):
    import numpy as np

    prompts = [PROMPT, PROMPT[:20]]
    for stream in (False, True):
        _, answer = server.complete(
            stream=stream, prompt=prompts, n=2, routed_experts_format="npy.base64"
        )
        chunks = answer if stream else [answer]
        choices = [each for chunk in chunks for each in chunk["choices"]]
        having = {each["index"]: each for each in choices if each.get("routed_experts")}
        expect(sorted(having) == [0, 1, 2, 3], f"several: {sorted(having)}")
        for index, choice in having.items():
            ids = ids_of(choice["routed_experts"], "npy.base64")
            prompt = prompts[index // 2]
            expect(len(ids) == len(prompt) + 7, f"several {index}: {len(ids)} rows")
            first = ids[: len(prompt)]
            expect(np.array_equal(first, rows[: len(prompt)]), f"several {index}: its rows")
    if not IS_AUX:
        _, answer = server.complete(routed_experts=0, routed_experts_format="object")
        expect(answer["choices"][0]["routed_experts"] is None, "off")
    _, answer = server.complete(
        routed_experts_format="nrlre1", routed_experts_dtype="uint8"
    )  # which that cannot be
    choice = answer["choices"][0]
    expect(
        choice["routed_experts"] is None and "routed_experts_error" in choice and choice["text"],
        "an error in the place of what cannot be said",
    )


def refused(server):
    of_aux = (({"routed_experts": 0}, "has no routed_experts"),) if IS_AUX else ()
    for asked, said in (
        *of_aux,
        ({"routed_experts_format": "xml"}, "routed_experts_format is 'xml'"),
        ({"routed_experts_start": -1}, "routed_experts_start is -1"),
        ({"routed_experts_validity": 2}, "routed_experts_validity is 2"),
    ):
        for stream in (False, True):
            status, answer = server.complete(stream=stream, **asked)
            expect(status == 400 and said in json.dumps(answer), f"refused: {status} {answer}")


def files(server):
    """The oldest go."""
    _, first = server.complete(routed_experts_format="file")
    first = Path(first["choices"][0]["routed_experts"]["file"])
    expect(first.is_file(), "a file")
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(server.complete, routed_experts_format="file") for _ in range(150)]
        names = [each.result()[1]["choices"][0]["routed_experts"]["file"] for each in asked]
    there = sum(Path(each).is_file() for each in names)
    sizes = [each.stat().st_size for each in first.parent.iterdir()]
    expect(len(set(names)) == 150, f"files: {len(set(names))} names")
    expect(there >= 50_000 // max(sizes), f"files: {there} of at most {max(sizes)} bytes")
    expect(not first.exists() and sum(sizes) <= 50_000, f"files: {sum(sizes)} bytes")


def conforms(server, folder):
    """`routecap conform` finds nothing, without a format and with one; streams have rows with one
    alone."""
    from routecap import models
    from routecap_tools import conform

    model = models.describe(folder / "config.json")
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    for body in (None, {"vllm_xargs": {"routed_experts_format": "object"}}):
        engine = conform.Http(server.address, model, body=body)
        report = conform.judge(engine, model, vocabulary=vocabulary, requests=6)
        results = {each.check: each.result for each in report.verdicts}
        made = {"token", "again", "cached", "prefix", "batch", "choices", "one", "stop", "abort"}
        made |= {"rows", "each", *(["stream"] if body else [])}
        found = [text for each in report.verdicts if each.result == "fails" for text in each.what]
        # Dummy weights are the same in all layers.
        found = [text for text in found if not re.search(r"layers: layers \d and \d are the", text)]
        expect(not found, f"conform, {body}: {found}")
        run = {name for name, result in results.items() if result in ("passes", "fails")}
        expect(made <= run, f"conform, {body}: {made - run} not run")


def main():
    import words

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    words.write(folder)
    for each in ("oracle", "oracle.ask", "oracle.done"):
        (folder / each).unlink(missing_ok=True)
    for each in ("rows", "objects"):  # files of processes that are gone stay
        shutil.rmtree(folder / each, ignore_errors=True)
    server = Server(folder, folder / "server.log")
    try:
        server.wait()
        rows = own(server)
        if IS_AUX:
            judged(folder, rows)
        in_every_format(server, rows)
        several(server, rows)
        refused(server)
        files(server)
        conforms(server, folder)
    finally:
        server.end()
    print(f"{passed} checks passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        sys.exit(main())
