// Sequences: what appending a call costs beside the memory that must be compared and copied for it,
// on one thread: bench_sequence [--quick] [--json FILE].
//
// A call of 32,768 tokens whose first 31,744 the sequence has, 48 layers of 8 of 128 experts.
// Everything is repeated 15 times (3 with --quick), interleaved.
#include <routecap.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "measure.h"

namespace {

using namespace bench;

constexpr uint32_t kLayers = 48, kK = 8, kExperts = 128;
constexpr uint64_t kRowBytes = kLayers * kK;

// Ids of so many rows: k distinct experts in each cell.
std::vector<uint8_t> random_ids(uint64_t rows) {
    std::mt19937 random(1);
    std::vector<uint8_t> all(kExperts), ids;
    ids.reserve(rows * kRowBytes);
    std::iota(all.begin(), all.end(), uint8_t{0});
    for (uint64_t cell = 0; cell < rows * kLayers; cell++)
        for (uint32_t c = 0; c < kK; c++) {
            std::swap(all[c], all[c + random() % (kExperts - c)]);
            ids.push_back(all[c]);
        }
    return ids;
}

routecap_routing *routing_of(const std::vector<uint8_t> &ids, uint64_t first, uint64_t end) {
    routecap_segment segment{};
    segment.first = first, segment.rows = end - first, segment.ids = ids.data() + first * kRowBytes;
    routecap_view view{};
    view.struct_size = sizeof view, view.dtype = ROUTECAP_DTYPE_U8;
    view.layers = kLayers, view.k = kK, view.experts = kExperts;
    view.first = first, view.rows = end - first;
    view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
    routecap_routing *routing = nullptr;
    CHECK(routecap_routing_import(&view, ROUTECAP_IMPORT_TRUSTED, nullptr, nullptr, &routing));
    return routing;
}

routecap_sequence *new_sequence() {
    routecap_sequence_config config{};
    config.struct_size = sizeof config;
    config.layers = kLayers, config.k = kK, config.experts = kExperts;
    routecap_sequence *sequence = nullptr;
    CHECK(routecap_sequence_create(&config, &sequence));
    return sequence;
}

class Sampler {
public:
    Sampler(Report &report, std::string group, int repetitions)
        : report_(report), group_(std::move(group)), repetitions_(repetitions) {}
    // One thing to be measured: returns microseconds.
    void add(const std::string &name, std::function<double()> once) {
        things_.push_back({name, std::move(once), {}});
    }
    void run() {
        for (int i = -1; i < repetitions_; i++)
            for (Thing &thing : things_) {
                const double us = thing.once();
                if (i >= 0) thing.samples.push_back(us);
            }
        for (const Thing &thing : things_)
            report_.add(group_, thing.name, "\"layers\": 48, \"k\": 8", "us",
                        estimate(thing.samples));
    }

private:
    struct Thing {
        std::string name;
        std::function<double()> once;
        std::vector<double> samples;
    };
    Report &report_;
    std::string group_;
    int repetitions_;
    std::vector<Thing> things_;
};

template <class Call>
double timed(Call call) {
    const double start = wall_us();
    call();
    return wall_us() - start;
}

}  // namespace

