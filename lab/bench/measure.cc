#include "measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

namespace bench {
namespace {

double now_us(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

std::string processor() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
    return "unknown processor";
}

// Of the working directory, unless ROUTECAP_BENCH_COMMIT says what was built.
std::string commit() {
    if (const char *given = std::getenv("ROUTECAP_BENCH_COMMIT")) return given;
    std::string text;
    if (FILE *pipe = popen("git describe --always --dirty --abbrev=12 2>/dev/null", "r")) {
        char buffer[64];
        if (std::fgets(buffer, sizeof buffer, pipe) != nullptr) text = buffer;
        pclose(pipe);
    }
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.empty() ? "unknown" : text;
}

}  // namespace

double wall_us() { return now_us(CLOCK_MONOTONIC); }
double thread_cpu_us() { return now_us(CLOCK_THREAD_CPUTIME_ID); }

Estimate estimate(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    const auto n = static_cast<double>(samples.size());
    const double half = 0.98 * std::sqrt(n);  // ranks n/2 -+ 1.96 * sqrt(n)/2
    const auto at = [&](double rank) {
        return samples[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))];
    };
    return {at(n / 2), at(std::floor(n / 2 - half)), at(std::ceil(n / 2 + half))};
}

Report::Report(std::string title, int argc, char **argv) : title_(std::move(title)) {
    for (int i = 0; i < argc; i++) {
        std::string word = argv[i];
        if (i == 0) word = word.substr(word.find_last_of('/') + 1);
        if (i > 0 && std::string(argv[i - 1]) == "--json") word = "FILE";
        command_ += (i > 0 ? " " : "") + word;
    }
    std::printf("%s\n%s, %s\n", title_.c_str(), processor().c_str(), commit().c_str());
}

void Report::add(const std::string &group, const std::string &name, const std::string &parameters,
                 const std::string &unit, Estimate value, const std::string &comment) {
    if (group != group_) std::printf("\n%s\n", group.c_str());
    group_ = group;
    std::printf("  %-46s %10.2f %-8s [%.2f, %.2f]  %s\n", name.c_str(), value.median, unit.c_str(),
                value.low, value.high, comment.c_str());
    std::fflush(stdout);
    lines_.push_back({group, name, parameters, unit, value});
}

void Report::write_json(const std::string &path) const {
    std::ofstream out(path);
    out << "{\n  \"title\": \"" << title_ << "\",\n  \"command\": \"" << command_
        << "\",\n  \"commit\": \"" << commit() << "\",\n  \"processor\": \"" << processor()
        << "\",\n  \"compiler\": \"" << __VERSION__
        << "\",\n  \"interval\": \"95 % of the median\",\n  \"results\": [";
    for (size_t i = 0; i < lines_.size(); i++) {
        const Line &l = lines_[i];
        char numbers[128];
        std::snprintf(numbers, sizeof numbers, "\"median\": %.4f, \"low\": %.4f, \"high\": %.4f",
                      l.value.median, l.value.low, l.value.high);
        out << (i > 0 ? "," : "") << "\n    {\"group\": \"" << l.group << "\", \"name\": \""
            << l.name << "\", " << (l.parameters.empty() ? "" : l.parameters + ", ")
            << "\"unit\": \"" << l.unit << "\", " << numbers << "}";
    }
    out << "\n  ]\n}\n";
    if (!out) {
        std::fprintf(stderr, "cannot write %s\n", path.c_str());
        std::exit(1);
    }
}

}  // namespace bench
