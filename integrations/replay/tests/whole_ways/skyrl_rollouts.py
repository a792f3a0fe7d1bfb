#!/usr/bin/env python3
"""Rollouts of SkyRL 0.4.0 with its own generator, client, server and vLLM 0.30, with routing in its
batch.

    ROUTECAP_VLLM=1 skyrl_rollouts.py FOLDER       # makes FOLDER/batch

SkyRL's server runs as its command starts it, its generator and its client in this process. Each
prompt gets three answers of the model, with words of an environment between them. Of each turn the
client asks for the rows that it lacks, and SkyRL's trace joins them.
"""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import skyrl_gym
from model import make
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteInferenceClient,
)
from skyrl.train.config import (
    GeneratorConfig,
    InferenceEngineConfig,
    SamplingParams,
    SkyRLGymConfig,
)
from skyrl.train.generators.base import GeneratorInput
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from transformers import AutoTokenizer

PROMPTS = [
    "What is a mixture of experts?",
    "Tell me about the sea.",
    "Once upon a time there was a router.",
    "Why?",
]


class Counting(BaseTextEnv):
    """Counts the letters of an answer, and asks for the next."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        text = f"It has {len(action)} letters. Go on."
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": text}],
            reward=float(len(action) % 3),
            done=self.turns == 3,
            metadata={},
        )


def serve(model: Path) -> tuple[subprocess.Popen[bytes], str]:
    """SkyRL's server, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, Path(__file__).with_name("skyrl_server.py")]
    command += ["--model", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enable-return-routed-experts", "--max-model-len", "512"]
    command += ["--generation-config", "vllm", "--disable-uvicorn-access-log"]
    if os.environ.get("VLLM_ENGINE_ON_CPU") == "1":
        command += ["--dtype", "float32", "--enforce-eager", "--block-size", "32"]
        command += ["--worker-cls", "vllm.v1.worker.cpu_worker.CPUWorker"]
        command += ["--distributed-executor-backend", "uni"]
        command += ["--compilation-config", '{"custom_ops": ["none"]}']
    server = subprocess.Popen(command)
    address = f"http://127.0.0.1:{port}"
    while True:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return server, address
        except urllib.error.URLError:
            if server.poll() is not None:
                raise SystemExit(f"the server ended with {server.returncode}") from None
            time.sleep(1)


async def generate(address: str, model: Path) -> Any:
    settings = GeneratorConfig(
        inference_engine=InferenceEngineConfig(enable_return_routed_experts=True),
        max_turns=3,
        max_input_length=400,
        sampling_params=SamplingParams(max_generate_length=24),
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    client = RemoteInferenceClient(
        proxy_url=address,
        server_urls=[address],
        data_parallel_size=1,
        model_name=str(model),
        enable_return_routed_experts=True,
        tokenizer=tokenizer,
    )
    skyrl_gym.register(id="counting", entry_point=Counting)
    generator = SkyRLGymGenerator(settings, SkyRLGymConfig(), client, tokenizer)
    sampling = {"max_tokens": 24, "temperature": 1.0, "logprobs": 0}
    output = await generator.generate(
        GeneratorInput(
            prompts=[[{"role": "user", "content": text}] for text in PROMPTS],
            env_classes=["counting"] * len(PROMPTS),
            env_extras=[{} for _ in PROMPTS],
            sampling_params=sampling,
            trajectory_ids=None,
            batch_metadata=None,
        )
    )
    await client.teardown()
    return output


def main(folder: Path) -> None:
    model = make(folder / "model")
    server, address = serve(model)
    try:
        output = asyncio.run(generate(address, model))
    finally:
        server.terminate()
        server.wait()
    (folder / "batch").write_bytes(pickle.dumps(dict(output)))
    for rows, mask in zip(output["rollout_expert_indices"], output["loss_masks"]):
        print(f"rows {rows.shape} of {rows.dtype}, {sum(mask)} of {len(mask)} tokens sampled")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
