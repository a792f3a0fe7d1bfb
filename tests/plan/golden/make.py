"""Makes layouts.json: make.py FOLDER, with what README.md names in FOLDER, and PyTorch.

Each case says which token every row of every rank is, as the layout functions of trainers say it.
The functions run alone, on a CPU: what they ask of Megatron (how many ranks, and which) is
answered here.
"""

import importlib.util
import json
import random
import sys
import types
from pathlib import Path

import torch

FILLER = -1


class Ranks:
    """What a function is told of the rank it runs on."""

    def __init__(self):
        self.context_size = self.tensor_size = 1
        self.context_rank = self.tensor_rank = 0

    def module(self, name):
        mpu = types.ModuleType(name)
        mpu.get_context_parallel_world_size = lambda *_: self.context_size
        mpu.get_context_parallel_rank = lambda *_: self.context_rank
        mpu.get_tensor_model_parallel_world_size = lambda *_: self.tensor_size
        mpu.get_tensor_model_parallel_rank = lambda *_: self.tensor_rank
        mpu.get_pipeline_model_parallel_rank = lambda *_: 0
        return mpu

    # A process group of tensor-parallel ranks.
    def size(self):
        return self.tensor_size

    def rank(self):
        return self.tensor_rank


def stand_in(name, **attributes):
    module = types.ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function(path, name, **around):
    """A single function out of a file, without importing what the file imports."""
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"def {name}("))
    last = next(
        (i for i in range(first + 1, len(lines)) if lines[i] and lines[i][0] not in " )"),
        len(lines),
    )
    exec("\n".join(lines[first:last]), around)  # noqa: S102
    return around[name]


class Trainers:
    def __init__(self, folder):
        self.ranks = Ranks()
        mpu = self.ranks.module("megatron.core.mpu")
        stand_in("megatron")
        core = stand_in("megatron.core", mpu=mpu, parallel_state=mpu)
        core.__path__ = []
        sys.modules["megatron.core.mpu"] = sys.modules["megatron.core.parallel_state"] = mpu

        class PackedSeqParams:
            def __init__(self, **fields):
                self.__dict__.update(fields)

        stand_in("megatron.core.packed_seq_params", PackedSeqParams=PackedSeqParams)
        for name in ("verl", "verl.utils"):
            stand_in(name).__path__ = []
        stand_in("verl.utils.device", is_npu_available=False)
        self.skyrl = self._skyrl(folder / "skyrl")
        stand_in("verl.utils.model", CausalLMOutputForPPO=object)
        self.slime = load(folder / "slime/cp_utils.py", "slime_cp_utils")
        self.verl = load(folder / "verl/models/mcore/util.py", "verl_util")
        self.verl.logger = types.SimpleNamespace(warning_once=lambda *_: None)
        replay = folder / "verl/utils/megatron/router_replay_utils.py"
        self.align = function(replay, "align_r3_router_replay_data", torch=torch)
        self.mask = function(replay, "build_r3_replay_mask", torch=torch)
        self.split = function(
            folder / "megatron_core/mappings.py", "_split_along_first_dim", torch=torch
        )

    def _skyrl(self, folder):
        """SkyRL's replay_utils, between stand-ins for the modules of Megatron that it asks."""

        class RouterReplay:
            """One router, which keeps the rows that it is given."""

            global_router_replay_instances = [None]

            @classmethod
            def set_replay_data(cls, layers):
                [cls.rows] = layers

            @staticmethod
            def set_global_router_replay_action(action):
                pass

        transformer = "megatron.core.transformer"
        for name in (transformer, f"{transformer}.moe"):
            stand_in(name).__path__ = []
        action = types.SimpleNamespace(REPLAY_FORWARD=None)
        stand_in(
            f"{transformer}.moe.router_replay", RouterReplay=RouterReplay, RouterReplayAction=action
        )
        stand_in(f"{transformer}.transformer_block", get_num_layers_to_build=lambda *_, **__: 1)
        stand_in(
            f"{transformer}.transformer_layer", get_transformer_layer_offset=lambda *_, **__: 0
        )
        name = "skyrl.backends.skyrl_train.distributed.megatron.packing_utils"
        sys.modules[name] = self.packing = load(folder / "packing_utils.py", name)
        return load(folder / "replay_utils.py", "skyrl_replay_utils")

    def over_ranks(self, case, rows_of):
        """The case with what rows_of() gives on each of its ranks."""
        ranks = self.ranks
        ranks.context_size, ranks.tensor_size = case["context_size"], case["tensor_size"]
        case["ranks"] = []
        for ranks.context_rank in range(ranks.context_size):
            for ranks.tensor_rank in range(ranks.tensor_size if case["sequence_parallel"] else 1):
                case["ranks"].append(rows_of())
        return case


