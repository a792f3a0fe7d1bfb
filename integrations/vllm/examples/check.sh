#!/usr/bin/env bash
# Runs the examples under tests/worker/check.py, in vLLM's engine on the CPU: worker.py with steps
# scheduled one after another, and ahead, as on a GPU; and dropin.py. Sets up all it needs.
cd "$(dirname "$0")/../../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
set +e

environment=$build/vllm/env
requirements=$root/integrations/vllm/tests/worker/requirements.txt

if ! cmp -s "$requirements" "$environment/requirements.txt"; then
    say "setup: fetching vLLM, 430 MB, which takes 1.4 GB on the disk and about two minutes; PyTorch as much again, if it is not there"
    install_torch
    rm -rf "$environment"
    python_environment "$environment" "$(grep '^numpy==' "$requirements")"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps -r "$requirements" || exit 1
    "$torch_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$(echo "$environment"/lib/python3*/site-packages)/torch.pth"
    cp "$requirements" "$environment/requirements.txt"
fi
install_library
install_package

for options in "" --ahead "--ahead --dropin"; do
    say "-- check.py $options"
    PYTHONPATH=$package:$root/integrations/vllm/examples VLLM_LOGGING_LEVEL=CRITICAL OMP_NUM_THREADS=1 VLLM_CACHE_ROOT=$build/vllm/cache \
        "$environment/bin/python" integrations/vllm/tests/worker/check.py $options tests/model/weights LICENSE 2> "$build/vllm/log" | tee "$build/vllm/out"
    if [[ $(tail -n 1 "$build/vllm/out") =~ ^([0-9]+)\ checks\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    else
        tail -n 30 "$build/vllm/log"
        failed=$((failed + 1))
    fi
done
closing
