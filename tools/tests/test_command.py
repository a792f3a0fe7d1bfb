"""The command: what it prints, what it writes, and its exit status."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
import routecap
from routecap import analysis
from routecap_testing.helpers import EXPERTS, LAYERS, K, expected_ids
from routecap_tools.command import main
from routecap_tools.command.terminal import Terminal, printable

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def job(routing: routecap.Routing, holey: routecap.Routing, tmp_path: Path) -> Path:
    """A folder with a complete routing, and one with holes and text."""
    holey.wait()
    info = {
        "tokens": ["one ", "two\n", "\udcc3", "\udca9", "<b>", "'"] + ["x"] * 4,
        "prompt_tokens": 3,
    }
    routecap.save(tmp_path / "job", {"complete": routing, "holey": routecap.Sample(holey, info)})
    return tmp_path / "job"


def lines(capsys: Capture) -> list[str]:
    return capsys.readouterr().out.splitlines()


# ---- info


def test_info_says_what_is_usable_and_why_not(capsys: Capture) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"routecap {routecap.__version__}" in text and "libroutecap.so" in text
    for name, backend in routecap.backends().items():
        [line] = [line for line in text.splitlines() if line.startswith(name)]
        assert ("not usable" in line) != backend.available and line.endswith(backend.detail)


def test_the_library_that_is_named_is_the_one_that_is_loaded() -> None:
    named = re.search(
        r"^library  (.*)$",
        subprocess.run(
            [sys.executable, "-m", "routecap_tools", "info"], text=True, stdout=-1
        ).stdout,
        re.MULTILINE,
    )
    assert named is not None and os.path.samefile(
        named[1], os.environ.get("ROUTECAP_LIBRARY", named[1])
    )


def test_info_names_the_extras_that_are_missing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr(
        "routecap_tools.command.info.EXTRAS", {"routecap-tools[cli]": "no-such-package"}
    )
    assert main(["info"]) == 0
    assert "pip install 'routecap-tools[cli]'" in capsys.readouterr().out


# ---- show


def test_show_says_what_is_there_and_what_is_missing(job: Path, capsys: Capture) -> None:
    assert main(["show", str(job)]) == 0
    text = lines(capsys)
    assert text[:2] == [
        "complete",
        "  20 rows, 5 layers, 4 of 64 experts, 100 % of the cells, tag 7",
    ]
    assert text[2:6] == [
        "holey",
        "  10 rows, 5 layers, 4 of 64 experts, 72 % of the cells, 3 tags, 0 to 2",
        "  missing: rows 4 to 5 of layers 0 to 4: absent",
        "  missing: rows 6 to 9 of layer 2: unwritten",
    ]
    load = analysis.expert_load(sample.routing for sample in routecap.load(job).values())
    table = [line.split() for line in text if re.match(r" +\d+ +\d+  ", line)]
    assert [int(row[1]) for row in table] == (load.sum(axis=1) // 4).tolist()
    figures = analysis.balance(load)
    for row, *values in zip(table, figures.entropy, figures.peak, figures.variation, figures.gini):
        assert row[-4:] == [f"{value:.3f}" for value in values]
    digits = [line.split()[1] for line in text if re.fullmatch(rf" +\d  \d{{{EXPERTS}}}", line)]
    assert digits == ["".join(str(int(count * 9 / row.max())) for count in row) for row in load]


@pytest.mark.slow
def test_show_says_what_its_digits_are_and_what_it_wrote(
    job: Path, tmp_path: Path, capsys: Capture
) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "out.svg"
    given = ["show", str(job), "--html", str(page), "--png", str(picture)]
    assert main(given) == 0
    text = capsys.readouterr().out
    assert "a digit is the load of an expert" in text and "9 is the busiest of its layer" in text
    sizes = [f"{each.stat().st_size:,} bytes" for each in (picture, page)]
    wrote = [
        f"wrote {picture}: a picture of 2 routings, {sizes[0]}",
        f"wrote {page}: a page for any browser of 2 routings, {sizes[1]}",
    ]
    assert text.splitlines()[-2:] == wrote
    assert main([*given, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) and said.err.count("wrote ") == 2


def test_show_prints_the_experts_of_every_token(job: Path, capsys: Capture) -> None:
    assert main(["show", str(job / "holey.routecap"), "--layer", "2"]) == 0
    text = lines(capsys)
    start = text.index("holey, layer 2")
    rows = [line.split(maxsplit=1) for line in text[start + 2 :]]
    ids = expected_ids(3, 10)
    assert [row[1].rsplit(None, 1)[0] for row in rows[:2]] == [
        " ".join(map(str, ids[0, 2])) + '  "one',
        " ".join(map(str, ids[1, 2])),
    ]
    assert (
        rows[1][1].endswith('"two\\n"')
        and rows[3][1].endswith('"é"')
        and [row[1].split()[0] for row in rows[4:]] == ["-"] * 6
    )


def test_show_names_all_missing_blocks_only_if_asked(tmp_path: Path, capsys: Capture) -> None:
    valid = np.ones((40, LAYERS), bool)
    valid[::2, 1] = False
    routecap.save(
        tmp_path / "a.routecap",
        routecap.Routing.from_arrays(expected_ids(1, 40), experts=EXPERTS, valid=valid),
    )
    assert main(["show", str(tmp_path / "a.routecap")]) == 0
    text = capsys.readouterr().out
    assert text.count("missing: ") == 8 and "and 12 more (--missing names them)" in text
    assert main(["show", str(tmp_path / "a.routecap"), "--missing"]) == 0
    text = capsys.readouterr().out
    assert text.count("missing: ") == 20 and "more" not in text


def test_show_lists_many_routings_in_a_table(tmp_path: Path, capsys: Capture) -> None:
    """Each was a block of lines of its own, and the load was a screen away."""
    valid = np.ones((6, LAYERS), bool)
    valid[2:4] = False
    valid[5, 1] = False
    whole = {
        f"r-{i}": routecap.Routing.from_arrays(
            expected_ids(i, 10 * i), experts=EXPERTS, first=i, tags=i
        )
        for i in range(1, 5)
    }
    holey = routecap.Routing.from_arrays(expected_ids(9, 6), experts=EXPERTS, valid=valid)
    routecap.save(tmp_path / "job.tar", {**whole, "holey": holey})
    assert main(["show", str(tmp_path / "job.tar")]) == 0
    text = lines(capsys)
    assert text[0].split() == [
        "request",
        "first",
        "rows",
        "layers",
        "experts",
        "there",
        "tags",
        "missing",
        "cells",
    ]
    assert [line.split()[:3] for line in text[1:5]] == [
        [f"r-{i}", str(i), str(10 * i)] for i in range(1, 5)
    ]
    assert text[1].split()[4:] == [str(K), "of", str(EXPERTS), "100", "%", "1"]
    share = f"{100 * (1 - (2 * LAYERS + 1) / (6 * LAYERS)):.4g}"
    assert text[5].split()[7:10] == [share, "%", "-"]
    assert text[5].endswith(f"{2 * LAYERS} absent, 1 unwritten")
    assert text[7] == "5 routings of 106 rows, 4 of them complete"
    assert not any("missing: " in line for line in text)
    assert main(["show", str(tmp_path / "job.tar"), "--missing"]) == 0
    assert sum("missing: " in line for line in lines(capsys)) == 2


def test_no_cell_that_is_missing_is_rounded_away() -> None:
    valid = np.ones((40_000, LAYERS), bool)
    valid[7, 1] = False
    routing = routecap.Routing.from_arrays(
        np.tile(expected_ids(1, 1), (40_000, 1, 1)), experts=EXPERTS, valid=valid
    )
    assert analysis.there(routing) == "99.99 %" and analysis.there(routing[:7]) == "100 %"


def test_show_gives_json(job: Path, capsys: Capture) -> None:
    assert main(["show", "--json", str(job)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        set(found) == {"complete", "holey"}
        and found["complete"]["rows"] == 20
        and found["holey"]["coverage"]["cells_missing"] == 14
    )
    assert found["holey"]["missing"][1] == {
        "first": 6,
        "rows": 4,
        "first_layer": 2,
        "layers": 1,
        "reason": "unwritten",
    }
    for name, sample in routecap.load(job).items():
        assert [layer["load"] for layer in found[name]["layers"]] == analysis.expert_load(
            sample.routing
        ).tolist()


def test_routings_of_two_models_are_counted_apart(
    job: Path, tmp_path: Path, capsys: Capture
) -> None:
    routecap.save(
        tmp_path / "other.routecap",
        routecap.Routing.from_arrays(expected_ids(1, 3, layers=2, experts=32), experts=32),
    )
    assert main(["show", str(job), str(tmp_path / "other.routecap")]) == 0
    assert sum(line.startswith("Load of the experts") for line in lines(capsys)) == 2


def test_two_files_of_one_name_are_both_shown(job: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["convert", str(job), str(tmp_path / "job.tar")]) == 0
    assert main(["show", str(job), str(tmp_path / "job.tar")]) == 0
    text = lines(capsys)
    assert "complete" in text and f"{tmp_path / 'job.tar'}:complete" in text


def test_a_routing_without_rows_is_shown(tmp_path: Path, capsys: Capture) -> None:
    routecap.save(
        tmp_path / "a.routecap",
        routecap.Routing.from_arrays(np.zeros((0, 2, 2), np.uint8), experts=4),
    )
    assert (
        main(
            [
                "show",
                str(tmp_path / "a.routecap"),
                "--layer",
                "1",
                "--html",
                str(tmp_path / "a.html"),
                "--png",
                str(tmp_path / "a.png"),
            ]
        )
        == 0
    )
    assert "0 rows, 2 layers, 2 of 4 experts, no cells" in capsys.readouterr().out


# ---- compare


def compare(*arguments: object) -> int:
    return main(["compare", *map(str, arguments)])


def test_compare_finds_no_difference_between_equal_files(
    job: Path, tmp_path: Path, capsys: Capture
) -> None:
    main(["convert", str(job), str(tmp_path / "b.safetensors")])
    assert compare(job, tmp_path / "b.safetensors") == 0
    assert [line for line in lines(capsys) if line.endswith(": the same")] == [
        "complete: the same",
        "holey: the same",
    ]


def test_compare_tells_order_from_sets(tmp_path: Path, capsys: Capture) -> None:
    ids = expected_ids(1, 10)
    turned, changed = ids.copy(), ids.copy()
    turned[3] = turned[3, :, ::-1]
    changed[5, 2, 0] = (set(range(EXPERTS)) - set(ids[5, 2])).pop()
    for name, each in (("a", ids), ("turned", turned), ("changed", changed)):
        routecap.save(
            tmp_path / f"{name}.routecap", routecap.Routing.from_arrays(each, experts=EXPERTS)
        )
    assert compare(tmp_path / "a.routecap", tmp_path / "turned.routecap") == 0
    assert compare(tmp_path / "a.routecap", tmp_path / "turned.routecap", "--ordered") == 1
    capsys.readouterr()
    assert compare(tmp_path / "a.routecap", tmp_path / "changed.routecap") == 1
    text = lines(capsys)
    assert text[:2] == ["a: different", "  2 % of 50 cells that both have differ as sets"]
    assert text[5].split() == ["2", "10", "10", "%", "10", "%", "0.9750", "0", "0"]
    assert compare(tmp_path / "a.routecap", tmp_path / "changed.routecap", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["same"] and [layer["sets"] for layer in found["routings"]["a"]["layers"]] == [
        0,
        0,
        1,
        0,
        0,
    ]


def test_compare_names_what_has_another_shape_or_is_not_there(
    job: Path, tmp_path: Path, capsys: Capture
) -> None:
    complete = routecap.load(job)["complete"].routing
    routecap.save(tmp_path / "alone", {"complete": complete})
    assert compare(job, tmp_path / "alone") == compare(tmp_path / "alone", job) == 1
    assert capsys.readouterr().out.count(f"only in {job}: holey") == 2
    routecap.save(tmp_path / "b", {"complete": complete[2:]})
    assert compare(job, tmp_path / "b") == 1
    text = capsys.readouterr().out
    assert f"only in {job}: holey" in text and "positions: [0, 20] and [2, 20]" in text
    routecap.save(
        tmp_path / "k.routecap",
        routecap.Routing.from_arrays(complete.ids()[..., :2].copy(), experts=EXPERTS),
    )
    assert compare(job / "complete.routecap", tmp_path / "k.routecap") == 1
    assert "k: 4 and 2" in capsys.readouterr().out


def test_compare_counts_cells_that_only_one_has(job: Path, tmp_path: Path, capsys: Capture) -> None:
    whole = routecap.Routing.from_arrays(expected_ids(3, 10), experts=EXPERTS)
    routecap.save(tmp_path / "whole.routecap", whole)
    assert compare(job / "holey.routecap", tmp_path / "whole.routecap") == 1
    assert lines(capsys)[5].split() == ["2", "4", "0", "%", "0", "%", "1.0000", "0", "6"]


# ---- bench, convert


def test_bench_measures_the_host(capsys: Capture) -> None:
    assert (
        main(
            [
                "bench",
                "--backend",
                "host",
                "--layers",
                "3",
                "--k",
                "2",
                "--experts",
                "8",
                "--rows",
                "1",
                "5",
                "--steps",
                "2",
                "--json",
            ]
        )
        == 0
    )
    found = [json.loads(line) for line in lines(capsys)]
    assert [(each["backend"], each["tokens"]) for each in found] == [("host", 1), ("host", 5)]
    assert all(
        each["together"]
        == pytest.approx(each["begin"] + each["record"] + each["snapshot"] + each["issue"])
        for each in found
    )


def test_bench_refuses_what_it_did_not_record(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    record = routecap.Capturer.record_layers
    turned = lambda self, sources: record(
        self, {layer: ids[::-1].copy() for layer, ids in sources.items()}
    )
    for broken in (lambda self, sources: None, turned):
        monkeypatch.setattr(routecap.Capturer, "record_layers", broken)
        assert (
            main(["bench", "--backend", "host", "--layers", "2", "--rows", "3", "--steps", "1"])
            == 2
        )
        assert "not what was recorded" in capsys.readouterr().err


def test_convert_writes_every_kind(job: Path, tmp_path: Path, capsys: Capture) -> None:
    kinds = [tmp_path / name for name in ("a.tar", "b.safetensors", "c")]
    for source, target in zip([job, *kinds], kinds):
        assert main(["convert", str(source), str(target)]) == 0
        assert lines(capsys) == [f"{target}: 2 routings"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()} == {
        path.name: path.read_bytes() for path in job.iterdir()
    }


def test_the_help_of_convert_says_which_kinds_of_files_there_are(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    text = capsys.readouterr().out
    for word in (".routecap", ".tar", ".safetensors", "slash", "refused"):
        assert word in text


# ---- As a program


def routecap_program(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "routecap_tools", *arguments],
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
    )


def test_errors_are_one_line_and_status_2(job: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "bad.routecap").write_bytes(b"RCAPROWS" + bytes(100))
    (tmp_path / "none").mkdir()
    for arguments, text in (
        (["show", str(tmp_path / "absent.routecap")], "No such file"),
        (["show", str(tmp_path / "bad.routecap")], "bad.routecap"),
        (["show", str(tmp_path / "none")], "no routing in"),
        (
            ["show", str(job), "--layer", "9"],
            "layer 9 of the decoder was not captured: give one of 0, 1, 2, 3, 4",
        ),
        (["compare", str(job), str(tmp_path / "bad.routecap")], "bad.routecap"),
        (["convert", str(job), str(tmp_path / "x.routecap")], "holds one routing, not 2"),
        (["convert", str(job), str(tmp_path / "x.npy.gz")], "x.npy.gz ends in .gz"),
        (["convert", str(tmp_path / "absent"), str(tmp_path / "x.npz")], "x.npz ends in .npz"),
    ):
        status, said = main(arguments), capsys.readouterr().err
        assert status == 2 and said.count("\n") == 1, said
        assert said.startswith("routecap: ") and text in said
    done = routecap_program(*arguments)  # the last, as a program
    assert (done.returncode, done.stderr) == (2, said)
    assert (
        routecap_program().returncode == 2
        and routecap_program("--version").stdout == f"routecap {routecap.__version__}\n"
    )


EVIL = "a\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e[bold]$x$\udc80\x7f"


def test_names_and_texts_of_others_do_not_steer_a_terminal(
    routing: routecap.Routing, tmp_path: Path, capsys: Capture
) -> None:
    """Escape sequences of a member's name reached it, and rich took brackets for markup."""
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        for name in (EVIL, *"bcde"):
            info = json.dumps({"tokens": [EVIL] * 20}).encode()
            for ending, data in ((".routecap", routing.serialize()), (".json", info)):
                entry = tarfile.TarInfo(name + ending)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    colours = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    steers = set("\x1b\x07\x9b\u202e\udc80\x7f")
    for arguments in (
        ["show", str(path)],
        ["show", str(path), "--layer", "1", "--missing"],
        ["doctor", str(path)],
        ["compare", str(path), str(path)],
        ["show", str(tmp_path / EVIL)],
    ):
        main(arguments)
        said = capsys.readouterr()
        assert "a\\x1b]0;PWNED\\x07\\x1b[2J\\x9b31m\\u202e[bold]$x$" in said.out + said.err
        assert not set(said.out + said.err) & steers, arguments
    for environment in (colours | {"COLUMNS": "300"}, {"PYTHONIOENCODING": "ascii"}):
        done = routecap_program("show", str(path), "--layer", "1", **environment)
        assert done.returncode == 0, done
        assert not set(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)) & steers
    assert (
        printable("中文\u3000é🙂") == "中文\u3000é🙂" and printable("a\n\t", keep="\n") == "a\n\\t"
    )


