#!/usr/bin/env bash
# Runs check.py, slots.py and tree.py in SGLang 0.5.23 without a GPU, out of its wheel for CUDA. Fetches 300 MB the first
# time (and PyTorch), and takes some minutes.
cd "$(dirname "$0")/../.." && . examples/setup.sh
set +e

environment=$build/sglang_engine
requirements=$root/tests/sglang_engine/requirements.txt
install_torch
if ! cmp -s "$requirements" "$environment/requirements.txt"; then
    say "setup: fetching SGLang 0.5.23"
    rm -rf "$environment" && "$torch_python" -m venv "$environment" || exit 1
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$requirements" || exit 1
    "$torch_python" -c 'import site; print(site.getsitepackages()[0])' \
        > "$(ls -d "$environment"/lib/python3*/site-packages)/torch.pth"
    cp "$requirements" "$environment/requirements.txt"
fi
install_library
install_package

export PYTHONPATH=$package:$root/tests/engines:$root/tests/sglang_engine/plugin:$root/tests/sglang_engine/no_gpu PYTHONDONTWRITEBYTECODE=1
export SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1
for options in "" "--retract --seed 1" "--sync --retract --no-tokenizer --seed 2" "--beside --seed 3" "--beside --sync --retract --seed 4" \
    "--drafts chain --seed 5" "--drafts ngram --seed 6" "--drafts tree --retract --seed 7" "--host-cache --seed 8" \
    "--ranks data --seed 10" "--copies --retract --seed 11" "--copies --drafts tree --seed 12"; do
    # shellcheck disable=SC2086
    check "every row, check.py $options" timeout 900 "$environment/bin/python" \
        tests/sglang_engine/check.py $options "$build/sglang_engine_run"
done
for options in "--page 1 --seed 1" "--page 16 --retract --seed 2" "--page 64 --sync --seed 3"; do
    # shellcheck disable=SC2086
    check "rows by slot, slots.py $options" timeout 900 "$environment/bin/python" \
        tests/sglang_engine/slots.py $options "$build/sglang_engine_run"
done
for options in capture=routecap capture=own "--runs 2 copies=1" "--beside transformers_engine capture=routecap"; do
    # shellcheck disable=SC2086
    check "conform, $options" timeout 1800 "$environment/bin/python" tests/conform/prove.py --json "$build/conform_reports" sglang_engine $options
done
check "whose KV a hit is, tree.py" prints "are of who computed their KV" timeout 900 "$environment/bin/python" tests/sglang_engine/tree.py
cd examples/sglang
check "the example" prints "the last row is" timeout 900 "$environment/bin/python" answers.py "$build/sglang_engine_run/a" \
    device='"cpu"' dtype='"float32"' attention_backend='"torch_native"' sampling_backend='"pytorch"' grammar_backend='"none"' \
    max_total_tokens=2000
closing
