"""Makes programs of README.md's quick starts: programs.py README FOLDER

A quick start is a block of code that begins a step. It is split at its blank lines: the part that
begins the step runs 1,000 times, and of it the lines that are indented, or that record, once for
each layer. Around that comes only what the block leaves to its reader: the model's ids and sizes,
in Go what looks at each error, and at the end the counters.

Each program is written twice: as it stands, and without the line that keeps pace, which is wrong
on a device. FOLDER/NAME holds both, as `kept` and `hasty`.
"""

import pathlib
import re
import sys

PASSES, TOKENS, LAYERS, K = 1000, 3, 48, 8

C = f"""#include <routecap.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {{
    const uint32_t tokens = {TOKENS};
    const uint64_t sequence_length = {PASSES * TOKENS + 1};
    uint64_t position = 0;
    int32_t topk_ids[{TOKENS * K}];
    for (int i = 0; i < {TOKENS * K}; i++) topk_ids[i] = i;
    (void)sequence_length;
"""
C_COUNTERS = """
    routecap_stats s = {.struct_size = sizeof s};
    if (routecap_capturer_stats(capturer, &s) != ROUTECAP_OK) return 1;
    printf("issued %llu lost %llu rows %llu delivered %llu overlapped %llu cells missing %llu\\n", (unsigned long long)s.steps_issued,
           (unsigned long long)s.steps_lost, (unsigned long long)s.rows_issued, (unsigned long long)s.rows_delivered,
           (unsigned long long)s.rows_overlapped, (unsigned long long)(s.cells_unwritten + s.cells_out_of_range + s.cells_duplicate));
    routecap_capturer_destroy(capturer);
    return 0;
}
"""
# What the quick start for a GPU leaves to the one before it.
C_CUDA = f"""
    routecap_config config;
    routecap_config_init(&config, sizeof config);
    config.layers = {LAYERS}, config.k = {K}, config.experts = 128, config.rows = 8192;
    const uint32_t rows = tokens;
    const size_t n = 1;
    routecap_stream stream = NULL;
    routecap_step step = 0;
"""
C_CUDA_OPEN = """
    routecap_capturer *capturer;
    routecap_request request;
    if (routecap_capturer_create(&config, &capturer) != ROUTECAP_OK || routecap_request_open(capturer, NULL, &request, 1) != ROUTECAP_OK) return 1;
    routecap_source source = {.struct_size = sizeof source, .dtype = ROUTECAP_DTYPE_I32, .ids = topk_ids, .rows = rows};
    routecap_span spans[1] = {{.request = request, .rows = rows}};
"""
C_CUDA_END = """
    if (routecap_step_finalize(capturer, step, -1, NULL) < 0) return 1;
"""

PYTHON = f"""import numpy as np
import routecap
tokens, sequence_length = {TOKENS}, {PASSES * TOKENS + 1}
topk_ids = np.arange({TOKENS * K}, dtype=np.int32).reshape({TOKENS}, {K})
"""
PYTHON_COUNTERS = """
    s = capturer.stats()
    print("issued", s.steps_issued, "lost", s.steps_lost, "rows", s.rows_issued, "delivered", s.rows_delivered,
          "overlapped", s.rows_overlapped, "cells missing", s.cells_unwritten + s.cells_out_of_range + s.cells_duplicate)
"""

RUST = f"""use routecap::*;
fn main() -> Result<()> {{
    let (tokens, sequence_length, stream) = ({TOKENS}u32, {PASSES * TOKENS + 1}u64, Stream::HOST);
    let ids: Vec<i32> = (0..{TOKENS * K}).collect();
    let source = Source::new(&ids[..], tokens);
"""
RUST_COUNTERS = """
    let (s, _) = (capturer.stats()?, completeness);
    println!("issued {} lost {} rows {} delivered {} overlapped {} cells missing {}", s.steps_issued, s.steps_lost, s.rows_issued,
        s.rows_delivered, s.rows_overlapped, s.cells_unwritten + s.cells_out_of_range + s.cells_duplicate);
    Ok(())
}
"""

