// Runs a fuzz target without libFuzzer: on the files of its corpus, and on inputs drawn at random.
//
//     PROGRAM [--generated N] [--seed S] [--bytes MOST] [CORPUS.inputs]... [FILE]...
//
// Files that end in .inputs are corpora, as corpus.py packs them; any other is one input.
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace {

std::string running;

// From memory of just its size, so that a sanitizer sees what is read beyond it.
void run(const std::string &name, const std::vector<uint8_t> &input) {
    running = name;
    const std::vector<uint8_t> exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t generated = 0, seed = 0, most = 1024, inputs = 0;
    std::vector<std::filesystem::path> paths;
    for (int i = 1; i < argc; i++) {
        const auto number = [&] {
            return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0;
        };
        if (std::strcmp(argv[i], "--generated") == 0)
            generated = number();
        else if (std::strcmp(argv[i], "--seed") == 0)
            seed = number();
        else if (std::strcmp(argv[i], "--bytes") == 0)
            most = number();
        else
            paths.emplace_back(argv[i]);
    }
    check::on_failure = [] { std::fprintf(stderr, "while running %s\n", running.c_str()); };
    for (const std::filesystem::path &path : paths) {
        std::ifstream file(path, std::ios::binary);
        if (!file) check::fail("%s cannot be read", path.c_str());
        std::vector<uint8_t> data{std::istreambuf_iterator<char>(file), {}};
        if (path.extension() != ".inputs") {
            run(path.string(), data);
            inputs++;
            continue;
        }
        for (size_t at = 0; at < data.size(); inputs++) {
            uint32_t size = 0;
            std::memcpy(&size, &data[at], sizeof size);
            const auto from = data.begin() + static_cast<ptrdiff_t>(at += sizeof size);
            run("input " + std::to_string(inputs) + " of " + path.string(), {from, from + size});
            at += size;
        }
    }
    for (uint64_t i = 0; i < generated; i++) {
        std::mt19937_64 random(seed + i);
        std::vector<uint8_t> input(random() % most);
        for (uint8_t &byte : input) byte = static_cast<uint8_t>(random());
        run("--generated 1 --seed " + std::to_string(seed + i), input);
    }
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    std::printf("%llu inputs of the corpus and %llu generated, %.1f s of CPU time\n",
                static_cast<unsigned long long>(inputs), static_cast<unsigned long long>(generated),
                static_cast<double>(used.ru_utime.tv_sec) +
                    static_cast<double>(used.ru_utime.tv_usec) / 1e6);
    return inputs + generated > 0 ? 0 : 2;
}
