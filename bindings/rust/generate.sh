#!/usr/bin/env bash
# Writes routecap-sys/src/bindings.rs: what bindgen makes of the headers. --check fails instead if
# it is not that already, and --check-headers if it was made of other headers, which takes no
# bindgen. Needs cargo and Debian's libclang-dev; bindgen is built once, under build/rust.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=0.73.2
tools=$PWD/build/rust/bindgen-$version
bindings=bindings/rust/routecap-sys/src/bindings.rs
generated=build/rust/bindings.rs
mkdir -p build/rust
headers="// Of headers with the SHA-256 $(cat include/routecap.h include/routecap/*.h | sha256sum | cut -d ' ' -f 1)"
if [ "${1:-}" = --check-headers ]; then
    [ "$(head -n 1 $bindings)" = "$headers" ] || { echo "generate: the headers have changed: run bindings/rust/generate.sh"; exit 1; }
    exit
fi

# bindgen-cli is a program of its own: nothing of it enters the crates. It runs for a moment, so
# that it is not optimized.
if [ ! -x "$tools/bin/bindgen" ]; then
    echo "generate: building bindgen $version (once, a minute)"
    CARGO_TARGET_DIR=$tools/target CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --quiet --locked --root "$tools" "bindgen-cli@$version"
    rm -rf "$tools/target"
fi

# All comments of the header are documentation, those behind a field too.
"$tools/bin/bindgen" include/routecap.h --allowlist-item '(routecap|ROUTECAP)_.*' --rust-target 1.85 --rust-edition 2024 --use-core \
    --with-derive-default --no-prepend-enum-name --disable-header-comment -- -Iinclude -fparse-all-comments > "$generated.raw"

# Two things that bindgen cannot be told: the types of constants, which C leaves to their use, and
# documentation in lines of ordinary length.
cat include/routecap/*.h | awk '
    # The headers: 1u is a flag, 1ull a count, everything else an int but for versions and limits,
    # which unsigned fields and arguments take.
    FNR == NR {
        if ($1 == "#define" && $2 ~ /^ROUTECAP_/ && $3 ~ /^\(?-?[0-9]/) {
            value = tolower($3)
            gsub(/[()]/, "", value)
            type[$2] = value ~ /ull$/ ? "u64" : value ~ /u$/ || $2 ~ /^ROUTECAP_(VERSION|MAX|MIN|SERIALIZED)_/ ? "u32" : "i32"
            sub(/u(ll)?$/, "", value)
            number[$2] = value
        }
        next
    }
    /^pub const ROUTECAP_/ {
        name = $3
        sub(/:$/, "", name)
        if (!(name in type)) { print "generate: no value for " name > "/dev/stderr"; failed = 1; exit 1 }
        print "pub const " name ": " type[name] " = " number[name] ";"
        next
    }
    /^ *#\[doc = "/ {
        indent = $0
        sub(/#.*/, "", indent)
        text = substr($0, length(indent) + 10, length($0) - length(indent) - 11)
        if (text ~ /^ *=====/) next                    # the name of a section, not of what follows
        gsub(/\\"/, "\"", text)
        count = split(text, line, /\\n/)
        for (i = 1; i <= count; i++) {
            sub(/ +$/, "", line[i])
            rest = line[i] ~ /^[^ ]/ ? " " line[i] : line[i]
            while (length(indent rest) > 147) {        # breaks at the last space that fits
                for (at = 147 - length(indent); at > 1 && substr(rest, at, 1) != " "; at--);
                print indent "///" substr(rest, 1, at - 1)
                rest = substr(rest, at)
            }
            print indent "///" rest
        }
        next
    }
    { print }
' - "$generated.raw" > "$generated"
rustfmt --edition 2024 --config-path bindings/rust/rustfmt.toml "$generated"
sed -i "1i $headers" "$generated"

if [ "${1:-}" = --check ]; then
    cmp "$generated" "$bindings" || { echo "generate: $bindings is not what the headers give: run bindings/rust/generate.sh"; exit 1; }
    echo "generate: $bindings is up to date"
else
    cp "$generated" "$bindings"
fi