GO = f"""package main

import (
	"context"
	"fmt"
	"log"

	routecap "github.com/routecap/routecap/bindings/go"
)

func check(err error) {{
	if err != nil {{
		log.Fatal(err)
	}}
}}

func main() {{
	ctx, tokens, sequenceLength, stream := context.Background(), uint32({TOKENS}), uint64({PASSES * TOKENS + 1}), routecap.Stream(0)
	ids := make([]int32, {TOKENS * K})
	for i := range ids {{
		ids[i] = int32(i)
	}}
	config := routecap.DefaultConfig()
	config.Backend, config.Layers, config.K, config.Experts, config.Rows = routecap.BackendHost, {LAYERS}, {K}, 128, 8192
	var result routecap.Result
"""
GO_COUNTERS = """
	_, _ = result, view
	s, err := capturer.Stats()
	check(err)
	fmt.Println("issued", s.StepsIssued, "lost", s.StepsLost, "rows", s.RowsIssued, "delivered", s.RowsDelivered,
		"overlapped", s.RowsOverlapped, "cells missing", s.CellsUnwritten+s.CellsOutOfRange+s.CellsDuplicate)
}
"""

BRACE = "}"
# Of each language: before; how a pass and a layer open; how they close; after.
AROUND = {
    "c": (C, f"for (int t = 0; t < {PASSES}; t++, position += tokens) {{", f"for (uint32_t l = 0; l < {LAYERS}; l++) {{", BRACE, C_COUNTERS),
    "python": (PYTHON, f"for position in range(0, {PASSES * TOKENS}, tokens):", f"for l in range({LAYERS}):", "", PYTHON_COUNTERS),
    "rust": (RUST, f"for position in (0..{PASSES * TOKENS}).step_by({TOKENS}) {{", f"for l in 0..{LAYERS} {{", BRACE, RUST_COUNTERS),
    "go": (GO, f"for position := uint64(0); position < {PASSES * TOKENS}; position += {TOKENS} {{", f"for l := range uint32({LAYERS}) {{",
           "_, _ = step, result\n" + BRACE, GO_COUNTERS),
}


def is_pace(line: str) -> bool:
    return re.search(r"step.* > 2", line) is not None


def repeated(language: str, lines: list[str]) -> list[str]:
    """The part of a forward pass in its loop, and the lines of a layer in theirs."""
    _, loop, layers, close, _ = AROUND[language]
    margin = re.match(" *", lines[0])[0]
    made, inside = [margin + loop], False
    for line in lines:
        of_layer = line.startswith(margin + " ") or re.search(r"\brecord\(", line, re.I) is not None
        if of_layer != inside:
            made.append(margin + "    " + (layers if of_layer else BRACE if close else ""))
        inside = of_layer
        made.append("    " * (1 + of_layer) + line)
    return [*made, close]


def program(language: str, parts: list[list[str]], keeps_pace: bool) -> str:
    before, _, _, _, after = AROUND[language]
    on_device = language == "c" and any("ROUTECAP_BACKEND_CUDA" in line for line in parts[0])
    made = [before + (C_CUDA if on_device else "")]
    for part in parts:
        lines = [line for line in part if keeps_pace or not is_pace(line)]
        if language == "go":
            lines = [f"{line.split('  //')[0]}; check(err)" if "err" in line else line for line in lines]
        if "begin(" not in part[0].lower():
            made += lines
        elif on_device:
            loop, *rest = repeated(language, lines)
            made += [C_CUDA_OPEN, loop, "    spans[0].position = position;", *rest, C_CUDA_END]
        else:
            made += repeated(language, lines)
    return "\n".join([*made, after])


def main(readme: pathlib.Path, folder: pathlib.Path) -> None:
    count = {language: 0 for language in AROUND}
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", readme.read_text(), re.M | re.S):
        if language not in AROUND or not re.search(r"begin\((capturer, )?\w+", code, re.I):
            continue
        parts = [part.splitlines() for part in re.split(r"\n\n", code.rstrip())]
        count[language] += 1
        name = language + ("_cuda" if "BACKEND_CUDA" in code else "")
        (folder / name).mkdir(parents=True)
        paced = any(is_pace(line) for line in code.splitlines())
        for kind in ["kept", "hasty"] if paced else ["kept"]:
            (folder / name / kind).write_text(program(language, parts, kind == "kept"))
    if count != {"c": 2, "python": 1, "rust": 1, "go": 1}:
        sys.exit(f"README.md has other quick starts than this knows: {count}")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
