"""A name of vLLM that is not found is not an answer.

`past_key_values` of another library was renamed, and what looked for it with a default found
nothing and went on: rows were wrong, and complete. Here such a look-up is in a table of vLLM's
places, which refuses by name when the engine starts, or raises, or is in this file with the reason
why nothing there is an answer.
"""

import ast
from pathlib import Path

import pytest
from test_versions import file_of, sources, tables

import routecap_vllm
from routecap_vllm._places import look

FOLDER = Path(routecap_vllm.__file__).parent

# What is looked for with a default: why its absence is no other name of it.
ABSENT = {
    "_asked.py": {
        "getattr(sampling_params, 'extra_args', None)": "None, of pooling, has none; in the table"
    },
    "_binding.py": {
        "getattr(layer.module, 'router', None)": "of any module of the model, which need not route",
        "hasattr(router, 'top_k')": "then the layer's configuration, or an error; in the table",
        "getattr(router, 'num_fused_shared_experts', 0)": "three routers have it: in the table",
        "getattr(layer.module, 'logical_num_experts', None)": "a bound for ids, no more",
        "hasattr(model, 'named_modules')": "torch's; other models have modules() alone",
        "hasattr(module, 'moe_layer_id')": "0.21 and its forks alone have it",
        "hasattr(module, 'layer_id')": "of any module of the model; in the table",
        "hasattr(module, 'capture_fn')": "the same",
        "getattr(quant_method, 'moe_kernel', None)": "then the buffer, which the log misses",
        "getattr(getattr(quant_method, 'moe_kernel', None), 'impl', None)": "the same",
        "getattr(kernel, 'fused_experts', None)": "the same",
        "getattr(experts, 'supports_routing_replay_capture', None)": "the same; in the table",
        "getattr(module, 'router', None)": "of any module of the model, which need not route",
        "getattr(getattr(module, 'router', None), 'select_experts', None)": "the same",
        "getattr(module, 'layer_name', '')": "a name for a message, or its number",
        "getattr(layer.module, 'moe_layer_id', order)": "then the order of the modules",
        "hasattr(module, name)": "of the names that _of_layer is given one has to be there",
        "hasattr(owner, '_routing_replay_out')": "0.21's own, for kernels that route internally",
        "getattr(module, 'select_experts', None)": "the router's, if it has a router",
        "getattr(router, 'zero_expert_type', None)": "ZeroExpertRouter alone has it: in the table",
        "getattr(router, 'set_capture_fn', None)": "then one of the next ways, or none and an error",
        "getattr(router, '_compute_routing', None)": "the same",
        "getattr(router, 'select_experts', None)": "the same",
        "getattr(owner, 'enable_eplb', False)": "ids are taken before the mapping to replicas",
        "getattr(owner, 'eplb_state', None)": "the same",
        "getattr(getattr(owner, 'eplb_state', None), 'logical_to_physical_map', None)": "the same",
        "getattr(state, 'physical_to_logical_map', None)": "the other one, or an error",
        "getattr(state, 'logical_to_physical_map', None)": "an error",
        "hasattr(model, 'register_forward_pre_hook')": "torch's; a warning says what to call",
        "kwargs.get('inputs_embeds')": "then as many rows as there may be",
        "getattr(args[0], 'ndim', 0)": "the same",
        "getattr(owner, name, None)": "torch's marks for compilers, by release",
        "hasattr(owner, name)": "a warning says what to call",
    },
    "_aux_output.py": {
        "vars(completion).get('routed_experts_weights')": "ours",
    },
    "_capturer.py": {
        "getattr(model, 'unwrap', None)": "a model that is no wrapper",
        "getattr(self._engine_requests.get(req_id), 'num_computed_tokens', None)": (
            "a request that is gone; in the table"
        ),
    },
    "_hooks.py": {"os.environ.get('VLLM_USE_RUST_FRONTEND', '0')": "a variable that is not set"},
    "_front_end.py": {
        "os.environ.get('VLLM_PLUGINS')": "a variable that is not set",
        "getattr(output, 'outputs', ())": "a completion's; in the table",
        "getattr(self._untaken(), 'outputs', ())": "None has none; in the table",
        "getattr(self.queue, 'output', None)": "None has none; in the table",
        "getattr(state, 'routecap', None)": "ours",
        "getattr(sampling, 'stop', None)": "None, of pooling, has none; in the table",
    },
    "_model_config.py": {"getattr(model_config, 'hf_text_config', None)": "then hf_config"},
    "_op.py": {"hasattr(getattr(torch.ops, namespace), op)": "then ours is registered"},
    "_places.py": {"getattr(owner, 'body', ())": "Python's own trees"},
    "_platform.py": {"sys.modules.get('vllm.platforms')": "not imported yet: the driver is asked"},
    "_results.py": {"getattr(routed_experts, 'first', 0)": "ours"},
    "_scheduler.py": {
        "kwargs.get('vllm_config', args[0] if args else None)": "in the table",
        "getattr(capturer, 'host_cache', None)": "ours",
        "getattr(sampling_params, 'stop', None)": "None, of pooling, has none; in the table",
    },
    "_server.py": {
        "frame.f_globals.get('__name__', '')": "Python's own",
        "hasattr(response, 'error')": "an error is answered; in the table are the others",
        "chunk.get('choices')": "a chunk of usage; the end of a stream looks for what is left",
        "each.get('finish_reason')": "the same",
    },
    "_stops.py": {
        "getattr(request, 'num_prompt_tokens', None)": "then num_tokens_no_spec",
        "getattr(sampling, 'eos_token_id', None)": "another engine's; in the table",
        "getattr(sampling, 'ignore_eos', False)": "another engine's; in the table",
    },
    "_unchecked.py": {
        "getattr(output, 'prefill_stats', None)": "for a check that need not run",
        "getattr(stats, 'num_cached_tokens', None)": "the same",
    },
    "_by_request.py": {
        "sys.modules.get(name, module)": "not imported yet",
        "getattr(own, 'get_global_experts_capturer', None)": "in the table",
        "hasattr(own, each)": "a fork lacks it; who imports it from ours says so",
        "getattr(user, '__dict__', None)": "Python's own",
    },
    "_weights.py": {
        "getattr(module, 'router', None)": "a refusal that says so",
        "getattr(router, 'zero_expert_type', None)": "ZeroExpertRouter alone has it: in the table",
        "getattr(router, '_compute_routing', None)": "a refusal that says so; in the table",
        "getattr(state.queue, 'output', None)": "None has none; in the table",
        "getattr(untaken, 'outputs', ())": "None has none; in the table",
    },
    "_workers.py": {
        "getattr(_capturer(), 'host_cache', None)": "ours",
        "getattr(scheduler_output, _BLOCKS, None)": "ours",
    },
    "_wrap.py": {"getattr(function, '_routecap', False)": "ours"},
    "routed_experts_capturer.py": {
        "sys.modules.get('torch')": "not imported yet",
        "getattr(capturer, name, None)": "a foreign capturer's; then the class's",
        "getattr(_method('get_device_cache')(), 'forward', None)": "ours",
    },
    "__init__.py": {
        "os.environ.get('VLLM_PLUGINS', '')": "a variable that is not set",
        "os.environ.get(_ASKED, '')": "the same",
    },
}


