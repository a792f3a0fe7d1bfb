suite(every-trainer full 540 bash integrations/replay/check.sh --full)
suite(whole-ways full 540 bash integrations/replay/tests/whole_ways/check.sh)
