from types import SimpleNamespace

import numpy as np

import routecap
from routecap_vllm._requests import Requests
from routecap_vllm._stops import StopRule


def test_rows_from_before_a_preemption_may_be_in_flight_when_they_are_read_and_when_the_request_ends():
    with routecap.Capturer(layers=1, k=1, experts=8, rows=8, manual_progress=True) as capturer:
        requests = Requests(capturer, keep_ended=4, keep_preempted=True)
        handles = requests.handles(["a"])
        capturer.begin(2)
        capturer.record(0, np.array([[3], [4]], np.int32))
        capturer.snapshot()
        capturer.issue(routecap.spans(1, request=handles, rows=2))
        state = requests.live["a"]
        sampling = SimpleNamespace(min_tokens=0, stop_token_ids=None, max_tokens=None)
        state.rule, state.seen = StopRule(sampling, prompt_tokens=2, max_model_len=8), 1
        requests.preempt(["a"])
        assert state.earlier and not state.earlier.ready
        requests.end(["a"])
        assert requests.find("a") is state and requests.read(state).ids().ravel().tolist() == [3, 4]
