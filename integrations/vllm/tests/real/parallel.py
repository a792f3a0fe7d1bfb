"""Several GPUs: what callers of vLLM's engine get, and what the routers of every rank chose. For
0.21, and from 0.31 on, where vLLM refuses pipelines and --prefix is needed.

    python3 parallel.py tensor|expert|pipeline|data [--ranks N] [--requests N] [--eager] [--sync]
                        [--prefix] [--experts] [--balance] [--router-weights]

    tensor    tensor parallel: workers in processes of their own, which all route the same tokens.
              From 0.31 on also without a GPU
    expert    the same, and each rank has its own experts
    pipeline  pipeline parallel: each rank has layers of its own. Also without a GPU
    data      data parallel: an engine for each rank, with requests of its own. Also without a GPU

With --prefix every other prompt begins as another one did, whose rows come out of the workers'
stores. With --experts ranks of data parallelism have their own experts. With --balance vLLM's
balancer puts replicas of experts on ranks, and moves them (expert). With --router-weights the
weights of the experts are compared too, bit for bit.

Prints a line for each kind of row, and PASSED or FAILED. Of each request without its rows it says
what is known. One rank shows the program itself.
"""

import argparse
import collections
import itertools
import os
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("tensor", "expert", "pipeline", "data"))
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--eager", action="store_true")
parser.add_argument("--sync", action="store_true", help="no async scheduling")
parser.add_argument("--experts", action="store_true", help="divided over the ranks of data")
parser.add_argument("--balance", action="store_true", help="experts, by vLLM's balancer")
parser.add_argument("--prefix", action="store_true", help="with the prefix cache")
parser.add_argument("--router-weights", action="store_true", help="compare these too")
parser.add_argument("--requests", type=int, default=48, help="of each engine")
parser.add_argument("--kv", type=float, default=2, help="GiB of each rank's cache")
options = parser.parse_args()


def in_every_process():
    """An oracle comes with vLLM's plugins, into every process that they come into."""
    folder = Path(tempfile.mkdtemp())
    (folder / "oracle_plugin.py").write_text(
        "import engine\nimport releases\n\n\ndef install():\n"
        "    if not hasattr(engine, 'ORACLE'):\n"
        "        if releases.AUX_OUTPUT:\n"
        "            from oracle import Oracle\n"
        "            engine.ORACLE = Oracle(releases.BLOCK)\n"
        "        else:\n"
        "            engine.ORACLE = engine.Oracle(8192)\n"
        "    if engine.ON_CPU:\n        engine.cpu.without_streams()\n"
    )
    about = folder / "oracle_plugin-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: oracle_plugin\nVersion: 0\n")
    (about / "entry_points.txt").write_text(
        "[vllm.general_plugins]\noracle = oracle_plugin:install\n"
    )
    sys.path[:0] = [str(folder), str(HERE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(folder), str(HERE), os.environ.get("PYTHONPATH", "")]
    )
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    os.environ["ROUTECAP_VLLM"] = "1"
    if options.router_weights:
        os.environ["ROUTECAP_VLLM_WEIGHTS"] = "1"
    os.environ.setdefault("ROUTECAP_VLLM_STORE_BYTES", str(1 << 26))
    os.environ["PYTHONHASHSEED"] = "0"  # engines have the same hashes of blocks
    if options.kind == "data":  # its ranks step together only in processes of their own
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"


# In each worker.


def draw_weights(worker):
    import engine

    engine.draw_weights(worker.model_runner.get_model(), 1)


def forget(worker):
    import engine
    import releases

    if not releases.AUX_OUTPUT:  # there it hears of requests alone
        engine.ORACLE.forget()


def rows(worker):
    """{request: {position: [([layers, k], version)]}}, of what it computed."""
    import engine
    import releases

    found = {}
    if not releases.AUX_OUTPUT:
        found = engine.ORACLE.rows()
    else:
        assert not +engine.ORACLE.odd, engine.ORACLE.odd
        for name, lives in engine.ORACLE.lives.items():
            own = {at: [(row.ids, row.version)] for at, row in lives[-1].items() if not row.hit}
            found[name] = own
    return pickle.dumps(found)  # vLLM's own encoding leaves arrays in parts


