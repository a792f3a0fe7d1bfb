#!/usr/bin/env python3
"""Rollouts of verl 0.9.1 with its own agent loop, server and vLLM 0.24, with routing in its batch.

    ROUTECAP_VLLM=1 verl_rollouts.py FOLDER    # makes FOLDER/batch: a DataProto

Ray runs on this machine, with three actors of verl's: the server with an engine, the balancer of
servers, and a worker of the agent loop. Each prompt gets three answers of the model, with a tool's
between them. One thing is done here that verl's trainer does: it starts the server in a placement
group of GPUs, and there are none.
"""

import asyncio
import json
import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import ray
from model import make
from omegaconf import OmegaConf

HERE = Path(__file__).resolve().parent
PROMPTS = [
    "What is a mixture of experts?",
    "Tell me about the sea.",
    "Once upon a time there was a router.",
    "Why?",
]


def config_of(model: Path) -> Any:
    """verl's own configuration, and what differs from it."""
    defaults = files("verl") / "trainer/config/_generated_ppo_megatron_trainer.yaml"
    config = OmegaConf.create(defaults.read_text())
    return OmegaConf.merge(
        config,
        {
            "data": {"max_prompt_length": 96, "max_response_length": 160},
            "actor_rollout_ref": {
                "model": {
                    "path": str(model),
                    "override_config": {"attn_implementation": "eager"},
                },
                "actor": {"megatron": {"router_replay": {"mode": "R3"}}},
                "rollout": {
                    "name": "vllm",
                    "enable_rollout_routing_replay": True,
                    "tensor_model_parallel_size": 1,
                    "max_model_len": 512,
                    "load_format": "auto",
                    "prompt_length": 96,
                    "response_length": 160,
                    "agent": {"num_workers": 1, "default_agent_loop": "tool_agent"},
                    "multi_turn": {
                        "enable": True,
                        "format": "always",
                        "max_assistant_turns": 3,
                        "function_tool_path": str(HERE / "verl_turns.py"),
                    },
                    # Without a GPU.
                    "dtype": "float32",
                    "enforce_eager": True,
                    "free_cache_engine": False,
                    "enable_sleep_mode": False,
                    "engine_kwargs": {
                        "vllm": {
                            "distributed_executor_backend": "uni",
                            "compilation_config": json.dumps({"custom_ops": ["none"]}),
                        }
                    },
                },
            },
        },
    )


@ray.remote
class Server:
    """verl's vLLMHttpServer."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        import on_cpu

        on_cpu.spawn()
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

        self.server = vLLMHttpServer(*arguments, **named)

    async def launch(self) -> str:
        await self.server.launch_server()
        return ":".join(map(str, self.server.get_server_address()))

    async def generate(self, **request: Any) -> Any:
        # A turn has room for all tokens of the response; these leave some for the next.
        request["sampling_params"] = {**request["sampling_params"], "max_tokens": 24}
        output = await self.server.generate(**request)
        dtype = output.routed_experts.dtype
        assert dtype == np.int16, f"routecap gives int16, vLLM's own capture {dtype}"
        return output


async def generate(config: Any) -> Any:
    from verl.experimental.agent_loop.agent_loop import AgentLoopManager
    from verl.protocol import DataProto
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.router import get_router_handle

    settings = config.actor_rollout_ref
    server = Server.remote(
        config=settings.rollout,
        model_config=settings.model,
        rollout_mode=RolloutMode.STANDALONE,
        workers=[],
        replica_rank=0,
        node_rank=0,
        gpus_per_node=0,
        nnodes=1,
        cuda_visible_devices="",
    )
    address = await server.launch.remote()
    balancer = get_router_handle(servers={address: server})
    client = LLMServerClient(config=config, load_balancer_handle=balancer)
    loop = await AgentLoopManager.create(config, client)
    messages = np.empty(len(PROMPTS), object)
    messages[:] = [[{"role": "user", "content": text}] for text in PROMPTS]
    return await loop.generate_sequences(DataProto.from_dict(non_tensors={"raw_prompt": messages}))


def main(folder: Path) -> None:
    os.environ["PYTHONPATH"] = f"{HERE}:{os.environ.get('PYTHONPATH', '')}"  # of Ray's workers
    config = config_of(make(folder / "model"))
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=True)
    batch = asyncio.run(generate(config))
    batch.save_to_disk(folder / "batch")
    rows = batch.batch["routed_experts"]
    print(f"turns {batch.non_tensor_batch['__num_turns__'].tolist()}, rows {tuple(rows.shape)}")
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
