#!/usr/bin/env bash
# Copies candle-transformers out of cargo's cache and adds what an engine needs to be captured: one
# line in a model, behind its router, and observer.rs, which is all that this line calls. Nothing of
# candle is kept here.
#
#   patch.sh FOLDER   makes FOLDER/candle-transformers, which Cargo.toml names in [patch.crates-io]
set -euo pipefail
version=0.11.1
mkdir -p "$1/original/src"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")"
patched=$folder/candle-transformers
[ "$(cat "$patched/patched" 2> /dev/null)" = "$version $(cat patch.sh observer.rs | sha256sum)" ] && exit

cat > "$folder/original/Cargo.toml" << EOF
[package]
name = "original"
version = "0.0.0"
edition = "2024"
[dependencies]
candle-transformers = { version = "=$version", default-features = false }
EOF
touch "$folder/original/src/lib.rs"
cp Cargo.lock "$folder/original/" # the same versions of everything else
source=$(cargo metadata --quiet --format-version 1 --manifest-path "$folder/original/Cargo.toml" |
    grep -o "\"manifest_path\":\"[^\"]*/candle-transformers-$version/Cargo.toml\"" | cut -d '"' -f 4)
rm -rf "$patched"
cp -r "$(dirname "$source")" "$patched"
chmod -R u+w "$patched"
cp observer.rs "$patched/src/routing.rs"
echo 'pub mod routing;' >> "$patched/src/lib.rs"

# line MODEL PATTERN VARIABLE: the one line, before the only one that matches.
line() {
    local model=$patched/src/models/$1.rs
    [ "$(grep -c "$2" "$model")" = 1 ] || { echo "patch.sh: $1 of candle-transformers $version is not as expected"; exit 1; }
    sed -i "s/^.*$2/        crate::routing::observe(\&$3)?;\n&/" "$model"
}
line qwen2_moe 'let routing_weights = routing_weights.gather(&experts_per_tok, D::Minus1)?;' experts_per_tok
line qwen3_moe 'let routing_weights = routing_weights.gather(&experts_per_tok, D::Minus1)?;' experts_per_tok
line deepseek2 'let xs = xs.reshape(((), xs.dim(D::Minus1)?))?;' topk_idx
echo "$version $(cat patch.sh observer.rs | sha256sum)" > "$patched/patched"
