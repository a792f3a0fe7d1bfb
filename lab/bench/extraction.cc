#include "extraction.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace bench {
namespace {

void check(int32_t status) {
    if (status == ROUTECAP_OK) return;
    std::fprintf(stderr, "extraction: %s: %s\n", routecap_status_name(status),
                 routecap_last_error());
    std::exit(1);
}

}  // namespace

void extraction(Report &report, routecap_capturer *capturer, routecap_request request,
                uint64_t rows, size_t row_bytes, int repetitions, const std::string &parameters,
                bool targets) {
    const size_t bytes = rows * row_bytes;
    std::vector<uint8_t> dst(bytes, 1), src(bytes, 2);
    std::vector<double> take, share, copy, into, memory, fresh_memory, into_ratio, copy_ratio,
        serialize, copied, lent, trusted;
    routecap_routing *routing = nullptr;
    std::vector<uint8_t> serialized;
    uint64_t serialized_bytes = 0;
    const auto extract = [&](int32_t mode) {
        check(routecap_request_extract(capturer, request, 0, rows, mode, 0, &routing));
    };
    for (int i = -2; i < repetitions; i++) {
        const auto sample = [&](std::vector<double> &samples, auto f) {
            const double start = wall_us();
            f();
            const double used = wall_us() - start;
            if (i >= 0) samples.push_back(used);
            return used;
        };
        sample(share, [&] { extract(ROUTECAP_EXTRACT_SHARE); });
        if (serialized.empty()) {
            if (routecap_routing_serialize(routing, nullptr, 0, &serialized_bytes) !=
                ROUTECAP_ERR_BUFFER_TOO_SMALL)
                std::abort();
            serialized.resize(serialized_bytes);
        }
        sample(serialize, [&] {
            check(
                routecap_routing_serialize(routing, serialized.data(), serialized.size(), nullptr));
        });
        routecap_routing_free(routing);
        const auto deserialize = [&](uint32_t flags, routecap_release release) {
            check(routecap_routing_deserialize(serialized.data(), serialized.size(), flags, release,
                                               nullptr, &routing));
        };
        const auto keep = [](void *) {};
        sample(copied, [&] { deserialize(0, nullptr); });
        routecap_routing_free(routing);
        sample(lent, [&] { deserialize(0, keep); });
        routecap_routing_free(routing);
        sample(trusted, [&] { deserialize(ROUTECAP_IMPORT_TRUSTED, keep); });
        routecap_routing_free(routing);
        const double c = sample(copy, [&] { extract(ROUTECAP_EXTRACT_COPY); });
        routecap_routing_free(routing);
        const double f = sample(fresh_memory, [&] {
            auto *block = static_cast<uint8_t *>(std::malloc(bytes));
            std::memcpy(block, src.data(), bytes);
            asm volatile("" : : "r"(block) : "memory");
            std::free(block);
        });
        routecap_copy_options options;
        check(routecap_copy_options_init(&options, sizeof options));
        options.dtype = ROUTECAP_DTYPE_U8;
        options.flags = ROUTECAP_READ_STRICT;
        const double x = sample(into, [&] {
            check(routecap_request_extract_into(capturer, request, 0, rows, &options, dst.data(),
                                                bytes, nullptr, 0, nullptr));
        });
        const double m = sample(memory, [&] {
            std::memcpy(dst.data(), src.data(), bytes);
            asm volatile("" : : "r"(dst.data()) : "memory");
        });
        if (i >= 0) into_ratio.push_back(m / x), copy_ratio.push_back(f / c);
        sample(take, [&] { extract(ROUTECAP_EXTRACT_TAKE); });
        check(routecap_request_attach(capturer, request, routing, rows));  // and back
        routecap_routing_free(routing);
        extract(ROUTECAP_EXTRACT_SHARE);  // once that is applied
        routecap_routing_free(routing);
    }
    const std::string group = "Extraction of " + std::to_string(rows) + " rows (" +
                              std::to_string(bytes >> 10) + " KiB of ids)";
    const auto add = [&](const char *name, const char *unit, const std::vector<double> &samples,
                         const char *target = "") {
        report.add(group, name, parameters, unit, estimate(samples), targets ? target : "");
    };
    add("take", "us", take, "target 20");
    add("share", "us", share);
    add("copy, a routing of one array", "us", copy);
    add("memcpy into new memory", "us", fresh_memory);
    add("copy: share of that memcpy's speed", "ratio", copy_ratio, "target 0.80");
    add("extract_into, the caller's memory", "us", into);
    add("memcpy into the same memory", "us", memory);
    add("extract_into: share of that memcpy's speed", "ratio", into_ratio, "target 0.80");
    add("serialize", "us", serialize);
    add("deserialize, ids checked, a copy", "us", copied);
    add("deserialize, ids checked, in place", "us", lent);
    add("deserialize, trusted, in place", "us", trusted);
}

}  // namespace bench