def test_a_defect_is_no_finding(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Python's own exit status for an exception is 1, which says that something was found."""
    for raised, words in ((ZeroDivisionError("x"), "ZeroDivisionError"), (MemoryError(), "memory")):

        def fails(*given: object, **more: object) -> None:
            raise raised

        monkeypatch.setattr("routecap_tools.command.doctor.examine", fails)
        assert main(["doctor", str(job)]) == 2
        assert words in capsys.readouterr().err


def test_errors_speak_of_options_and_not_of_hints(tmp_path: Path, capsys: Capture) -> None:
    ids = expected_ids(1, 6, layers=3, k=2, experts=8)
    np.save(tmp_path / "a.npy", ids)
    (tmp_path / "a.b64").write_bytes(b64encode(ids.tobytes()))
    for name, given, words in (
        ("a.npy", "", "--experts is not given"),
        ("a.npy", "--experts 8 --k 5", "k 2, and --k is 5"),
        ("a.npy", "--experts 8 --layers 2", "--layer-map must say which these are"),
        ("a.npy", "--experts 8 --layers 5", "3 columns, and --layers is 5"),
        ("a.npy", "--experts 8 --budget 5", "--budget is 5"),
        ("a.b64", "--experts 8", "give --k"),
        ("a.b64", "--experts 8 --k 2", "give --columns"),
    ):
        assert main(["show", str(tmp_path / name), *given.split()]) == 2
        said = capsys.readouterr().err
        assert words in said and "hint" not in said


def test_output_that_nobody_reads_to_the_end_is_no_error(job: Path) -> None:
    program = (
        f"{sys.executable} -m routecap_tools show {' '.join([str(job)] * 200)} --layer 1 | head -n 1;"
        " exit ${PIPESTATUS[0]}"
    )
    done = subprocess.run(["bash", "-c", program], text=True, capture_output=True)
    assert done.stdout == "complete\n" and done.stderr == ""


def test_without_extras_everything_but_pictures_is_there(job: Path, tmp_path: Path) -> None:
    """As the installed program is called, where neither rich nor matplotlib nor safetensors can be
    imported.
    """
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['rich', 'matplotlib', 'safetensors']));"
        "from routecap_tools.command import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            text=True,
            capture_output=True,
            env={**os.environ, "FORCE_COLOR": "1"},
        )

    plain = run("show", str(job), "--layer", "2", "--html", str(tmp_path / "page.html"))
    assert (
        plain.returncode == 0 and "\x1b" not in plain.stdout and (tmp_path / "page.html").exists()
    )
    for arguments, extra in (
        (("show", str(job), "--png", "x.png"), "routecap-tools[plot]"),
        (("convert", str(job), "x.safetensors"), "routecap[safetensors]"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and f"pip install '{extra}'" in done.stderr


def test_a_terminal_gets_colours_and_a_file_does_not(job: Path) -> None:
    in_terminal = routecap_program(
        "show",
        str(job),
        "--layer",
        "2",
        FORCE_COLOR="1",
        COLORTERM="truecolor",
        TERM="xterm-256color",
        COLUMNS="200",
    )
    in_file = routecap_program(
        "show", str(job), "--layer", "2", FORCE_COLOR="", TERM="xterm-256color"
    )
    assert in_terminal.returncode == in_file.returncode == 0
    assert "\x1b[" in in_terminal.stdout and "\x1b" not in in_file.stdout
    cells = [line for line in in_terminal.stdout.splitlines() if line.count("48;2;") >= EXPERTS]
    assert len(cells) == LAYERS  # a line of the heat map for each layer
    assert "two" in re.sub(r"\x1b\[[0-9;]*m", "", in_terminal.stdout)


def test_a_heat_map_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rich = pytest.importorskip("rich.console")
    terminal, written = Terminal(), io.StringIO()
    terminal._rich = rich.Console(
        file=written, force_terminal=True, color_system="truecolor", width=60, height=25
    )  # without a height, rich takes a terminal without a name for one of 80 columns
    terminal.heat(["0", "11"], np.arange(2 * 300).reshape(2, 300))
    text = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in written.getvalue().splitlines()]
    assert text[2] == " 6 experts in each cell" and all(len(line) <= 60 for line in text)


def test_the_command_converts_shows_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", expected_ids(3, 6, layers=3, k=2, experts=16).astype(np.uint8))
    a, b = str(tmp_path / "a.npy"), str(tmp_path / "b.routecap")
    assert main(["convert", a, b, "--experts", "16"]) == 0
    assert main(["compare", a, b, "--experts", "16"]) == 0
    assert main(["show", a, "--experts", "16"]) == 0
    assert main(["show", a]) == 2
    assert main(["convert", a, str(tmp_path / "c.nrlre1"), "--experts", "16", "--first", "4"]) == 2
    assert (
        main(
            [
                "convert",
                a,
                str(tmp_path / "c.nrlre1"),
                "--experts",
                "16",
                "--first",
                "4",
                "--allow",
                "first",
            ]
        )
        == 0
    )
    capsys.readouterr()
