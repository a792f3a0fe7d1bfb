# Builds the example against the installed library, as $program. To be sourced in the project's root
# behind dev/setup.sh and use_library.
need cargo=cargo cc=gcc c++=g++ pkg-config=pkg-config
bash integrations/candle/patch.sh "$build/candle"
export CARGO_TARGET_DIR=$build/candle/target
say "setup: building candle"
cargo build --quiet --locked --manifest-path integrations/candle/Cargo.toml
program=$CARGO_TARGET_DIR/debug/candle-capture
