suite(rust default 36 bash bindings/rust/test.sh build/install)
suite(rust-more full 300 bash bindings/rust/test.sh --more build/install)
