suite(sglang full 3600 bash integrations/sglang/check.sh)
