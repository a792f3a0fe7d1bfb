suite(llama-cpp default 18 bash integrations/llama_cpp/check.sh)
suite(llama-cpp-rust full 240 bash integrations/llama_cpp/check.sh --rust)
suite(llama-server full 60 bash integrations/llama_cpp/check.sh --server)
suite(conform-llama-cpp full 120 bash integrations/llama_cpp/check.sh --conform)
