"""The command on a machine with a CUDA device."""

import json

import pytest
from routecap_tools.command import main


def test_info_counts_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cuda")]
    assert " usable" in line and "not usable" not in line and line.split()[2] >= "1"


def test_bench_measures_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "bench",
                "--layers",
                "3",
                "--k",
                "2",
                "--experts",
                "8",
                "--rows",
                "5",
                "--steps",
                "2",
                "--json",
            ]
        )
        == 0
    )
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["backend"] for each in found] == ["host", "cuda"]
