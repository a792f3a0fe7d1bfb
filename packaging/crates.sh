# The two crates. Each is built from its package alone, without the network, against the library
# that library.sh made. Sourced by release.sh.
need cargo=cargo cc=gcc pkg-config=pkg-config
rm -rf "$work/crates" && mkdir -p "$work/crates"
cmake --install "$work/$(uname -m)" --prefix "$work/crates/prefix" > "$work/crates.log"
(
    cd bindings/rust
    export CARGO_TARGET_DIR=$work/crates/target PKG_CONFIG_PATH=$work/crates/prefix/lib/pkgconfig LD_LIBRARY_PATH=$work/crates/prefix/lib
    # A home of its own, with what is downloaded: cargo unpacks routecap-sys there, and would take
    # an older one that it finds.
    home=${CARGO_HOME:-$HOME/.cargo}
    logged crates-fetch cargo fetch --locked
    mkdir -p "$work/crates/home/registry"
    for shared in registry/index registry/cache config.toml; do
        [ ! -e "$home/$shared" ] || ln -s "$home/$shared" "$work/crates/home/$shared"
    done
    CARGO_HOME=$work/crates/home logged crates-package cargo package --workspace --locked --offline --allow-dirty
)
cp "$work"/crates/target/package/*.crate "$dist"
