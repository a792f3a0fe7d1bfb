import pytest

from routecap_vllm._options import Options


def test_options_are_read_from_the_environment_of_the_workers():
    environment = {
        "ROUTECAP_VLLM_FILL": "0",
        "ROUTECAP_VLLM_LAZY": "yes",
        "ROUTECAP_VLLM_PREEMPTED": "keep",
        "ROUTECAP_VLLM_KEEP_ENDED": "16",
        "ROUTECAP_VLLM_BUDGET_BYTES": "0x10000000",
        "ROUTECAP_VLLM_SLOTS": "8",
        "ROUTECAP_VLLM_ALL_RANKS": "1",
        "ROUTECAP_VLLM_METRICS_PORT": "9400",
        "ROUTECAP_VLLM_METRICS_EXPERTS": "0",
        "OTHER": "x",
    }
    assert Options.from_environment(environment) == Options(
        fill=0,
        lazy=True,
        preempted="keep",
        keep_ended=16,
        budget_bytes=1 << 28,
        slots=8,
        all_ranks=True,
        metrics_port=9400,
        metrics_experts=False,
    )
    assert Options.from_environment({}) == Options()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FILL", "3"),
        ("FILL", "zero"),
        ("LAZY", "maybe"),
        ("PREEMPTED", "forget"),
        ("SLOTS", "0"),
        ("KEEP_ENDED", "-1"),
        ("METRICS_PORT", "65536"),
    ],
)
def test_values_that_mean_nothing_are_refused(name, text):
    with pytest.raises(ValueError, match=text):
        Options.from_environment({f"ROUTECAP_VLLM_{name}": text})
