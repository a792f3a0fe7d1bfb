suite(vllm full 540 bash integrations/vllm/examples/check.sh)
suite(vllm-engine full 3600 bash integrations/vllm/check.sh)
suite(vllm-releases full 3600 bash integrations/vllm/release.sh)
