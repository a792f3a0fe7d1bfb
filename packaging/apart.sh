#!/usr/bin/env bash
# Installs each Python package alone, with what it asks for, and then all together: each time in a
# fresh environment, from a folder of wheels and without an index. Says which plugins are there, and
# runs a program with each package.
#
#     apart.sh [FOLDER]     of wheels, such as build/packaging/dist; without one, those that
#                           dev/setup.sh makes
cd "$(dirname "$0")/.." && . dev/setup.sh
work=$build/apart
if [ $# = 0 ]; then
    install_library
    install_package
    wheels=$build/package/wheel
else
    wheels=$(realpath "$1")
fi
install_transformers
released megatron-core==0.19.2
rm -rf "$work/environments" && mkdir -p "$work"/{environments,needed}
"${torch_python%/*}/pip" download --quiet --disable-pip-version-check --no-deps --dest "$work/needed" numpy==2.4.6
set +e

# What users have already: PyTorch, transformers, a trainer. Nothing of these is installed again.
packages_of() { "$1" -c 'import site; print(site.getsitepackages()[0])'; }
torch=$(packages_of "$torch_python")
# That PyTorch lacks what it needs on a GPU: it says here that it needs nothing.
mkdir -p "$work/metadata"
for folder in "$torch"/torch-*.dist-info; do
    rm -rf "$work/metadata/${folder##*/}" && cp -r "$folder" "$work/metadata"
    sed -i '/^Requires-Dist:/d' "$work/metadata/${folder##*/}/METADATA"
done
torch=$work/metadata:$torch
transformers=$(packages_of "$transformers_python")
megatron=$build/released/megatron-core==0.19.2

# apart NAME PACKAGES WHAT... -- PATH...: an environment with some of the project's packages, in
# which those paths are there already; and the check of what is in it then, by apart.py.
apart() {
    local name=$1 environment=$work/environments/${1// /-} requirements=$2 wanted=() paths
    shift 2
    while [ "$1" != -- ]; do wanted+=("$1") && shift; done
    shift
    check "$name: an environment" python3 -m venv "$environment"
    paths=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    [ $# = 0 ] || printf '%s\n' "${@//:/$'\n'}" > "$paths/there.pth"
    check "$name: pip installs it" "$environment/bin/pip" install --quiet --disable-pip-version-check --no-index \
        --find-links "$wheels" --find-links "$work/needed" $requirements
    check "$name: nothing that it needs is missing or too old" bash -c "! '$environment/bin/pip' check --disable-pip-version-check | grep ^routecap"
    check "$name: its plugins, and a program" env -i HOME="$HOME" PATH="$environment/bin:/usr/bin:/bin" PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 \
        OMP_NUM_THREADS=1 "$environment/bin/python" packaging/apart.py "${wanted[@]}"
}
apart routecap routecap routecap --
apart routecap-tools routecap-tools routecap routecap-tools --
apart routecap-vllm routecap-vllm routecap routecap-tools routecap-vllm --
apart routecap-sglang routecap-sglang routecap routecap-tools routecap-sglang --
apart routecap-transformers routecap-transformers routecap routecap-tools routecap-transformers -- "$torch" "$transformers"
apart routecap-replay routecap-replay routecap routecap-replay -- "$torch" "$transformers" "$megatron"
apart "routecap-replay with transformers" "routecap-replay[transformers]" routecap routecap-tools routecap-transformers routecap-replay -- \
    "$torch" "$transformers" "$megatron"
all=(routecap routecap-tools routecap-vllm routecap-sglang routecap-transformers routecap-replay)
apart together "${all[*]}" "${all[@]}" -- "$torch" "$transformers" "$megatron"
closing
