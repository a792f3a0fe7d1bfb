#!/usr/bin/env bash
# Runs these tests in releases of transformers, each beside the PyTorch of the others and with what
# it needs of the libraries that pin it: all families in the newest two, two of them in the others.
# usage: releases.sh [--enter] [--library PREFIX] [VERSION...]. Default: releases.txt, which has
# the last patch of every minor release that routecap_transformers is checked with. --enter puts each result into lab/matrix.json.
# A release that is not known is run as one: ROUTECAP_TRANSFORMERS_UNCHECKED=1.
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
enter=0 library=()
while [[ ${1:-} == --* ]]; do
    case $1 in
    --enter) enter=1 && shift ;;
    --library) library=("$2") && shift 2 ;;
    *) say "releases.sh: no option $1" && exit 2 ;;
    esac
done
mapfile -t releases < <(tac integrations/transformers/releases.txt)
whole=" ${releases[0]} ${releases[1]} "
asked=("${@:-${releases[@]}}")
families=qwen3_moe,mixtral

use_library "${library[@]}"
install_package
install_transformers
released prometheus-client==0.26.0 psutil==7.2.2 accelerate==1.15.0

# fetch_release VERSION: into $build/released/transformers==VERSION, and what it pins into a folder
# that the releases with the same pins share; $site is where both are.
fetch_release() {
    local release=$build/released/transformers==$1 pins folder
    released "transformers==$1"
    pins=$(sed -n -E 's/^Requires-Dist: ((huggingface-hub|tokenizers)[^;]*)$/\1/p' "$release"/*.dist-info/METADATA | sort -u)
    folder=$build/released/pins-$(printf '%s' "$pins" | sha256sum | head -c 12)
    mapfile -t pins <<< "$pins"
    if [ ! -e "$folder/ready" ]; then
        say "setup: fetching ${pins[*]}"
        # Those that torch needs are said to be missing.
        "${torch_python%/*}/pip" install --quiet --disable-pip-version-check --no-compile --target "$folder" "${pins[@]}" 2> "$folder.log" ||
            { cat "$folder.log"; exit 1; }
        touch "$folder/ready"
    fi
    site=$release:$folder
}

report() { # VERSION FAMILIES JUNIT SECONDS > JSON
    python3 - "$@" "$package" << 'END'
import json, pathlib, re, sys
from xml.etree import ElementTree
version, families, junit, seconds, package = sys.argv[1:]
[suite] = ElementTree.parse(junit).getroot()
count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
failed = count["failures"] + count["errors"]
counts = {"passed": count["tests"] - failed - count["skipped"], "failed": failed}
counts["skipped"] = count["skipped"]
[info] = pathlib.Path(package).glob("routecap-*.dist-info")
print(json.dumps({
    "engine": f"transformers {version}, {families or 'all families'}, routecap {info.name[9:-10]}",
    "command": f"integrations/transformers/releases.sh {version}",
    "counts": counts, "seconds": int(seconds),
}))
END
}

export HF_HUB_OFFLINE=1 ROUTECAP_TRANSFORMERS_UNCHECKED=1
set +e
mkdir -p "$build/releases"
for version in "${asked[@]}"; do
    fetch_release "$version" || exit 1
    ROUTECAP_FAMILIES=$families
    [[ $whole == *" $version "* ]] && ROUTECAP_FAMILIES=
    export ROUTECAP_FAMILIES
    junit=$build/releases/$version.xml begin=$SECONDS
    path=$package:$site:$build/released/prometheus-client==0.26.0:$build/released/psutil==7.2.2:$build/released/accelerate==1.15.0
    rm -f "$junit"
    check "tests, transformers $version" env PYTHONPATH="$path" "$transformers_python" -m pytest -p no:cacheprovider -q --tb=short \
        --junitxml "$junit" integrations/transformers/tests  # what needs another family skips itself
    [ -e "$junit" ] || continue
    report "$version" "${ROUTECAP_FAMILIES//,/ and }" "$junit" $((SECONDS - begin)) > "$build/releases/$version.json"
    say "$version: $(cat "$build/releases/$version.json")"
    [ $enter = 0 ] || locked matrix python3 lab/matrix.py add "$build/releases/$version.json"
done
closing
