"""Random mixtures of what is done to a model, its caches and a capture, judged by torch.topk.

Every forward pass, captured or not, runs with torch.topk wrapped, which tells for each of its
columns what the routers chose. A model of the caches, lists of columns, is moved by the same
operations as the caches. A routing is right if its rows are the columns of one of the sequences
that a cache had, in their order, or missing. ROUTECAP_MIXTURES is how many seeds each family gets.
"""

import copy
import io
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from families import CACHE, EXPERTS, FAMILIES, PAD, RESET_EMPTIES, VOCABULARY, K, make
from routecap_replay.transformers import attach as replay_in
from routecap_transformers import attach
from transformers import DynamicCache, StaticCache

MIXED = ["qwen3_moe", "mixtral", "olmoe", "deepseek_v3", "gpt_oss", "longcat_flash"]
SEEDS = int(os.environ.get("ROUTECAP_MIXTURES", "2"))
ROOM = 64

Column = np.ndarray
"""[layers, k] what the routers chose for a token."""


class Sequence:
    """One row of a cache: its columns, and which of them the last mask showed."""

    def __init__(self, columns: list[Column], shown: list[bool]) -> None:
        self.columns, self.shown = columns, shown

    def copy(self) -> "Sequence":
        return Sequence(list(self.columns), list(self.shown))

    def tokens(self) -> list[Column]:
        return [column for column, shown in zip(self.columns, self.shown) if shown]


class Held:
    """A cache, and what it holds."""

    def __init__(self, cache: Any, sequences: list[Sequence], mode: Any) -> None:
        self.cache, self.sequences, self.mode = cache, sequences, mode
        self.saved: tuple[list[dict[str, Any]], list[Sequence]] | None = None

    def __len__(self) -> int:
        return len(self.sequences[0].columns) if self.sequences else 0


