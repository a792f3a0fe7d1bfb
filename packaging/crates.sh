# The two crates, each built from its package without the network, against the library that
# library.sh made. Sourced by release.sh.
need cargo=cargo cc=gcc pkg-config=pkg-config
rm -rf "$work/crates" && mkdir -p "$work/crates"
cmake --install "$work/$(uname -m)" --prefix "$work/crates/prefix" > "$work/crates.log"
(
    cd bindings/rust
    export CARGO_TARGET_DIR=$work/crates/target PKG_CONFIG_PATH=$work/crates/prefix/lib/pkgconfig LD_LIBRARY_PATH=$work/crates/prefix/lib
    logged crates-fetch cargo fetch --locked
    logged crates-package rust_packages --locked --offline
)
cp "$work"/crates/target/package/*.crate "$dist"
