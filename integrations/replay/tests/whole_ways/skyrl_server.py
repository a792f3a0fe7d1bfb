#!/usr/bin/env python3
"""SkyRL's server of vLLM, as `python -m` starts it; without a GPU by on_cpu.py."""

if __name__ == "__main__":
    import on_cpu

    on_cpu.spawn()
    from skyrl.backends.skyrl_train.inference_servers.vllm_server_actor import main

    main()
