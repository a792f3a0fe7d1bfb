#!/usr/bin/env bash
# check.sh [VERSION...]: releases of SGLang without a GPU, out of their wheels for CUDA. Of each:
# conform, and random schedules judged by slot with pages of 1, 16 and 64, of 20,000 rows and more,
# without weights and with them.
# Without a VERSION: releases.txt, which has those that trainers pin, and with the newest one every
# option of check.py.
# Fetches 300 MB the first time (and PyTorch), and up to 40 MB for a release; takes some minutes for each.
cd "$(dirname "$0")/../.." && . dev/setup.sh
set +e

mapfile -t pinned < integrations/sglang/releases.txt
environment=$build/sglang_engine
python=$environment/bin/python
here=$root/integrations/sglang/tests/real
install_torch
if ! cmp -s "$here/requirements.txt" "$environment/requirements.txt"; then
    say "setup: fetching what SGLang imports"
    rm -rf "$environment" && "$torch_python" -m venv "$environment" || exit 1
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps -r "$here/requirements.txt" || exit 1
    "$torch_python" -c 'import site; print(site.getsitepackages()[0])' \
        > "$(ls -d "$environment"/lib/python3*/site-packages)/torch.pth"
    cp "$here/requirements.txt" "$environment/requirements.txt"
fi
install_library
install_package

# install_release VERSION: a release beside the transformers that it pins, each with what that needs.
install_release() {
    local pin
    release=$build/sglang/$1
    [ -e "$release/ready" ] && return
    say "setup: fetching SGLang $1"
    rm -rf "$release" && fetch --target "$release" "sglang==$1" || exit 1
    python3 "$here/prune.py" "$release" || exit 1
    pin=$(sed -n 's/^Requires-Dist: transformers==\([0-9.]*\).*/\1/p' "$release/sglang-$1.dist-info/METADATA" | head -n 1)
    case $pin in
        5.[0-9].* | 5.1[0-2].*) fetch --target "$release" "transformers==$pin" huggingface_hub==1.33.0 tokenizers==0.22.2 ;;
        *) fetch --target "$release" "transformers==$pin" ;;
    esac || exit 1
    touch "$release/ready"
}
fetch() { "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --only-binary :all: "$@"; }

export SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1 SGLANG_EXTERNAL_MODEL_PACKAGE=routecap_sglang_models PYTHONPYCACHEPREFIX=$build/sglang/bytecode
use_release() {
    install_release "$1"
    export PYTHONPATH=$release:$package:$root/tests/engines:$here:$here/plugin:$here/no_gpu:$root/integrations/transformers/tests/real
}

[ $# -gt 0 ] && versions=("$@") || versions=("${pinned[@]}")
for version in "${versions[@]}"; do
    use_release "$version"
    check "SGLang $version, rows by slot, slots.py" timeout 900 "$python" integrations/sglang/tests/real/slots.py --json "$build/sglang/reports/$version.json" "$build/sglang_run" 1 16:retract 64:sync
    check "SGLang $version, weights by slot, slots.py --weights" timeout 900 "$python" integrations/sglang/tests/real/slots.py --weights --json "$build/sglang/reports/$version-weights.json" "$build/sglang_run" 1 16:retract 64:sync
    check "SGLang $version, conform" timeout 1800 "$python" tools/tests/conform/prove.py --runs 1 --json "$build/conform_reports" sglang_engine capture=routecap
done
if [ $# -gt 0 ]; then
    closing
    exit
fi

for options in "" "--retract --seed 1" "--sync --retract --no-tokenizer --seed 2" "--beside --seed 3" "--beside --sync --retract --seed 4" \
    "--drafts chain --seed 5" "--drafts ngram --seed 6" "--drafts tree --retract --seed 7" "--host-cache --seed 8" \
    "--ranks data --seed 10" "--copies --retract --seed 11" "--copies --drafts tree --seed 12" \
    "--weights --drafts tree --retract --seed 13" "--weights --ranks data --seed 14" "--weights --host-cache --seed 15"; do
    # shellcheck disable=SC2086
    check "every row, check.py $options" timeout 900 "$python" integrations/sglang/tests/real/check.py $options "$build/sglang_run"
done
for options in capture=routecap capture=own "--runs 2 copies=1" "--beside transformers_engine capture=routecap"; do
    # shellcheck disable=SC2086
    check "conform, $options" timeout 1800 "$python" tools/tests/conform/prove.py --json "$build/conform_reports" sglang_engine $options
done
check "whose KV a hit is, tree.py" prints "are of who computed their KV" timeout 900 "$python" integrations/sglang/tests/real/tree.py
cd integrations/sglang/examples
check "the example" prints "the last row is" timeout 900 "$python" answers.py "$build/sglang_run/a" \
    device='"cpu"' dtype='"float32"' attention_backend='"torch_native"' sampling_backend='"pytorch"' grammar_backend='"none"' \
    max_total_tokens=2000
closing
