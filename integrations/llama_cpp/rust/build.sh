# Builds the example against the installed library, as $program. To be sourced in the project's root
# behind dev/setup.sh and use_library.
need cargo=cargo cmake=cmake c++=g++ pkg-config=pkg-config
need_libclang
# llama.cpp's C++ takes all the time: with little optimisation, half of it.
export CARGO_TARGET_DIR=$build/llama_cpp_rust LLAMA_LIB_PROFILE=Release CMAKE_C_FLAGS_RELEASE=-O1 CMAKE_CXX_FLAGS_RELEASE=-O1
say "setup: building llama.cpp for Rust"
cargo build --quiet --locked --manifest-path integrations/llama_cpp/rust/Cargo.toml
program=$CARGO_TARGET_DIR/debug/llama-cpp-capture
