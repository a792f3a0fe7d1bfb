"""Two witnesses of the routing that share no code with routecap or with the tap: what the engine
computed with, and the same model elsewhere; and
the judge who hears them.
"""

import numpy as np
import torch
import transformers

import cpu_kernels

TIE = 1e-5  # difference of the last chosen and the first other probability under which two engines may choose differently


class Recording:
    """The ids that the expert kernel was called with, in their order.

    Which row is whose is read where attention reads it: the batch's starts and positions.
    """

    def __init__(self, runner):
        self._runner = runner
        self._rows = []  # of the forward pass that runs: their ids of layer 0, 1, ...
        self.ids = {}  # request, position, token: the same, once for each time that it was computed
        self.steps = []  # request: rows
        runner.model.register_forward_pre_hook(self._begin, with_kwargs=True)
        cpu_kernels.observers.append(self._observe)

    def _begin(self, model, args, kwargs):
        batch, starts = self._runner.input_batch, self._runner.query_start_loc.np
        positions, tokens = kwargs["positions"].tolist(), kwargs["input_ids"].tolist()
        self._rows = []
        self.steps.append({})
        for request, start, end in zip(batch.req_ids, starts, starts[1:]):
            self.steps[-1][request] = int(end - start)
            for row in range(start, end):
                self._rows.append([])
                self.ids.setdefault((request, positions[row], tokens[row]), []).append(
                    self._rows[-1]
                )

    def _observe(self, ids):
        for row, chosen in zip(self._rows, ids.tolist()):
            row.append(chosen)

    def of(self, request, tokens):
        """For each of these tokens, from the first on: its ids, once for each time that it was
        computed.
        """
        return [
            self.ids.get((request, position, token), []) for position, token in enumerate(tokens)
        ]


class Reference:
    """The model in transformers, in one forward pass over a whole sequence."""

    def __init__(self, folder):
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        self._routers = []  # of a forward pass: logits and ids
        for name, module in self._model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(
                    lambda module, args, output: self._routers.append((output[0], output[2]))
                )

    def __call__(self, tokens):
        """For each token, [tokens, layers]: the ids in ascending order, [..., k], and whether the
        choice was a tie.
        """
        self._routers.clear()
        with torch.no_grad():
            self._model(torch.tensor([tokens]), use_cache=False)
        ids = torch.stack([ids for _, ids in self._routers], 1)
        ranked = (
            torch.stack([logits for logits, _ in self._routers], 1)
            .softmax(-1)
            .sort(descending=True)
            .values
        )
        k = ids.shape[-1]
        return ids.sort().values.numpy(), (ranked[..., k - 1] - ranked[..., k] < TIE).numpy()


class Judge:
    """Counts what holds and what does not."""

    def __init__(self, engine, reference):
        self.engine, self.reference = engine, reference
        self.passed = self.failed = 0
        self.sentences = []  # what did not hold, of the situation at hand
        self.rows = self.ties = 0

    def expect(self, holds, sentence):
        if not holds:
            self.sentences.append(sentence)

    def rows_are_right(self, ended, missing=0):
        """All rows of a request but the first `missing` are there, and what the engine computed
        with.
        """
        routing, count = ended.routing, len(ended.tokens) - 1
        self.expect(
            routing is not None and routing.rows == count,
            f"{ended.id} has a row for each of its {count + 1} tokens but the last",
        )
        if routing is None or routing.rows != count:
            return
        valid = routing.mask()
        self.expect(
            valid[missing:].all() and not valid[:missing].any(),
            f"{ended.id}: {missing} rows are missing, not {(~valid).any(1).sum()}",
        )
        ids = routing.ids()
        recorded = self.engine.recording.of(ended.id, ended.tokens[:-1])
        all_computed = (
            all(recorded[ended.cached :]) or ended.id in self.engine.preempted
        )  # which may find more in the cache afterwards
        self.expect(all_computed, f"{ended.id}: what was not cached was computed")
        wrong = sum(
            bool(computed) and row.tolist() not in computed for row, computed in zip(ids, recorded)
        )
        self.expect(
            wrong == 0, f"{ended.id}: {wrong} rows are not those that its experts were computed for"
        )
        sets, ties = self.reference(ended.tokens)
        differs = (np.sort(ids) != sets[:count]).any(-1) & valid
        tied = np.flatnonzero((differs & ties[:count]).any(-1))
        end = (
            tied[0] if len(tied) else count
        )  # from there on the two compute with different experts
        self.expect(
            not differs[:end].any(),
            f"{ended.id}: {differs[:end].sum()} sets differ from those of transformers",
        )
        self.rows += int(valid.all(1).sum())
        self.ties += len(tied) > 0

    def close(self, situation, found):
        """The situation is over."""
        tied = f"; {self.ties} requests part from transformers at a tie" if self.ties else ""
        rows = f"; {self.rows} rows right{tied}" if self.rows else ""
        print(f"{'FAILED' if self.sentences else 'ok    '} {situation}: {found}{rows}", flush=True)
        for sentence in self.sentences:
            print(f"         not so: {sentence}")
        self.failed += bool(self.sentences)
        self.passed += not self.sentences
        self.sentences, self.rows, self.ties = [], 0, 0
        self.engine.clear()
