suite(every-place default 6 bash tests/generate/check.sh)
suite(every-place-more full 120 bash tests/generate/check.sh --more)
