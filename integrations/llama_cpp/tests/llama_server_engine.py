"""llama-server with the library to preload of ../server. Requests go by HTTP.

program, preload, model: the paths of llama-server, of the library and of the model, which is
qwen3moe of make_model.py with its tokenizer. unified: one memory for all slots.
"""

import atexit
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import routecap
from routecap_tools import conform

sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))
import rows  # noqa: E402

SLOTS, VOCABULARY = 8, 256
CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 6,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": VOCABULARY,
}


def engine(program, preload, model, unified=""):
    folder = tempfile.mkdtemp()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-np", str(SLOTS), "-c", str(512 * SLOTS), "--cache-ram", "0", "-b", "64"]
    options += ["-ub", "16", "-t", "1", "-tb", "1", "-ngl", "0", "-fa", "off"]
    options += ["-ctk", "f32", "-ctv", "f32", *(["--kv-unified"] if unified else [])]
    server = subprocess.Popen(
        [program, "-m", model, "--port", str(port), *options],
        env={**os.environ, "LD_PRELOAD": preload, "ROUTECAP_LLAMA_ROWS": folder},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(server.kill)

    def ask(path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        headers = {"Content-Type": "application/json"}
        connection.request("POST" if body else "GET", path, json.dumps(body), headers)
        return connection, connection.getresponse()

    def ready():
        try:
            return ask("/health")[1].status == 200
        except OSError:
            return False

    while not ready():
        if server.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {server.returncode}")
        time.sleep(0.05)

    def one(request):
        name = rows.new_id()
        body = {
            "prompt": list(request.prompt),
            "n_predict": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "stream": request.stream or request.abort,
            "stop": [request.stop_text] if request.stop_text else [],
        }
        connection, answer = ask("/completion", rows.marked(body, name))
        if answer.status != 200:
            raise ValueError(answer.read().decode())
        generated, cached, text = [], None, ""
        for line in answer if body["stream"] else [b"data: " + answer.read()]:
            if not line.startswith(b"data: "):
                continue
            piece = json.loads(line[6:])
            generated += piece.get("tokens", [])
            text += piece.get("content", "")
            cached = piece.get("timings", {}).get("cache_n", cached)
            if request.abort and len(generated) > 1:
                break
        answer.close()
        connection.close()
        tokens = [*request.prompt, *generated]
        return [(rows.read(folder, name, tokens, 60), tokens, cached, text)]

    def generate(requests):
        with ThreadPoolExecutor(len(requests)) as threads:
            return list(threads.map(one, requests))

    return conform.Functions(
        f"llama-server b10434{', one memory' if unified else ''}, routecap {routecap.__version__}",
        generate,
        lambda output: output[0],
        lambda output: output[1],
        can=("stream", "abort", "stop_text"),
        cached=lambda output: output[2],
        text=lambda output: output[3],
    ), {
        "model": routecap.models.describe(CONFIG),
        "vocabulary": VOCABULARY,
        "requests": SLOTS,
        "generated": 8,
    }
