"""SGLang on the host, in processes of its own, with routecap or with its own capturer.

capture: "routecap" or "own". retract: every third pass retracts requests. copies: by those of
PyTorch, which arrive late.
"""

import asyncio
import base64
import itertools
import os
import tempfile
import time
from pathlib import Path

import numpy as np

names = map(str, itertools.count())


def engine(capture="routecap", retract="1", copies=""):
    import routecap
    import routecap_sglang
    import small_checkpoint as small
    from routecap_tools import conform

    folder = Path(tempfile.mkdtemp())
    weights = itertools.cycle([str(small.make(folder / str(i), i)) for i in (1, 0)])
    first = str(folder / "0")
    events = folder / "events"
    os.environ["ROUTECAP_TEST_EVENTS"] = str(events)
    os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "routecap_sglang_models"
    if retract:
        os.environ["SGLANG_TEST_RETRACT"] = "1"
    if copies:
        os.environ["ROUTECAP_WITHOUT_KERNELS"] = "1"
    if capture == "routecap":
        routecap_sglang.install()
    import sglang
    from sglang.srt.managers import io_struct

    served = sglang.Engine(
        model_path=first,
        port=20500,
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        skip_tokenizer_init=True,
        enable_return_routed_experts=True,
        chunked_prefill_size=32,
        max_total_tokens=1200,
        max_running_requests=16,
        mem_fraction_static=0.5,
        log_level="warning",
    )

    async def one(request):
        sampling = {"temperature": 1.0 if request.n > 1 else 0, "n": request.n}
        sampling["ignore_eos"] = request.stop is None  # which ignores other stops too
        sampling["max_new_tokens"] = request.max_tokens
        if request.stop is not None:
            sampling["stop_token_ids"] = [request.stop]
        name = f"{next(names)}-"  # an abort takes all whose names begin so
        asked = {"input_ids": list(request.prompt), "sampling_params": sampling}
        asked |= {"return_routed_experts": True}
        asked |= {} if request.n > 1 else {"rid": name}
        if request.abort:
            manager = served.tokenizer_manager
            asyncio.get_running_loop().call_later(0.05, manager.abort_request, name)
        if request.stream:
            async for output in await served.async_generate(**asked, stream=True):
                pass
        else:
            output = await served.async_generate(**asked)
        choices = output if isinstance(output, list) else [output]
        return [] if request.abort else [(request, each) for each in choices]

    def generate(requests):
        async def together():
            return await asyncio.gather(*map(one, requests))

        return served.loop.run_until_complete(together())

    def routing(output):
        answer = output[1]["meta_info"].get("routed_experts")
        if answer is None:
            return None
        ids = np.frombuffer(base64.b64decode(answer), np.int32)
        return ids.reshape(-1, small.LAYERS, small.K)

    def update():
        while not served.flush_cache().success:  # what was aborted ends
            time.sleep(0.05)
        request = io_struct.UpdateWeightFromDiskReqInput(model_path=next(weights))
        done = served.tokenizer_manager.update_weights_from_disk(request, None)
        assert served.loop.run_until_complete(done)[0]

    def retractions():
        lines = events.read_text().splitlines() if events.exists() else []
        return sum(line.startswith("retractions") for line in lines)

    made = f"routecap {routecap.__version__}" if capture == "routecap" else "its own capture"
    how = "PyTorch's copies, " if copies else ""
    return conform.Functions(
        f"SGLang {sglang.__version__}, {how}{made}",
        generate,
        routing,
        lambda output: [*output[0].prompt, *output[1]["output_ids"]],
        can={"n", "stop", "stream", "abort"},
        cached=lambda output: output[1]["meta_info"].get("cached_tokens"),
        update=update,
        preemptions=retractions,
    ), {
        "model": routecap.models.describe(f"{first}/config.json"),
        "vocabulary": small.VOCABULARY,
        "checkpoint": first,
    }
