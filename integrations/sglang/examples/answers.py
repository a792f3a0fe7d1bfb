"""Generates with SGLang, and reads which experts every token was sent to.

python3 answers.py MODEL [KEY=VALUE...]      any mixture-of-experts model; settings of the engine
"""

import json
import sys

import routecap
import routecap_sglang


def show(finished):
    """Called in the engine's process for every request, whether it asked or not."""
    print(f"{finished.rid}: {finished.routing.rows} rows, {finished.prompt_tokens} of the prompt")


def main():
    model, *settings = sys.argv[1:]
    routecap_sglang.install(routecap_sglang.Options(callback="answers:show"))
    import sglang

    values = (each.split("=", 1) for each in settings)
    arguments = {name: json.loads(value) for name, value in values}
    engine = sglang.Engine(model_path=model, enable_return_routed_experts=True, **arguments)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 8]]
    outputs = engine.generate(
        input_ids=prompts,
        sampling_params={
            "max_new_tokens": 8,
            "ignore_eos": True,
            "custom_params": {"routed_experts_dtype": "uint8"},
        },
        return_routed_experts=True,
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output["meta_info"]["routed_experts"]
        said = json.loads(answer)
        description = routecap.models.describe(f"{model}/config.json")
        routing = routecap.Routing.from_wire(
            answer, "object", experts=description.experts, layer_map=said["layers"]
        )
        tokens = len(prompt) + len(output["output_ids"])
        print(f"{tokens} tokens, {routing!r}: the last row is {routing.ids()[-1].tolist()}")
    engine.shutdown()


if __name__ == "__main__":
    main()
