# Builds the example against the installed library, as $program. To be sourced in the project's root
# behind dev/setup.sh and use_library.
need cc=gcc c++=g++ pkg-config=pkg-config
command -v go > /dev/null || { say "Go 1.24 or newer is needed"; exit 1; }
export GOCACHE=$build/go/cache GOMODCACHE=$build/go/modules GOFLAGS=-modcacherw CGO_CFLAGS=-O1 CGO_CXXFLAGS=-O1
say "setup: building Ollama's engine"
mkdir -p "$build/ollama"
program=$build/ollama/ollama
(cd integrations/ollama && go build -o "$program" .)