class World:
    def __init__(self, family: str, seed: int) -> None:
        self.random = random.Random(f"{family} {seed}")
        self.family, self.model = family, make(family)
        self.other = make(family, seed=1)
        self.layers = len(FAMILIES[family][1])
        self.experts = EXPERTS + 2 * (family == "longcat_flash")  # two of which compute nothing
        if family == "longcat_flash":
            for module in self.model.modules():
                if type(module).__name__.endswith("Experts"):
                    _rewrite(module)
        self.caches: list[Held] = []
        self.seen: list[list[Column]] = []
        """The sequences that there were since the last take."""
        self.capture: Any = None
        self.log = [f"seed {seed}"]
        self.right = self.rows = 0
        torch.manual_seed(self.random.randrange(1 << 30))

    # ---- What happened

    def remember(self) -> None:
        self.seen += [sequence.tokens() for held in self.caches for sequence in held.sequences]

    def run(
        self, call: Callable[[], Any], mode: Any = torch.no_grad
    ) -> tuple[Any, list[np.ndarray]]:
        """What a call returns, and for each forward pass in it [rows, layers, k]."""
        chosen: list[np.ndarray] = []
        topk = torch.topk

        def wrapped(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
            result = topk(scores, k, *args, **kwargs)
            if scores.shape[-1] == self.experts and k == K:
                chosen.append(result.indices.reshape(-1, K).sort(-1).values.numpy())
            return result

        torch.topk = wrapped
        try:
            with mode():
                output = call()
        finally:
            torch.topk = topk
        layers = self.layers
        assert len(chosen) % layers == 0
        return output, [np.stack(chosen[i : i + layers], 1) for i in range(0, len(chosen), layers)]

    def grow(self, held: Held, ids: np.ndarray, mask: torch.Tensor | None) -> None:
        """A pass has appended columns [rows * length, layers, k]."""
        rows = len(held.sequences)
        for row, columns in enumerate(ids.reshape(rows, -1, *ids.shape[1:])):
            sequence = held.sequences[row]
            sequence.columns += list(columns)
            end = len(sequence.columns)
            sequence.shown = [True] * end if mask is None else (mask[row, :end] != 0).tolist()
        self.remember()

    # ---- What is done

    def attach(self) -> None:
        if self.capture is not None:
            self.take()
            self.capture.detach()
            self.capture = None
            if self.random.random() < 0.3:
                return
        store = self.random.choice([None, 1 << 22])
        self.capture = attach(self.model, store=store, rows=512)
        self.log.append(f"attach(store={store})")
        self.seen = []
        self.remember()

    def take(self) -> None:
        if self.capture is None:
            return
        self.remember()
        if self.random.random() < 0.1:
            self.capture.discard()
        else:
            for routing in self.capture.take():
                self.judge(routing)
        self.log.append("take")
        self.seen = []
        self.remember()

    def judge(self, routing: Any) -> None:
        ids = np.sort(routing.ids().astype(np.int64), -1)
        there = (ids >= 0).all((1, 2))
        for tokens in self.seen:
            if len(tokens) >= len(ids) and all(
                (ids[i] == tokens[i]).all() for i in range(len(ids)) if there[i]
            ):
                break
        else:
            closest = max(
                (sum((ids[i] == tokens[i]).all() for i in range(min(len(ids), len(tokens)))))
                for tokens in self.seen
            )
            raise AssertionError(
                f"{self.family}: a routing of {len(ids)} rows, {there.sum()} of them there, is of no"
                f" sequence; the closest has {closest} of them. " + "; ".join(self.log)
            )
        self.right, self.rows = self.right + int(there.sum()), self.rows + len(ids)

    def mask_of(self, held: Held, length: int) -> torch.Tensor | None:
        """For so many columns more: as it was, or with others hidden."""
        roll = self.random.random()
        shown = torch.tensor([sequence.shown for sequence in held.sequences], dtype=torch.long)
        shown = shown.view(len(held.sequences), -1)
        if roll < 0.35 and bool(shown.all()):
            return None
        if roll > 0.8 and len(held) > 3:  # the ends of some rows are padding from now on
            row = self.random.randrange(len(shown))
            shown[row, len(held) - self.random.randrange(1, 3) :] = 0
        elif roll > 0.75 and len(held) > 3:
            shown[self.random.randrange(len(shown)), self.random.randrange(len(held))] ^= 1
        return torch.cat([shown, torch.ones(len(shown), length, dtype=torch.long)], 1)

    def pass_on(self, held: Held, length: int, mask: torch.Tensor | None, model: Any) -> None:
        tokens = torch.randint(3, VOCABULARY, (len(held.sequences), length))
        options: dict[str, Any] = {CACHE: held.cache, "use_cache": True}
        if mask is not None and self.random.random() < 0.7:
            options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -length:]
        style = self.random.choice(["names", "positions", "decoder", "embeddings"])
        self.log.append(f"forward {len(tokens)}x{length} after {len(held)} by {style}")
        if style == "decoder":
            model = model.model
        if style == "embeddings":
            options["inputs_embeds"] = model.get_input_embeddings()(tokens)
            call = lambda: model(attention_mask=mask, **options)  # noqa: E731
        elif style == "names":
            call = lambda: model(input_ids=tokens, attention_mask=mask, **options)  # noqa: E731
        else:
            call = lambda: model(tokens, mask, **options)  # noqa: E731
        output, (ids,) = self.run(call, held.mode)
        held.cache = output[CACHE]
        self.grow(held, ids, mask)

    def new(self) -> None:
        rows, length = self.random.randrange(1, 4), self.random.randrange(2, 7)
        static = self.random.random() < 0.2
        if static:
            cache: Any = StaticCache(config=self.model.config, max_cache_len=ROOM)
        else:
            cache = DynamicCache(config=self.model.config) if self.random.random() < 0.7 else None
        mode = torch.inference_mode if self.random.random() < 0.15 else torch.no_grad
        held = Held(cache, [Sequence([], []) for _ in range(rows)], mode)
        self.log.append(mode.__name__)
        mask = None
        if self.random.random() < 0.5:
            mask = torch.ones(rows, length, dtype=torch.long)
            for row in range(rows):
                mask[row, : self.random.randrange(length)] = 0
        self.caches = [*self.caches[-4:], held]
        self.pass_on(held, length, mask, self.model)

    def some(self) -> Held | None:
        self.caches = [held for held in self.caches if 0 < len(held) < ROOM - 12]
        return self.random.choice(self.caches) if self.caches else None

    def go_on(self, held: Held | None = None, length: int = 0) -> None:
        held = held or self.some()
        if held is not None:
            length = length or self.random.choice([1, 1, 2, 3])
            model = self.other if self.random.random() < 0.08 else self.model
            self.pass_on(held, length, self.mask_of(held, length), model)

    def generate(self, held: Held | None = None) -> None:
        chunk = self.random.choice([None, None, None, 1, 1, 2, 3])
        if held is None and self.random.random() < 0.4:
            sequences = [Sequence([], []) for _ in range(self.random.randrange(1, 4))]
            held = Held(DynamicCache(config=self.model.config), sequences, torch.no_grad)
            self.caches = [*self.caches[-4:], held]
        held = held or self.some()
        if held is None:
            return
        rows, more = len(held.sequences), self.random.choice([1, 1, 2])
        if len(held):
            mask = self.mask_of(held, more)
            chunk = None  # chunks are of prompts that begin
        else:
            more = self.random.randrange(2, 7)
            mask = torch.ones(rows, more, dtype=torch.long)
            for row in range(rows):
                mask[row, : self.random.randrange(more)] = 0
        if mask is None:
            mask = torch.ones(rows, len(held) + more, dtype=torch.long)
        tokens = torch.randint(3, VOCABULARY, (rows, len(held) + more))
        fails = self.random.random() < 0.15
        options: dict[str, Any] = {}
        if fails:
            options["stopping_criteria"] = [_failing]
        if chunk:
            options["prefill_chunk_size"] = chunk
        self.log.append(
            f"generate after {len(held)} + {more}{', fails' if fails else ''}, by {chunk}"
        )

        def call() -> None:
            try:
                self.model.generate(
                    tokens, attention_mask=mask, **{CACHE: held.cache}, max_new_tokens=3,
                    do_sample=True, temperature=5.0, eos_token_id=None, pad_token_id=PAD, **options,
                )  # fmt: skip
            except MemoryError:
                pass

        _, passes = self.run(call, held.mode)
        mask = torch.cat([mask, torch.ones(rows, len(passes), dtype=torch.long)], 1)
        for ids in passes:
            self.grow(held, ids, mask)

    def pause(self) -> None:
        if self.capture is None:
            return self.go_on()
        self.log.append("paused:")
        with self.capture.paused():
            for _ in range(self.random.randrange(1, 3)):
                self.random.choice([self.go_on, self.go_on, self.crop, self.generate, self.copy])()
        self.log.append("to here")

    def crop(self, held: Held | None = None) -> int:
        held = held or self.some()
        if held is None or isinstance(held.cache, StaticCache) or len(held) < 3:
            return 0
        if self.family == "gpt_oss" and len(held) >= 8:  # its windows are full
            return 0
        count = self.random.randrange(1, len(held) - 1)
        each = self.random.random() < 0.4
        self.log.append(f"crop{' each layer' if each else ''}(-{count})")
        for layer in held.cache.layers if each else [held.cache]:
            layer.crop(-count)
        for sequence in held.sequences:
            del sequence.columns[-count:], sequence.shown[-count:]
        self.remember()
        return count

    def reorder(self, held: Held | None = None) -> None:
        held = held or self.some()
        if held is None or isinstance(held.cache, StaticCache):
            return
        name = self.random.choice(
            ["reorder_cache", "batch_select_indices", "batch_repeat_interleave", "by hand"]
        )
        rows = len(held.sequences)
        order = [self.random.randrange(rows) for _ in range(rows)]
        if name == "batch_select_indices":
            order = sorted(self.random.sample(range(rows), self.random.randrange(1, rows + 1)))
        if name == "batch_repeat_interleave":
            if rows > 3:
                return
            order = [row for row in range(rows) for _ in range(2)]
        each = self.random.random() < 0.4
        self.log.append(f"{name}{' each layer' if each else ''} {order}")
        for part in held.cache.layers if each or name == "by hand" else [held.cache]:
            if name == "by hand":
                part.keys, part.values = part.keys[order], part.values[order]
            else:
                getattr(part, name)(2 if "repeat" in name else torch.tensor(order))
        held.sequences = [held.sequences[row].copy() for row in order]
        self.remember()

    def reset(self) -> None:
        held = self.some()
        if held is not None and (RESET_EMPTIES or isinstance(held.cache, StaticCache)):
            self.log.append("reset")
            held.cache.reset()
            mask = None
            held.sequences = [Sequence([], []) for _ in held.sequences]
            self.pass_on(held, self.random.randrange(1, 5), mask, self.model)

    def copy(self, held: Held | None = None) -> None:
        held = held or self.some()
        if held is None:
            return
        if self.random.random() < 0.8:
            self.log.append("deepcopy")
            cache = copy.deepcopy(held.cache)
        else:
            self.log.append("save and load")
            file = io.BytesIO()
            torch.save(held.cache, file)
            cache = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        copies = [sequence.copy() for sequence in held.sequences]
        self.caches.append(Held(cache, copies, held.mode))

    def exchange(self) -> None:
        """Rows change their places, in the tensors that the cache has."""
        if (held := self.some()) is None:
            return
        order = list(range(len(held.sequences)))
        self.random.shuffle(order)
        self.log.append(f"in place {order}")
        with held.mode():
            for layer in held.cache.layers:
                for each in layer.keys, layer.values:
                    each.copy_(each[order])
        held.sequences = [held.sequences[row].copy() for row in order]
        self.remember()

    def save_or_put_back(self) -> None:
        """What a static cache had once stands there again, in the same tensors."""
        self.caches = [held for held in self.caches if 0 < len(held) < ROOM - 12]
        static = [held for held in self.caches if isinstance(held.cache, StaticCache)]
        if not static:
            return
        held = self.random.choice(static)
        with held.mode():
            if held.saved is None:
                self.log.append("save a static cache")
                layers = [
                    {
                        name: value.clone() if isinstance(value, torch.Tensor) else value
                        for name, value in vars(layer).items()
                        if isinstance(value, (torch.Tensor, int))
                    }
                    for layer in held.cache.layers
                ]
                held.saved = layers, [sequence.copy() for sequence in held.sequences]
                return
            self.log.append("put a static cache back")
            layers, sequences = held.saved
            for layer, values in zip(held.cache.layers, layers):
                for name, value in values.items():
                    if isinstance(value, torch.Tensor):
                        getattr(layer, name).copy_(value)
                    else:
                        setattr(layer, name, value)
        held.sequences = [sequence.copy() for sequence in sequences]
        self.remember()

    # ---- What follows one another in programs

    def conversation(self) -> None:
        """Turns, of which some rows end early and are hidden from the next."""
        if (held := self.some()) is not None:
            for _ in range(3):
                self.generate(held)

    def branches(self) -> None:
        """A prompt of which a part is another in every branch."""
        if (held := self.some()) is not None:
            for _ in range(3):
                self.copy(held)
                if count := self.crop(held):
                    self.go_on(held, count)
            self.copy(held)
            self.go_on(self.caches[-1])

    def anew(self) -> None:
        """Another capture of a cache that goes on."""
        self.attach()
        if (held := self.some()) is not None:
            for _ in range(3):
                self.go_on(held)
                self.reorder(held)
            self.go_on(held)

    def aside(self) -> None:
        """Other tokens stand in a cache in the place of those that were cut."""
        if (held := self.some()) is None or self.capture is None:
            return
        if count := self.crop(held):
            with self.capture.paused():
                self.log.append("paused")
                self.go_on(held, count)
            self.go_on(held)

    def replay(self) -> None:
        """Another model, which would choose otherwise, is given what this one chose."""
        if self.capture is None:
            return
        self.take()
        tokens = [torch.randint(3, VOCABULARY, (self.random.randrange(2, 6),)) for _ in range(3)]
        with torch.no_grad():
            for each in tokens:
                self.model(input_ids=each[None], use_cache=False)
        routings = self.capture.take()
        length = max(map(len, tokens)) + 1
        left = self.random.random() < 0.5
        padded, mask = torch.zeros(2, 3, length, dtype=torch.long)
        for row, each in enumerate(tokens):
            begin = length - len(each) if left else 0
            padded[row, begin : begin + len(each)] = each
            mask[row, begin : begin + len(each)] = 1
        style = self.random.choice(["names", "positions"])
        decoder = self.random.choice([self.other, self.other.model])
        self.log.append(f"replay by {style}, padded {'left' if left else 'right'}")
        chosen: list[np.ndarray] = []
        hooks = [
            module.register_forward_pre_hook(
                lambda module, args: chosen.append(args[1].reshape(-1, K).sort(-1).values.numpy())
            )
            for module in self.other.modules()
            if type(module).__name__.endswith("Experts")
        ]  # torch.topk is what replay stands in for
        with replay_in(self.other) as replay, replay(routings), torch.no_grad():
            if style == "names":
                decoder(input_ids=padded, attention_mask=mask, use_cache=False)
            else:
                decoder(padded, mask, use_cache=False)
        for hook in hooks:
            hook.remove()
        ids = np.stack(chosen, 1)
        for row, routing in enumerate(routings):
            given = np.sort(routing.ids().astype(np.int64), -1)
            seen = ids.reshape(3, length, *ids.shape[1:])[row][mask[row].numpy() != 0]
            assert (given == seen).all(), f"{self.family}: other rows; " + "; ".join(self.log)


