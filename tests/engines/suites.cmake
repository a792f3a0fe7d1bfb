suite(engines default 18 bash tests/engines/check.sh --without rust --without ollama --without candle)
suite(every-engine full 540 bash tests/engines/check.sh --full)
