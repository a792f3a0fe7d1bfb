suite(routing default 6 bash tests/recording/check.sh --quick)
suite(every-routing full 60 bash tests/recording/check.sh)