def numbered(lengths):
    """The number of each token among those of all sequences."""
    tokens = torch.arange(sum(lengths))
    return list(tokens.split(lengths))


def slime(trainers, lengths, context, cp, tp, sequence_parallel, multiple):
    """Rows of all tokens but the last of each sequence; a filler is below 1000."""
    tokens = numbered(lengths)
    rows = [(t[:-1] + 1000).reshape(-1, 1, 1) for t in tokens]

    def rows_of():
        out = trainers.slime.prepare_routed_experts_for_routing_replay(
            rows,
            tokens,
            num_experts=1000,
            data_pad_size_multiplier=multiple,
            sequence_parallel=sequence_parallel,
            allgather_cp=context == "allgather",
        )
        return [max(n - 1000, FILLER) for n in out.flatten().tolist()]

    align = {"align": 1 if context == "allgather" or cp == 1 else 2 * cp}
    if context == "allgather":
        align["align_total"] = cp * tp * multiple
    else:
        align["align_rank"] = tp * multiple
    return {
        "by": "slime",
        "layout": "packed",
        "context": context if cp > 1 else "none",
        "context_size": cp,
        "tensor_size": tp,
        "sequence_parallel": sequence_parallel,
        "lengths": lengths,
        **align,
    }, rows_of


def nested(parts):
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def verl_packed(trainers, lengths, context, cp, tp, fp8, least, bucket):
    """Ids of all tokens but the last of each sequence, and the mask of what is replayed."""
    tokens = numbered(lengths)
    ids = nested([t + 1 for t in tokens])
    routes = trainers.align(nested([(t[:-1] + 1).reshape(-1, 1, 1) for t in tokens]), ids)
    responses = torch.ones(len(lengths), 1)
    mask = trainers.mask(ids, responses)
    options = {
        "use_fp8_padding": fp8,
        "min_local_rows": least,
        "pad_to_length_bucket": bucket,
        "cp_layout": "zigzag" if context == "none" else context,
    }

    def rows_of():
        def own(jagged):
            packed = trainers.verl.preprocess_thd_engine(jagged, **options)[0].squeeze(0)
            return trainers.split(packed, trainers.ranks).flatten().tolist()

        rows = [n - 1 for n in own(routes)]
        replayed = own(mask)
        if [bool(m) for m in replayed] != [n != FILLER for n in rows]:
            raise AssertionError("verl's mask is another than its rows")
        return rows

    each = tp * cp * (2 if context == "zigzag" else 1)
    align, total = trainers.verl._compute_fp8_thd_align_size(each) if fp8 else (each, 1)
    case = {
        "by": "verl",
        "layout": "packed",
        "context": context,
        "context_size": cp,
        "tensor_size": tp,
        "sequence_parallel": tp > 1,
        "lengths": lengths,
        "align": align,
    }
    if bucket:
        total = bucket
    if total > 1:
        case["align_total"] = total
    if least:
        case["least_total"] = least * cp
    return case, rows_of


