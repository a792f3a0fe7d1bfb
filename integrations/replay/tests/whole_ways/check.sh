#!/usr/bin/env bash
# Takes the whole way through released trainers on the CPU: rollouts with the trainer's own loop,
# server and engine, and a step with replay. By itself through all of them; the first time it
# fetches 1.2 GB.
# usage: check.sh [verl] [skyrl]
cd "$(dirname "$0")/../../../.." && . dev/setup.sh && . integrations/vllm/tests/real/environment.sh
set +e
ways=("$@")
[ $# -gt 0 ] || ways=(verl skyrl)

install_library
install_package
released megatron-core==0.19.2 verl==0.9.1 skyrl==0.4.0
export ROUTECAP_VLLM=1 ROUTECAP_VERL=1
here=$root/integrations/replay/tests/whole_ways

# beside NAME PACKAGE...: wheels that the environment of vLLM lacks, or has in another version.
beside() {
    local folder=$build/trainers/$1 content
    shift
    content=$*
    needs=$folder/packages
    [ "$(cat "$folder/content" 2> /dev/null)" = "$content" ] && return
    rm -rf "$folder"
    say "setup: fetching what $(basename "$folder") imports"
    "$build/vllm_engine/base/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps --target "$needs" "$@" || exit 1
    printf '%s' "$content" > "$folder/content"
}
# way TRAINER RELEASE FOLDER: its two programs.
way() {
    local name=$1 path=$package:$needs:$build/released/$2:$build/released/megatron-core==0.19.2
    mkdir -p "$3"
    check "$name: rollouts" env PYTHONPATH="$path" "$python" "$here/${name}_rollouts.py" "$3"
    check "$name: a step with replay" env PYTHONPATH="$path" "$python" -W ignore "$here/${name}_step.py" "$3"
}
common=(tensordict==0.10.0 pyvers==0.2.3 omegaconf==2.4.0 hydra-core==1.3.8 antlr4-python3-runtime==4.9.3 msgpack==1.2.4 orjson==3.13.0
    accelerate==1.15.0 peft==0.21.2 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0 pyarrow==26.0.1 pandas==3.1.1
    python-dateutil==4.0.0 tzdata==2026.6 importlib-metadata==10.2.0 zipp==4.1.2)
for each in "${ways[@]}"; do
    case $each in
        verl)
            environment 0.24.0
            beside verl "${common[@]}" ray==2.60.0 transformers==5.9.0 tokenizers==0.22.2 codetiming==1.4.0 torchdata==0.11.0 pylatexenc==2.11 \
                tensorboard==2.21.0
            way verl verl==0.9.1 "$build/trainers/verl/run"
            ;;
        skyrl)
            environment 0.30.0
            beside skyrl "${common[@]}" ray==2.57.0 transformers==5.16.1 loguru==0.7.3 jaxtyping==0.3.11 wadler-lindig==0.1.8 skyrl-gym==0.4.0 \
                pybase64==1.5.1 func-timeout==4.3.5 debugpy==1.8.22 cloudpathlib==0.26.0 fsspec==2026.9.0 s3fs==2026.9.0 polars==2.1.0 \
                polars-runtime-32==2.1.0
            way skyrl skyrl==0.4.0 "$build/trainers/skyrl/run"
            ;;
        *) say "there is no way through $each"; exit 1 ;;
    esac
done
closing
