suite(grpo full 120 bash lab/grpo/check.sh --full)
