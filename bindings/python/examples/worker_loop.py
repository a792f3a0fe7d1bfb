"""The worker loop of an engine: chunked prefill, drafts that the next step settles, string request
ids, routings read on another thread.

The engine is imitated: a model whose routers choose experts by a formula. What is routecap's here
is what an engine writes; with backend="cuda" the arrays are tensors of the device, and begin, the
routers and snapshot may be part of a CUDA graph. Every row that comes out is compared with the
formula.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import routecap
from numpy.typing import NDArray

LAYERS, K, EXPERTS, MAX_TOKENS, CHUNK, DRAFTS = 6, 4, 64, 48, 24, 2


@dataclass
class Sequence:
    id: str
    seed: int  # stands for its tokens
    prompt: int
    rows: int  # of the whole sequence: the last token is never input, so one fewer than its tokens
    known: int = 0  # rows whose tokens are certain


def routed(seed: int, positions: NDArray[np.int64]) -> NDArray[np.int32]:
    """What the routers choose at these positions: [rows, layers, k] distinct ids."""
    row, layer, column = positions[:, None, None], np.arange(LAYERS)[:, None], np.arange(K)
    return ((seed * 7 + row * 13 + layer * 29 + column * 5) % EXPERTS).astype(np.int32)


def read(id: str, seed: int, prompt: int, routing: routecap.Routing) -> tuple[str, int]:
    """Elsewhere, on any thread, later."""
    with routing:
        status = routing.wait(10)
        before, after = routing.split(prompt)
        wrong = np.count_nonzero(routing.ids() != routed(seed, np.arange(len(routing))))
        return (
            (
                f"{id}: {len(before)} rows of the prompt and {len(after)} generated,"
                f" {len(routing.serialize())} bytes: {status.name}"
            ),
            int(wrong),
        )


def main() -> None:
    waiting = [
        Sequence("chat-1", 1, 61, 69),
        Sequence("chat-2", 2, 5, 34),
        Sequence("embed-3", 3, 17, 17),
        Sequence("chat-4", 4, 100, 119),
    ]
    reading: list[Future[tuple[str, int]]] = []
    step: routecap.Step | None = None
    drafted: list[Sequence] = []  # in that step
    spans = routecap.spans(2 * len(waiting))

    with (
        routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=MAX_TOKENS) as capturer,
        ThreadPoolExecutor(1) as pool,
    ):
        requests = {sequence.id: capturer.open() for sequence in waiting}
        while waiting:
            # The outcome of the last step's drafts has arrived: settle them.
            if step is not None and drafted:
                accepts = np.zeros(len(drafted), routecap.accept_dtype)
                for item, sequence in zip(accepts, drafted):
                    kept = (sequence.seed + sequence.known) % (DRAFTS + 1)
                    item["request"] = requests[sequence.id].handle
                    item["step"], item["count"] = step.ticket, kept
                    sequence.known += kept
                capturer.accept_batch(accepts)
            for sequence in [each for each in waiting if each.known >= each.rows]:
                waiting.remove(sequence)
                reading.append(
                    pool.submit(
                        read,
                        sequence.id,
                        sequence.seed,
                        sequence.prompt,
                        requests[sequence.id].finish(sequence.rows),
                    )
                )

            # Plan a step: a chunk of each prompt, or the last token and drafts after it. Which row
            # is whose goes into one array.
            drafted, tokens, count, ids = [], 0, 0, []
            for sequence in waiting:
                rows = min(CHUNK, sequence.prompt - sequence.known, MAX_TOKENS - tokens)
                if rows > 0:
                    spans[count] = requests[sequence.id], sequence.known, 0, tokens, rows, 0, 0
                    count += 1
                elif sequence.known >= sequence.prompt and tokens + 1 + DRAFTS <= MAX_TOKENS:
                    rows = 1 + DRAFTS
                    spans[count] = requests[sequence.id], sequence.known, 0, tokens, 1, 0, 0
                    spans[count + 1] = (
                        requests[sequence.id],
                        sequence.known + 1,
                        0,
                        tokens + 1,
                        DRAFTS,
                        routecap.SpanFlag.SPECULATIVE,
                        0,
                    )
                    count += 2
                    drafted.append(sequence)
                else:
                    continue
                ids.append(routed(sequence.seed, np.arange(sequence.known, sequence.known + rows)))
                sequence.known += 1 if sequence in drafted else rows
                tokens += rows

            # The forward pass.
            if tokens:
                topk_ids = np.concatenate(ids)
                with capturer.step(tokens) as forward:
                    for layer in range(LAYERS):
                        forward.record(layer, topk_ids[:, layer])  # behind each layer's router
                    step = forward.issue(spans[:count], tag=42)  # the weights' version
                step.wait()  # as an engine's own pace does: steps beyond `slots` would be lost

        stats = capturer.stats()
    outcomes = [each.result() for each in reading]
    for line, _ in outcomes:
        print(line)
    wrong = sum(each for _, each in outcomes)
    print(
        f"{stats.steps_issued} steps, {stats.rows_delivered} rows delivered, {stats.rows_rejected}"
        f" drafts rejected; {wrong} differences"
    )
    if wrong or len(outcomes) != 4:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