def one_engine(rank):
    """Traffic through one engine, judged. Its counts."""
    import engine
    import numpy as np
    import releases
    import router_weights

    model, vocabulary = ("tiny", 2048) if engine.ON_CPU else ("small", 32768)
    scale = 8 if engine.ON_CPU else 1
    more = engine.cache_of(options.kv) | {"enable_prefix_caching": options.prefix}
    if releases.AUX_OUTPUT:
        more["block_size"] = releases.BLOCK
    if options.kind != "data" and options.ranks > 1:
        size = "pipeline" if options.kind == "pipeline" else "tensor"
        more[f"{size}_parallel_size"] = options.ranks
        more["distributed_executor_backend"] = "mp"
        more["enable_expert_parallel"] = options.kind == "expert"
        more["async_scheduling"] = not options.sync
    if options.experts:
        more["enable_expert_parallel"] = True
    if options.balance:
        more["enable_eplb"] = True
        more["eplb_config"] = {"window_size": 20, "step_interval": 20, "num_redundant_experts": 4}
    if engine.ON_CPU:
        engine.cpu.without_streams()
    llm = engine.LLM(
        **engine.options_of(
            model,
            True,
            eager=options.eager,
            max_num_batched_tokens=1024 // scale,
            max_model_len=2048 // scale,
            max_num_seqs=64 // scale,
            **more,
        )
    )
    llm.collective_rpc(draw_weights)
    llm.collective_rpc(forget)

    draw = random.Random(rank)
    requests, names, outputs = {}, {}, {}
    for i in range(options.requests):
        prompt = [draw.randrange(vocabulary) for _ in range(draw.randrange(1, 900 // scale))]
        if options.prefix and i % 2:
            prompt = (requests[f"r{i // 8 * 4}"] + prompt)[: 900 // scale]
        most, stop = draw.choice((1, 2, 17, 64)), {}
        if i % 3 == 2:
            stop["stop_token_ids"] = list(range(0, vocabulary, 40))
        requests[f"r{i}"] = prompt
        names[f"r{i}"] = llm.llm_engine.add_request(
            f"r{i}", {"prompt_token_ids": prompt}, engine.sampling(most, **stop)
        )
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            outputs[output.request_id] = output

    ranks, counts = list(map(pickle.loads, llm.collective_rpc(rows))), collections.Counter()
    routes = engine.layers_that_route(llm)
    without = []
    of_prefix = {}  # what was computed behind the same tokens

    def computed_of(name):
        """[(what stands for all tokens up to it, what ranks chose or None)] of each position."""
        tokens = requests[name] + list(outputs[name].outputs[0].token_ids)
        keys = list(itertools.accumulate(tokens, lambda *both: hash(both)))
        for position, key in enumerate(keys[:-1]):
            known = [computed.get(names[name], {}).get(position) for computed in ranks]
            known = [each[-1][0] for each in known] if all(known) else None
            if known is not None and options.kind == "pipeline":
                known = [np.concatenate(known)]
            yield key, known

    for name in requests:
        for key, known in computed_of(name):
            if known is not None:
                of_prefix.setdefault(key, []).append(known[0])
    for name, prompt in requests.items():
        output = outputs[name]
        completion = output.outputs[0]
        ids, _ = engine.given(output, routes) or ((), ())
        if len(ids):
            ids = router_weights.given(ids, output, routes)
        n = len(prompt) + len(completion.token_ids) - 1
        counts["requests"] += 1
        counts["requests that ended by a stop token"] += completion.stop_reason is not None
        if len(ids) != n:
            counts[f"WRONG {len(ids)} rows of {n}"] += 1
            without.append((names[name], n, completion.finish_reason, completion.stop_reason))
            continue
        for row, (key, known) in zip(ids, computed_of(name), strict=True):
            missing = router_weights.is_missing(row)
            if known is None:
                found = any((row == each).all() for each in of_prefix.get(key, ()))
                what = "rows out of the prefix cache, by the stores"
                counts[what if found else f"WRONG {'missing: ' if missing else ''}{what}"] += 1
                continue
            if not all((each == known[0]).all() for each in known):
                counts["rows that ranks route differently"] += 1
            if (row == known[0]).all():
                counts["rows equal to what the first rank chose"] += 1
            else:
                counts["WRONG missing" if missing else "WRONG rows"] += 1
    for name, n, finish, stop in without:
        steps = [len(computed.get(name, ())) for computed in ranks]
        print(f"engine {rank}: {name} has not its {n} rows; it ended by {finish}, {stop}", end="; ")
        print(f"routers saw {steps} positions of it")
    counts["ranks asked"] = len(ranks)
    return counts


def main():
    rank = int(os.environ.get("VLLM_DP_RANK", -1))
    if options.kind == "data" and rank < 0 and options.ranks > 1:
        shared = {
            "VLLM_DP_SIZE": str(options.ranks),
            "VLLM_DP_MASTER_IP": "127.0.0.1",
            "VLLM_DP_MASTER_PORT": str(random.randrange(20000, 30000)),
        }
        children = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env=os.environ | shared | {"VLLM_DP_RANK": str(r), "VLLM_DP_RANK_LOCAL": str(r)},
            )
            for r in range(options.ranks)
        ]
        raise SystemExit(max(abs(child.wait()) for child in children))
    in_every_process()
    counts = one_engine(max(rank, 0))
    for what, count in sorted(counts.items()):
        print(f"{count:9d}  {what}")
    wrong = any(what.startswith("WRONG") for what in counts)
    few = counts["rows equal to what the first rank chose"] < 1000
    few |= options.prefix and not counts["rows out of the prefix cache, by the stores"]
    print("FAILED" if wrong or few else "PASSED", flush=True)
    raise SystemExit(bool(wrong or few))


if __name__ == "__main__":
    main()
