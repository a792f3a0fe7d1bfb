suite(go default 24 bash bindings/go/test.sh build/install)
suite(go-more full 300 bash bindings/go/test.sh --more build/install)
