suite(ollama full 240 bash integrations/ollama/check.sh)