def with_a_default(tree):
    """Calls that give something where a name is not found."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call):
            continue
        name = each.func.id if isinstance(each.func, ast.Name) else None
        if name == "hasattr" or (name == "getattr" and len(each.args) == 3):
            yield ast.unparse(each)
        method = each.func.attr if isinstance(each.func, ast.Attribute) else None
        owner = ast.unparse(each.func.value) if method else ""
        if method == "get" and each.args:
            fixed = isinstance(each.args[0], ast.Constant)
            if fixed or owner in ("sys.modules", "os.environ"):
                yield ast.unparse(each)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_whatever_is_looked_for_with_a_default_is_known_here(file):
    found = set(with_a_default(ast.parse(file.read_text("utf-8"))))
    if file.name == "_asked.py":  # a request's own words
        found = {each for each in found if not each.startswith("extra.get(")}
    assert found == set(ABSENT.get(file.name, {}))


def names_of(table):
    """(module, place, name) of each name in a table."""
    module = ""
    for line in table.splitlines():
        if line and not line.startswith(" "):
            module = line
        elif place := line.strip():
            head, colon, rest = place.partition(":")
            if colon:
                yield from ((module, place, name) for name in (head, *rest.split()))
            elif "(" in place:
                head, _, rest = place.partition("(")
                yield from ((module, place, name) for name in head.split("."))
                parameters = rest.removesuffix(")").split(", ")
                kept = {"self", "cls", "...", ""}
                yield from ((module, place, name) for name in parameters if name not in kept)
            else:
                yield from ((module, place, name) for name in place.split())


def renamed(tree, name):
    """The source of a module in which nothing has this name any more."""
    for each in ast.walk(tree):
        for field in ("name", "id", "arg", "attr"):
            if getattr(each, field, None) == name:
                setattr(each, field, f"renamed_{name}")
    return ast.unparse(tree)


@pytest.mark.parametrize(
    ("module", "release"),
    [("_by_request", "0.21.0"), ("_by_slot", "0.24.0"), ("_by_slot", "0.30.0")]
    + [("_aux_output", "0.31.0"), ("_aux_output", "0.33.0")],
)
def test_each_name_of_a_table_that_is_renamed_is_named(tmp_path, module, release):
    table = tables(module, release)
    number = tuple(map(int, release.split(".")))
    written = {}
    for name, text in sources(table).items():
        written[name] = tmp_path / name
        written[name].parent.mkdir(parents=True, exist_ok=True)
        written[name].write_text(text)
    folder = tmp_path / "vllm"
    assert not [fit for fit in look(table, folder, number) if fit.why]
    names = sorted(set(names_of(table)))
    modules = {where for where, _, _ in names}
    for where, place, name in names:
        file = tmp_path / file_of(where, modules)
        own = file.read_text()
        file.write_text(renamed(ast.parse(own), name))
        only = f"{where}\n    {place}\n"
        [fit] = look(only, folder, number)
        assert fit.why, (where, place, name)
        assert name in f"{fit.place} {fit.why}"
        file.write_text(own)
    assert len(names) > 150