def verl_padded(trainers, lengths, cp, tp, fp8):
    tokens = numbered(lengths)
    routes = trainers.align(
        nested([(t[:-1] + 1).reshape(-1, 1, 1) for t in tokens]), nested([t + 1 for t in tokens])
    )

    def rows_of():
        rows = trainers.verl.preprocess_bshd_engine(routes, use_fp8_padding=fp8)[0]
        # Megatron's routers see [width, samples], of which sequence parallelism divides the first.
        rows = rows.squeeze(-1).squeeze(-1).transpose(0, 1).contiguous()
        return [n - 1 for n in trainers.split(rows, trainers.ranks).flatten().tolist()]

    case = {
        "by": "verl",
        "layout": "padded_right",
        "sequence_first": True,
        "context": "zigzag" if cp > 1 else "none",
        "context_size": cp,
        "tensor_size": tp,
        "sequence_parallel": tp > 1,
        "lengths": lengths,
    }
    if fp8:
        trainers.ranks.context_size, trainers.ranks.tensor_size = cp, tp
        width = trainers.verl.preprocess_bshd_engine(routes, use_fp8_padding=True)[0].shape[1]
        case["width"] = width * cp
    return case, rows_of


def left_padded(parts):
    """[samples, tokens, ...] of rows [tokens - 1, ...] of each, and the mask of tokens."""
    width = max(len(part) + 1 for part in parts)
    rows = torch.zeros(len(parts), width, *parts[0].shape[1:], dtype=parts[0].dtype)
    mask = torch.zeros(len(parts), width, dtype=torch.int64)
    for part, to, tokens in zip(parts, rows, mask):
        first = width - len(part) - 1
        to[first : width - 1] = part
        tokens[first:] = 1
    return rows, mask


def skyrl(trainers, lengths, cp, tp, packed, fp8):
    rows, mask = left_padded([(t[:-1] + 1).reshape(-1, 1, 1) for t in numbered(lengths)])

    def rows_of():
        trainers.skyrl.setup_per_microbatch_replay_forward(
            rows, mask, types.SimpleNamespace(fp8=fp8), remove_microbatch_padding=packed
        )
        router = sys.modules["megatron.core.transformer.moe.router_replay"].RouterReplay
        return [n - 1 for n in router.rows.flatten().tolist()]

    return {
        "by": "skyrl",
        "layout": "packed" if packed else "padded_right",
        "context": "zigzag" if cp > 1 else "none",
        "context_size": cp,
        "tensor_size": tp,
        "sequence_parallel": tp > 1,
        "lengths": lengths,
        "align": trainers.packing.get_packed_seq_align_size(tp, cp, fp8)
        if packed
        else trainers.packing.get_unpacked_seq_align_size(tp, fp8),
    }, rows_of


def main(folder):
    trainers = Trainers(folder)
    chance = random.Random(20261122)

    def lengths(most):
        few = [chance.randint(1, most) for _ in range(chance.randint(1, 5))]
        return [1, *few] if chance.random() < 0.3 else few

    cases = []
    for cp in (1, 2, 4):
        for context in ("zigzag", "allgather"):
            for tp, sequence_parallel in ((1, False), (2, False), (2, True)):
                for multiple in (1, 4):
                    made = slime(
                        trainers, lengths(40), context, cp, tp, sequence_parallel, multiple
                    )
                    cases.append(trainers.over_ranks(*made))
        for context in ("none",) if cp == 1 else ("zigzag", "contiguous"):
            for tp in (1, 2):
                for fp8, least, bucket in (
                    (False, None, None),
                    (True, None, None),
                    (False, 64, None),
                    (False, None, 96 * cp * tp),
                ):
                    made = verl_packed(trainers, lengths(40), context, cp, tp, fp8, least, bucket)
                    cases.append(trainers.over_ranks(*made))
        for tp in (1, 2):
            for fp8 in (False, True):
                made = verl_padded(trainers, lengths(24), cp, tp, fp8)
                cases.append(trainers.over_ranks(*made))
    for fp8 in (False, True):
        for tp in (1, 2):
            for cp in (1, 2, 4):
                cases.append(trainers.over_ranks(*skyrl(trainers, lengths(40), cp, tp, True, fp8)))
            cases.append(trainers.over_ranks(*skyrl(trainers, lengths(24), 1, tp, False, fp8)))
    text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    Path(__file__).with_name("layouts.json").write_text(f"[\n{text}\n]\n")
    print(len(cases), "cases,", sum(len(case["ranks"]) for case in cases), "ranks")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