int main(int argc, char **argv) {
    bool quick = false;
    std::string json;
    for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], "--quick") == 0) quick = true;
        if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[i + 1];
    }
    const uint64_t tokens = quick ? 4096 : 32768, known = tokens - tokens / 32;
    Report report("Sequences", argc, argv);
    const std::vector<uint8_t> ids = random_ids(tokens - 1), same = ids;
    std::vector<int32_t> text(tokens);
    std::iota(text.begin(), text.end(), 0);
    const std::vector<int32_t> same_text = text;

    routecap_routing *const first = routing_of(ids, 0, known - 1),
                            *const whole = routing_of(ids, 0, tokens - 1),
                            *const delta = routing_of(ids, known - 1, tokens - 1);
    routecap_sequence *const base = new_sequence();
    const auto append = [](routecap_sequence *to, const int32_t *some, uint64_t start,
                           uint64_t count, const routecap_routing *routing) {
        CHECK(routecap_sequence_append(to, some, start, count, routing, nullptr, nullptr));
    };
    append(base, text.data(), 0, known, first);
    const auto forked = [&] {
        routecap_sequence *child = nullptr;
        CHECK(routecap_sequence_fork(base, ROUTECAP_ROWS_ALL, &child));
        return child;
    };
    const auto bytes_of = [](routecap_sequence *of) {
        routecap_append_report sums{};
        sums.struct_size = sizeof sums;
        CHECK(routecap_sequence_report(of, &sums));
        return sums.bytes;
    };
    // Appends to a fork of what is known, which is freed outside of the time.
    const auto appended = [&](const int32_t *some, uint64_t start, const routecap_routing *rows) {
        routecap_sequence *child = forked();
        const double us = timed([&] { append(child, some, start, tokens - start, rows); });
        routecap_sequence_free(child);
        return us;
    };

    const uint64_t before = bytes_of(base);
    routecap_sequence *child = forked();
    const uint64_t of_fork = bytes_of(base) - before;
    append(child, text.data(), 0, tokens, whole);
    const uint64_t of_append = bytes_of(base) - before - of_fork;
    routecap_sequence_free(child);

    const std::string group =
        std::to_string(tokens) + " tokens, of which " + std::to_string(known) + " are known";
    const uint64_t new_rows = tokens - known;
    Sampler sampler(report, group, quick ? 3 : 15);
    sampler.add("append, all tokens and rows again",
                [&] { return appended(text.data(), 0, whole); });
    sampler.add("append, all tokens and the new rows",
                [&] { return appended(text.data(), 0, delta); });
    sampler.add("append, the new tokens and rows",
                [&] { return appended(text.data() + known, known, delta); });
    sampler.add("limit: memcmp of known tokens and rows", [&] {
        return timed([&] {
            if (std::memcmp(text.data(), same_text.data(), known * 4) != 0 ||
                std::memcmp(ids.data(), same.data(), (known - 1) * kRowBytes) != 0)
                std::abort();
        });
    });
    sampler.add("limit: memcpy of new rows into new memory", [&] {
        return timed([&] {
            auto *block = static_cast<uint8_t *>(std::malloc(new_rows * kRowBytes));
            std::memcpy(block, ids.data(), new_rows * kRowBytes);
            asm volatile("" : : "r"(block) : "memory");
            std::free(block);
        });
    });
    sampler.add("the first append, of the known ones", [&] {
        routecap_sequence *fresh = new_sequence();
        const double us = timed([&] { append(fresh, text.data(), 0, known, first); });
        routecap_sequence_free(fresh);
        return us;
    });
    sampler.add("fork", [&] {
        routecap_sequence *made = nullptr;
        const double us = timed([&] { made = forked(); });
        routecap_sequence_free(made);
        return us;
    });
    sampler.add("routing", [&] {
        routecap_routing *made = nullptr;
        const double us = timed([&] { CHECK(routecap_sequence_routing(base, &made)); });
        routecap_routing_free(made);
        return us;
    });
    uint64_t needed = 0;
    routecap_sequence_serialize(base, ROUTECAP_SEQUENCE_WITH_TOKENS, nullptr, 0, &needed);
    std::vector<uint8_t> bytes(needed), copy(needed, 1);
    sampler.add("serialise, with tokens", [&] {
        return timed([&] {
            CHECK(routecap_sequence_serialize(base, ROUTECAP_SEQUENCE_WITH_TOKENS, bytes.data(),
                                              needed, nullptr));
        });
    });
    sampler.add("deserialise, ids checked", [&] {
        routecap_sequence *made = nullptr;
        const double us =
            timed([&] { CHECK(routecap_sequence_deserialize(bytes.data(), needed, 0, &made)); });
        routecap_sequence_free(made);
        return us;
    });
    sampler.add("limit: memcpy of these bytes", [&] {
        return timed([&] {
            std::memcpy(copy.data(), bytes.data(), needed);
            asm volatile("" : : "r"(copy.data()) : "memory");
        });
    });
    std::vector<routecap_routing *> rows;  // a stream: a row for each token
    const uint64_t streamed = 1024;
    for (uint64_t t = 0; t < streamed; t++)
        rows.push_back(routing_of(ids, known - 1 + t % new_rows, known + t % new_rows));
    sampler.add("append token by token, each of " + std::to_string(new_rows), [&] {
        routecap_sequence *made = forked();
        const double us = timed([&] {
            for (uint64_t t = 0; t < new_rows; t++)
                append(made, text.data() + known + t, known + t, 1, rows[t]);
        });
        routecap_sequence_free(made);
        return us / static_cast<double>(new_rows);
    });
    sampler.run();
    const auto exactly = [](uint64_t n) {
        return Estimate{static_cast<double>(n), static_cast<double>(n), static_cast<double>(n)};
    };
    report.add(group + ": memory", "the known ones", "", "bytes", exactly(before));
    report.add(group + ": memory", "a fork of them", "", "bytes", exactly(of_fork));
    report.add(group + ": memory", "the append, all tokens and rows again", "", "bytes",
               exactly(of_append));
    report.add(group + ": memory", "ids of its new rows", "", "bytes",
               exactly(new_rows * kRowBytes));
    for (routecap_routing *each : rows) routecap_routing_free(each);
    for (routecap_routing *each : {first, whole, delta}) routecap_routing_free(each);
    routecap_sequence_free(base);
    if (!json.empty()) report.write_json(json);
}
