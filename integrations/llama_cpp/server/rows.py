"""The routing of a request to llama-server, for the client that sent it. See README.md.

request = rows.new_id()
answer = post("/completion", rows.marked({"prompt": prompt, "return_tokens": True}, request))
routing = rows.read(folder, request, prompt + answer["tokens"])
"""

import json
import time
import uuid
from pathlib import Path

import numpy as np
import routecap

BREAKERS = ["\n", ":", '"', "*"]  # what the server takes where a request does not say


def new_id():
    """An id that no other request has."""
    return uuid.uuid4().hex


def marked(body, request):
    """A body for /completion, /v1/completions or /v1/chat/completions, with the request's id."""
    breakers = body.get("dry_sequence_breakers", BREAKERS)
    return {**body, "dry_sequence_breakers": [*breakers, f"routecap:{request}"]}


def wait(folder, request, seconds=10.0):
    """(routing, tokens): what the server has delivered, a token for each row, -1 where it does not
    know the token. Removes the files.

    Files appear shortly after the answer's last byte; for a request that was aborted, when the
    server notices it.
    """
    end, data = Path(folder, f"{request}.json"), Path(folder, f"{request}.routecap")
    limit = time.monotonic() + seconds
    while not end.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"no rows of {request} in {folder} for {seconds} s")
        time.sleep(0.001)
    found = json.loads(end.read_text())
    try:
        if "error" in found:
            raise RuntimeError(f"no rows of {request}: {found['error']}")
        return routecap.Routing.deserialize(data.read_bytes()), found["tokens"]
    finally:
        end.unlink()
        data.unlink(missing_ok=True)


def read(folder, request, tokens, seconds=10.0):
    """The routing of a request with these tokens: those of its prompt and of its answer.

    It has a row less than there are tokens, for the last one was never an input. Rows of other
    tokens are refused.
    """
    routing, delivered = wait(folder, request, seconds)
    rows = len(tokens) - 1
    if len(delivered) < rows:
        raise ValueError(f"{request}: {len(delivered)} rows of {rows}")
    routing, delivered = routing.slice(0, rows), np.array(delivered[:rows], np.int64)
    unknown = delivered == -1
    other = ~unknown & (delivered != np.array(tokens[:rows], np.int64))
    if other.any():
        raise ValueError(f"{request}: row {other.argmax()} is of another token than the answer's")
    if (routing.ids()[unknown] != -1).any():
        raise ValueError(f"{request}: a row without a token has experts")
    return routing
