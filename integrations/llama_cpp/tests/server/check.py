#!/usr/bin/env python3
"""Asks llama-server as clients do, and compares every row that it delivers with replay.c.

usage: check.py SERVER PRELOAD REPLAY MODEL.gguf FOLDER PRELOAD.c RENAMED.so

Each check prints a line. Exits with status 1 if a cell is wrong, or missing without being expected.
"""

import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import rows

program, preload, replay, model, folder, source, renamed = sys.argv[1:8]
LAYERS, K, ENDLESS = 6, 4, 1 << 20
FEW = [[token, False] for token in range(256) if token not in (40, 50, 60)]  # so texts repeat
delivered = Path(folder, "rows")
letters = random.Random(7)
found = []  # (name, routing, tokens, context size, kept, rows that may be missing)
failures = 0


def check(name, passed, why=""):
    global failures
    failures += not passed
    print(f"{'ok     ' if passed else 'FAILED '} {name}{'' if passed else f': {why}'}", flush=True)


def tokens(count):
    return [letters.randrange(1, 256) for _ in range(count)]  # 0 ends a text


class Server:
    """llama-server on the CPU; keys and values in float32, so that batches do not matter."""

    def __init__(self, name, *options, **environment):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.name, self.log = name, Path(folder, f"{name.replace(' ', '_')}.log")
        self.program = subprocess.Popen(
            [program, "-m", model, "--port", str(self.port), "-t", "1", "-tb", "1", "-ctk", "f32"]
            + ["-ctv", "f32", "-fa", "off", "-ngl", "0", *options],
            env={
                **os.environ,
                "LD_PRELOAD": preload,
                "ROUTECAP_LLAMA_ROWS": str(delivered),
                **environment,
            },
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )
        while self.program.poll() is None:
            try:
                if self.post(None, "/health", "GET")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        if "RENAMED" not in environment:
            sys.exit(self.log.read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.terminate()
        check(f"{self.name}: the server ends", self.program.wait(60) == 0, self.log)

    def open(self, body, path="/completion", method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, body and json.dumps(body), headers)
        return connection, connection.getresponse()

    def post(self, body, path="/completion", method="POST"):
        connection, answer = self.open(body, path, method)
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def stream(self, body, chunks=ENDLESS):
        """The tokens of the first chunks of a stream, which is then closed."""
        connection, answer = self.open({**body, "stream": True})
        generated = []
        for line in answer:
            if line.startswith(b"data: "):
                generated += json.loads(line[6:]).get("tokens", [])
                chunks -= 1
                if chunks == 0:
                    break
        answer.close()
        connection.close()
        return generated

    def run(self, name, prompt, most=12, stream=False, size=ENDLESS, keep=0, missing=0, **more):
        """A request whose rows are compared later. missing: so many first rows are not there."""
        request = rows.new_id()
        body = {"prompt": prompt, "n_predict": most, "return_tokens": True, "seed": 1, **more}
        body = rows.marked(body, request)
        if stream:
            generated, answer = self.stream(body), None
        else:
            status, answer = self.post(body)
            if status != 200:
                sys.exit(f"{name}: {answer}")
            generated = answer["tokens"]
        whole = prompt + generated
        routing = rows.read(delivered, request, whole)
        found.append((f"{self.name}: {name}", routing, whole, size, keep, missing))
        return whole, answer

    def together(self, jobs):
        threads = [threading.Thread(target=self.run, args=job[:-1], kwargs=job[-1]) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(f"{self.name}: {len(jobs)} at once", True)


def aborted(server, most, size, **more):
    """A stream that is closed: what ran is delivered, and the slot goes on."""
    request, prompt = rows.new_id(), tokens(33)
    body = {"prompt": prompt, "n_predict": most, "return_tokens": True, "ignore_eos": True}
    seen = server.stream(rows.marked({**body, **more}, request), chunks=6)
    routing, ran = rows.wait(delivered, request, 60)
    check(f"{server.name}: the rows of an aborted stream", ran[: 33 + 5] == (prompt + seen)[:38])
    found.append((f"{server.name}: aborted", routing, ran + [0], size, 0, 0))
    return prompt, seen


def usual(server):
    """What a server does whose prompt cache is its slots."""
    server.run("one", tokens(40))
    server.run("one token", tokens(1))
    server.run("a stream", tokens(70), stream=True)
    server.run("no token is generated", tokens(50), most=0)
    server.together([(f"{n} of 12", tokens(3 + 13 * n), 30 - n, n % 2 == 1, {}) for n in range(12)])
    first, _ = server.run("first turn", tokens(90), id_slot=2)
    second, answer = server.run("second turn", first + tokens(20), id_slot=2)
    cached = answer["timings"]["cache_n"]
    check(f"{server.name}: the second turn finds the first", cached >= len(first) - 1, cached)
    _, answer = server.run("the same again", second, id_slot=2)
    check(f"{server.name}: all but a token is cached", answer["timings"]["cache_n"] > 100, answer)
    server.run("an edited prompt", second[:60] + tokens(30), id_slot=2)
    prompt = tokens(64)
    server.together([(f"prompt of a group, {n}", prompt, 16, False, {"seed": n}) for n in range(6)])

    # A chat's answer has no tokens: those of the prompt are asked for.
    request, chat = rows.new_id(), {"messages": [{"role": "user", "content": "abacadae" * 5}]}
    text = server.post(chat, "/apply-template")[1]["prompt"]
    prompt = server.post({"content": text, "add_special": True}, "/tokenize")[1]["tokens"]
    server.post(rows.marked({**chat, "max_tokens": 20}, request), "/v1/chat/completions")
    routing, ran = rows.wait(delivered, request)
    check(f"{server.name}: the rows of a chat", ran[: len(prompt)] == prompt, (ran, prompt))
    found.append((f"{server.name}: chat", routing, ran + [0], ENDLESS, 0, 0))

    prompt, seen = aborted(server, 1500, ENDLESS, id_slot=1)
    server.run("behind an aborted one", prompt + seen[:3] + tokens(9), id_slot=1)

    # The id changes no answer, although DRY is on and has strings of its own.
    dry = {"prompt": first[:50] * 2, "n_predict": 50, "temperature": 0, "dry_multiplier": 4}
    dry |= {
        "dry_allowed_length": 1,
        "logit_bias": FEW,
        "return_tokens": True,
        "cache_prompt": False,
    }
    plain = server.post(dry)[1]["tokens"]
    request = rows.new_id()
    same = server.post(rows.marked(dry, request))[1]["tokens"]
    without = server.post({**dry, "dry_multiplier": 0})[1]["tokens"]
    check(
        f"{server.name}: DRY with and without an id",
        plain == same != without,
        (plain, same, without),
    )
    whole = dry["prompt"] + same
    found.append(
        (f"{server.name}: DRY", rows.read(delivered, request, whole), whole, ENDLESS, 0, 0)
    )


def refusals(server):
    """Who asks for what cannot be told apart gets nothing."""

    def refused(name, request, words):
        # Behind another request's answer all that ended before it is written.
        server.post({"prompt": tokens(1), "n_predict": 1})
        try:
            rows.wait(delivered, request, 60)
            check(f"{server.name}: {name}", False, "there are rows")
        except RuntimeError as error:
            check(f"{server.name}: {name}", words in str(error), error)

    request = rows.new_id()
    body = {"messages": [{"role": "user", "content": "abcdef"}], "n": 2, "max_tokens": 5}
    server.post(rows.marked(body, request), "/v1/chat/completions")
    refused("two answers of one request", request, "several")

    request = rows.new_id()
    body = rows.marked({"prompt": tokens(9), "n_predict": 5}, request)
    server.post(body)
    server.post(body)
    refused("an id that is used again", request, "could not be written")

    for name in ("../outside", "", "a" * 129, ".hidden"):
        server.post(rows.marked({"prompt": tokens(9), "n_predict": 5}, name))
    server.post({"prompt": tokens(9), "n_predict": 5})
    whole, _ = server.run("after them", tokens(5))
    left = {path.name for path in delivered.iterdir()}
    check(f"{server.name}: no id, or none that is a name: no file", not left, left)

    request = rows.new_id()
    answer = server.post(rows.marked({"prompt": whole, "n_predict": 5}, request))[1]
    try:
        rows.read(delivered, request, whole[:-2] + [whole[-2] ^ 1] + [7] * 6)
        check(f"{server.name}: rows of other tokens", False, "are not refused")
    except ValueError as error:
        check(f"{server.name}: rows of other tokens", "another token" in str(error), answer)


def other_names():
    """Each function that is taken from the server, as if llama.cpp called it otherwise: it is named,
    and there are no rows. A call that went by unseen once left rows of other tokens."""
    functions = sorted(set(re.findall(r"NEXT\((\w+)\);", Path(source).read_text())))
    check(f"{len(functions)} functions are taken from the server", len(functions) == 20)
    for function in functions:
        loaded = {"LD_PRELOAD": f"{preload}:{renamed}", "RENAMED": function}
        server = Server(f"no {function}", "-np", "1", "-c", "512", **loaded)
        if server.program.poll() is None:
            try:
                body = rows.marked({"prompt": tokens(9), "n_predict": 2}, rows.new_id())
                server.post(body)
            except (OSError, http.client.HTTPException):
                pass  # it has ended
        server.program.terminate()
        server.program.wait(60)
        rowless = not list(delivered.glob("*.routecap"))
        for path in delivered.iterdir():
            path.unlink()
        said = re.search(rf"routecap: .* no {function}\b.*", server.log.read_text())
        check(f"{server.name}: {said and said[0]}", said and rowless, server.log)


def compare():
    """Every row against the oracle."""
    lines = [
        " ".join(map(str, [size, keep, *whole[:-1], "end"])) for _, _, whole, size, keep, _ in found
    ]
    result = Path(folder, "replayed")
    subprocess.run([replay, model, result], input="\n".join(lines), text=True, check=True)
    expected = np.fromfile(result, np.int32).reshape(-1, LAYERS, K)
    compared = wrong = 0
    place = 0
    for name, routing, whole, _, _, missing in found:
        count = len(whole) - 1
        right, place = expected[place : place + count], place + count
        ids = routing.ids()
        valid = ids[:, :, 0] >= 0
        differ = ((ids != right).any(axis=2) & valid).sum()
        compared, wrong = compared + valid.sum(), wrong + differ
        gone = ~valid[missing:, :-1].all() or valid[:missing].any() or not valid[-1].all()
        known = (routing.ids() >= 0).all(axis=2) == valid
        good = ids.shape == right.shape and differ == 0 and not gone and known.all()
        check(f"{name}: {valid.sum()} cells, {(~valid).sum()} missing", good, (differ, gone))
    check("the oracle has no other rows", place == len(expected))
    print(f"{compared} cells compared, {wrong} wrong")


delivered.mkdir(parents=True)
batches = ("-b", "64", "-ub", "24")
with Server("slots", "-np", "4", "-c", "8192", "-cram", "0", *batches) as server:
    usual(server)
    refusals(server)
with Server("one memory", "-np", "4", "-kvu", "-c", "8192", "-cram", "0", *batches) as server:
    usual(server)
drafts = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2")
with Server("drafts", "-np", "2", "-c", "4096", "-cram", "0", *drafts) as server:
    answers = [server.run(f"{n}", tokens(30), most=80, logit_bias=FEW)[1] for n in range(3)]
    counts = [answer["timings"].get("draft_n", 0) for answer in answers]
    taken = [answer["timings"].get("draft_n_accepted", 0) for answer in answers]
    check(f"drafts: {sum(counts)}, of which {sum(taken)} accepted", sum(counts) > sum(taken) > 0)
with Server("full context", "-np", "1", "-c", "256", "-cram", "0", "--context-shift") as server:
    longer = {"size": 256, "ignore_eos": True}  # than the context
    whole, _ = server.run("shifted", tokens(100), most=700, keep=10, n_keep=10, **longer)
    server.run("behind it", whole[:10] + tokens(50), missing=10)  # which are in the prompt cache
    server.run("shifted again", tokens(30), most=400, **longer)
    aborted(server, -1, 256)  # which would go on for ever
    server.run("behind an aborted one", tokens(30), cache_prompt=False)
with Server("saved states", "-np", "1", "-c", "2048", "--slot-save-path", folder) as server:
    first, _ = server.run("first", tokens(80))
    server.run("another", tokens(80))
    _, answer = server.run("first again", first + tokens(5), missing=len(first) - 1)
    cached = answer["timings"]["cache_n"]
    check("saved states: the first came back", cached == len(first) - 1, cached)
    server.post({"filename": "saved"}, "/slots/0?action=save")
    server.post(None, "/slots/0?action=erase")
    server.run("erased", tokens(40))
    server.post({"filename": "saved"}, "/slots/0?action=restore")
    again = first[:-1] + tokens(3)
    _, answer = server.run("restored", again, missing=len(first) - 1)
    cached = answer["timings"]["cache_n"]
    check("saved states: the slot was restored", cached == len(first) - 1, cached)
left = sorted({path.name for path in delivered.iterdir()})
check("no file is left", left == [], left)
other_names()
compare()
sys.exit(failures > 0)
