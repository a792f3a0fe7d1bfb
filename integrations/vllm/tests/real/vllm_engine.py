"""vLLM in this process, with routecap or with its own capture; on the host if VLLM_ENGINE_ON_CPU is
1, with the model runner that VLLM_USE_V2_MODEL_RUNNER says.

capture: "routecap" or "own". cache: with the prefix cache, or "". blocks: of the cache, so few that
requests are preempted, or "". drafts: by n-grams, with blocks="", cache="" and without n > 1: the
scheduler of 0.21 stops in each of these with drafts, without routecap too. lora: with an adapter.
copies: by those of PyTorch, which arrive late. load: a checkpoint, which other engines can load
too; otherwise the weights are drawn in the engine.
"""

import itertools
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4] / "tests/engines"))
import engine as tested  # noqa: E402
import releases  # noqa: E402
from vllm import SamplingParams, __version__  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402

import routecap  # noqa: E402
import routecap_vllm  # noqa: E402
from routecap_tools import conform  # noqa: E402
from routecap_vllm import routed_experts_capturer as capturers  # noqa: E402

MODEL, VOCABULARY = ("tiny", 2048) if tested.ON_CPU else ("small", 32768)
PROMPT = [20 + 7 * i * i % 1900 for i in range(33)]
ABORTED_AT = 4  # steps
names = map(str, itertools.count())
preempted = 0


def count_preemptions():
    kind = releases.runner_class()
    execute = kind.execute_model

    def execute_model(runner, step, *args, **kwargs):
        global preempted
        if not releases.is_dummy(args, kwargs):
            preempted += len(step.preempted_req_ids or ())
        return execute(runner, step, *args, **kwargs)

    kind.execute_model = execute_model


def engine(
    capture="routecap", cache="1", blocks="40", drafts="", lora="", copies="", eager="", load=""
):
    folder, vocabulary = tested.MODELS / MODEL, VOCABULARY
    if load:
        import small_checkpoint as small

        folder, vocabulary = small.make(tempfile.mkdtemp()), small.VOCABULARY
    if copies:
        import late_copies

        late_copies.install()
    if capture == "routecap":
        capturers.set_options(capturers.Options(folder=tempfile.mkdtemp()))
        routecap_vllm.install()
    settings = {
        "async_scheduling": capture == "routecap" and not drafts,
        "enable_prefix_caching": bool(cache),
        "max_model_len": 512,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 128 if tested.ON_CPU else 512,
        "eager": bool(eager),
    }
    if blocks:
        settings["num_gpu_blocks_override"] = int(blocks)
    if load:
        settings["load_format"] = "auto"
    adapter = None
    if lora:
        import adapter as adapters
        from vllm.lora.request import LoRARequest

        adapter_folder = Path(tempfile.mkdtemp())
        adapters.write(adapter_folder, folder)
        adapter = LoRARequest("adapter", 1, str(adapter_folder))
        settings |= {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
        settings["lora_target_modules"] = list(adapters.MODULES.values())
    if drafts:
        speculative = {"method": "ngram", "num_speculative_tokens": 4}
        speculative |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
        settings["speculative_config"] = speculative
    llm, runner = tested.make(folder, True, **settings, **tested.cache_of(1))
    return of(llm, runner, capture, vocabulary, adapter, bool(drafts))


def of(llm, runner, capture, vocabulary=VOCABULARY, adapter=None, drafts=False, about=()):
    """An engine that is there, and what `judge` takes. about: what else its name says."""
    routes = tested.layers_that_route(llm)
    core, seeds = llm.llm_engine, itertools.count(2)
    config = core.vllm_config
    count_preemptions()

    def generate(requests):
        found, left = {}, []
        for request in requests:
            own = {"temperature": 1.0 if request.n > 1 else 0, "n": request.n}
            if request.stop is not None:
                own["stop_token_ids"] = [request.stop]
            sampling = SamplingParams(
                max_tokens=request.max_tokens, ignore_eos=True, detokenize=False, **own
            )
            sampling.output_kind = RequestOutputKind.FINAL_ONLY
            name = next(names)
            found[name] = None
            left += [name] if request.abort else []
            core.add_request(
                name,
                {"prompt_token_ids": list(request.prompt)},
                sampling,
                lora_request=adapter if request.adapter else None,
            )
        for step in itertools.count():
            if not core.has_unfinished_requests():
                break
            if step == ABORTED_AT and left:
                core.abort_request(left)
            for output in core.step():
                if output.finished:
                    found[output.request_id] = output
        return [
            [] if each is None else [(each, completion) for completion in each.outputs]
            for each in found.values()
        ]

    def routing(output):
        found = tested.given(output[0], routes, output[1])
        return None if found is None else found[0]

    def update():
        tested.draw_weights(runner.get_model(), next(seeds))
        llm.reset_prefix_cache()

    def asked(**extra):
        """(tokens, what the caller gets) of a request that asks for something."""
        sampling = SamplingParams(max_tokens=8, temperature=0, detokenize=False, extra_args=extra)
        sampling.ignore_eos = True
        [output] = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
        return output

    def rows_of(output):
        found = tested.given(output, routes)
        return None if found is None else found[0]

    def by_reference(kind):
        plain = rows_of(asked())
        [completion] = asked(routed_experts_format=kind).outputs
        found = routecap_vllm.read(completion.routed_experts).ids()
        assert (found == plain).all(), f"the rows of a {kind} are others"

    def start():
        plain, late = rows_of(asked()), rows_of(asked(routed_experts_start=35))
        assert (plain[35:] == late).all(), "the rows behind the start are others"

    def dtype():
        plain, narrow = rows_of(asked()), rows_of(asked(routed_experts_dtype="uint8"))
        assert narrow.dtype == "uint8" and (plain == narrow).all(), "the ids are others"

    def nothing():
        assert rows_of(asked(routed_experts=0)) is None, "there are rows"

    features = {
        "a format: file": lambda: by_reference("file"),
        "a format: store": lambda: by_reference("store"),
        "a start": start,
        "a dtype": dtype,
        "no capture of a request": nothing,
    }
    if releases.RELEASE < (0, 22):
        del features["a format: store"]  # for which that version needs a store in a file
    if capture != "routecap":
        features = {}  # requests can ask it for nothing
    cached = config.cache_config.enable_prefix_caching
    name = ["prefix cache" if cached else "no prefix cache", *about]
    name += ["adapter"] if adapter else []
    name += ["drafts by n-grams"] if drafts else []
    name += ["PyTorch's copies"] if "late_copies" in sys.modules else []
    made = f"routecap {routecap.__version__}" if capture == "routecap" else "its own capture"
    can = {"stop", "abort", *(["adapter"] if adapter else []), *([] if drafts else ["n"])}
    engine = conform.Functions(
        f"vLLM {__version__}, {', '.join(name)}, {made}",
        generate,
        routing,
        lambda output: [*output[0].prompt_token_ids, *output[1].token_ids],
        can=can,
        cached=lambda output: output[0].num_cached_tokens,
        update=update,
        preemptions=lambda: preempted,
    )
    folder = Path(config.model_config.model)
    given = {
        "model": routecap.models.describe(folder / "config.json"),
        "vocabulary": vocabulary,
        "checkpoint": folder,
        "adapter": "adapter" if adapter else "",
        "features": features,
    }
    return engine, given