def _rewrite(experts: Any) -> None:
    """Let it write over ids that it does not need, as engines do, where a token has some."""
    forward = experts.forward

    def rewriting(states: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = forward(states, ids, weights)
        if (ids >= EXPERTS).any():
            ids[ids >= EXPERTS] = 0
        return output

    experts.forward = rewriting


def _failing(*unused: Any, **options: Any) -> Any:
    raise MemoryError


ACTIONS = (
    [World.new] * 3
    + [World.go_on] * 6
    + [World.generate] * 2
    + [World.crop] * 3
    + [World.reorder] * 3
    + [World.copy] * 3
    + [World.pause] * 2
    + [World.take] * 2
    + [World.exchange, World.save_or_put_back, World.save_or_put_back]
    + [World.reset, World.attach, World.replay, World.conversation, World.branches]
    + [World.anew, World.aside]
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", MIXED)
def test_every_row_of_a_random_mixture_is_its_tokens_or_missing(family: str) -> None:
    right = rows = 0
    for seed in range(SEEDS):
        world = World(family, seed)
        world.attach()
        for _ in range(50):
            world.random.choice(ACTIONS)(world)
        world.take()
        if world.capture is not None:
            world.capture.close()
        right, rows = right + world.right, rows + world.rows
    assert right > rows / 3 > 0  # most is followed, and not only left missing
    print(f"{family}: {right} of {rows} rows are there")
