"""What a program gets from AsyncLLM of vLLM 0.33 in a format, without a model.

    python3 front_aux.py FOLDER [--router-weights]

The engine's core is a function here: it gives tokens, and rows by a formula, in the chunks and
types in which routecap's connector gives them, also two outputs that nobody has taken between them.
AsyncLLM.generate and the output processor are vLLM's own. FOLDER is for objects. With
--router-weights the rows come with weights. What the HTTP server answers is for server.py.
"""

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(sys.argv[1]).resolve()
os.environ["ROUTECAP_VLLM_OBJECTS"] = f"file://{FOLDER}"
WEIGHTS = "--router-weights" in sys.argv
os.environ["ROUTECAP_VLLM_WEIGHTS"] = str(int(WEIGHTS))
HERE = Path(__file__).resolve().parent

import numpy as np  # noqa: E402
import router_weights  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config import ModelConfig  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402
from vllm.v1.engine.input_processor import InputProcessor  # noqa: E402
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector  # noqa: E402

from routecap import remote  # noqa: E402
from routecap_vllm import _aux_output  # noqa: E402
from routecap_vllm._asked import Asked, asked_by  # noqa: E402

MODEL = ModelConfig(
    model=str(HERE.parents[3] / "tests/engines/models/tiny"),
    skip_tokenizer_init=True,
    dtype="float32",
    max_model_len=256,
)
PROMPT, ANSWER = list(range(100, 133)), list(range(40, 48))
ROWS = len(PROMPT) + len(ANSWER) - 1
LAYERS = MODEL.get_total_num_hidden_layers()
SHAPE = _aux_output._model_config.moe_layers(MODEL.hf_text_config)
EXPERTS = _aux_output._model_config.experts_of_layers(MODEL.hf_text_config)
K = _aux_output._model_config.experts_per_token(MODEL.hf_text_config)
passed = failed = 0


def expect(right, what):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print("FAILED", what, flush=True)


def rows(first, end):
    """[rows, layers of the decoder, K]; those of layers without a router are 0."""
    found = np.zeros((end - first, LAYERS, K), np.int16)
    for layer in SHAPE:
        at = np.arange(first, end)[:, None] * 7 + layer * 3
        found[:, layer] = (at + np.arange(K)) % EXPERTS[0]
    return found


def weights(first, end):
    """Of these rows, as float32; 0 in layers without a router."""
    found = np.zeros((end - first, LAYERS, K), np.float32)
    found[:, SHAPE] = (rows(first, end)[:, SHAPE] + 1) / np.float32(7)
    return found


def sent(first, end):
    """What the engine's core sends."""
    ids = rows(first, end)
    return router_weights.packed(ids, weights(first, end)) if WEIGHTS else ids


def same_weights(found, first):
    known = weights(first, ROWS) if WEIGHTS else None
    if found is None or known is None:
        return found is known
    return found.dtype == np.float32 and np.array_equal(found.view("i4"), known.view("i4"))


class Engine(AsyncLLM):
    """Its core computes the prompt in one step, and then a token in each."""

    def __init__(self):
        self.model_config, self.log_requests = MODEL, False
        self.output_processor = OutputProcessor(None, log_stats=False)

    def __del__(self):
        pass

    async def add_request(self, request_id, prompt, params, **more):
        assert asked_by(params) == Asked(), "the core is not asked"
        queue = RequestOutputCollector(params.output_kind, request_id)
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        request.external_req_id = request_id
        self.output_processor.add_request(request, None, None, 0, queue)
        self.running = asyncio.create_task(self.run(request_id, params))
        return queue

    async def run(self, request_id, params):
        emit = params.routed_experts_prompt_start
        for step, token in enumerate(ANSWER):
            end = len(PROMPT) + step
            last = step == len(ANSWER) - 1
            output = EngineCoreOutput(
                request_id=request_id,
                new_token_ids=[token],
                finish_reason=FinishReason.LENGTH if last else None,
                routed_experts=sent(emit, end),
            )
            emit = end
            self.output_processor.process_outputs([output])
            if step % 2:  # of two outputs that nobody has taken one is made
                await asyncio.sleep(0)


def outputs(kind, start, **asked):
    parameters = SamplingParams(
        max_tokens=len(ANSWER),
        output_kind=kind,
        detokenize=False,
        routed_experts_prompt_start=start,
        extra_args=asked or None,
    )
    return Engine().generate(PROMPT, parameters, "name")


def right(reference, start):
    """What a rank of a trainer reads."""
    reader = remote.Reader(
        remote.connect(f"file://{FOLDER}"),
        layers=len(SHAPE),
        k=K,
        layer_map=SHAPE,
        layer_experts=EXPERTS,
        weights="float32" if WEIGHTS else None,
    )
    found = reader.rows(reference).read(0, ROWS)
    return (
        found is not None
        and (found.first, found.rows) == (start, ROWS - start)
        and found.mask().all()
        and np.array_equal(found.ids(), rows(start, ROWS)[:, SHAPE])
        and (found.weights_dtype is not None) is WEIGHTS
        and (not WEIGHTS or np.array_equal(found.weights(), weights(start, ROWS)[:, SHAPE]))
    )


async def program(kind, start):
    taken = [each async for each in outputs(kind, start, routed_experts_format="reference")]
    having = [each.outputs[0] for each in taken if each.outputs[0].routed_experts is not None]
    expect(len(having) == 1 and having[0].finish_reason == "length", f"{kind}: at the end, once")
    expect(right(having[0].routed_experts, start), f"{kind} from {start}: its rows")
    own = [each async for each in outputs(kind, start)][-1].outputs[0]
    whole = own.routed_experts.dtype == np.int16
    whole &= np.array_equal(own.routed_experts, rows(start, ROWS))
    expect(whole, f"{kind} from {start}: vLLM's own answer")
    beside = own.routed_experts_weights if WEIGHTS else None
    expect(same_weights(beside, start), f"{kind} from {start}: its weights")


def main():
    _aux_output.refuse_asked(InputProcessor)
    # as when an engine makes its front end
    _aux_output.look(SimpleNamespace(aux_output_config=SimpleNamespace(enabled=True)))
    for start in (0, 20):
        for kind in RequestOutputKind:
            asyncio.run(program(kind, start))
    try:
        outputs(RequestOutputKind.DELTA, 0, routed_experts_start=3)
        expect(False, "routed_experts_start is refused")
    except ValueError:
        expect(True, "refused")
    print(f"{passed} checks passed, {failed} failed")
    return failed > 0 or passed < 18


if __name__ == "__main__":
    sys.exit(main())
