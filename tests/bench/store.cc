// The store of prefixes: bench_store [--quick] [--json FILE]
//
// L = 48 layers, K = 8, E = 128: one row has 384 bytes of ids and 6 of validity. Everything is
// repeated 15 times (3 with --quick). The capturer makes no progress by itself, so that the time of
// the calls (the engine's thread) and of progress (the worker's) are told apart.
#include <routecap.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "measure.h"

namespace {

using namespace bench;

constexpr uint32_t kLayers = 48, kK = 8, kExperts = 128, kRowBytes = kLayers * kK + kLayers / 8;
constexpr uint32_t kPass = 4096;  // rows

struct Engine {
    Engine() : ids(size_t{kPass} * kK) {
        CHECK(routecap_config_init(&config, sizeof config));
        config.backend = ROUTECAP_BACKEND_HOST;
        config.layers = kLayers, config.k = kK, config.experts = kExperts, config.rows = kPass;
        config.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS;
        config.budget_bytes = uint64_t{2} << 30;
        CHECK(routecap_capturer_create(&config, &capturer));
        for (size_t i = 0; i < ids.size(); i++)
            ids[i] = static_cast<int32_t>((i / kK * 13 + i % kK * 31) % kExperts);
    }
    ~Engine() { routecap_capturer_destroy(capturer); }

    routecap_request open() {
        routecap_request request = 0;
        CHECK(routecap_request_open(capturer, nullptr, &request, 1));
        return request;
    }
    void progress() { CHECK(routecap_capturer_progress(capturer)); }
    void run(routecap_request request, uint64_t position, uint32_t rows) {
        CHECK(routecap_step_begin(capturer, rows, nullptr));
        routecap_source source{};
        source.struct_size = sizeof source, source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids.data(), source.rows = rows;
        for (uint32_t l = 0; l < kLayers; l++)
            CHECK(routecap_layer_record(capturer, l, &source, nullptr));
        CHECK(routecap_step_snapshot(capturer, nullptr));
        routecap_span span{};
        span.request = request, span.position = position, span.rows = rows;
        routecap_step step = 0;
        CHECK(
            routecap_step_issue(capturer, &span, sizeof span, 1, nullptr, nullptr, &step, nullptr));
        progress();
    }

    routecap_config config{};
    routecap_capturer *capturer = nullptr;
    std::vector<int32_t> ids;
};

struct Prefixes {
    Prefixes(const Engine &engine, uint32_t rows, uint32_t bytes, uint32_t flags,
             bool shared = false)
        : block_rows(rows), key_bytes(bytes) {
        routecap_store_config config;
        CHECK(routecap_store_config_init(&config, sizeof config));
        config.block_rows = rows, config.key_bytes = bytes, config.flags = flags;
        config.budget_bytes = uint64_t{shared ? 64u : 1024u} << 20;
        if (shared)
            CHECK(routecap_store_create_shared(&config, &engine.config, &descriptor, &store));
        else
            CHECK(routecap_store_create(&config, &engine.config, &store));
    }
    ~Prefixes() {
        routecap_store_free(store);
        if (descriptor >= 0) close(descriptor);
    }

    std::vector<uint8_t> keys(uint64_t first, size_t count) const {
        std::vector<uint8_t> made(count * key_bytes);
        for (size_t i = 0; i < count; i++) {
            const uint64_t number = (first + i) * 0x9e3779b97f4a7c15;
            std::memcpy(&made[i * key_bytes], &number, sizeof number);
        }
        return made;
    }
    routecap_store_counts counts() const {
        routecap_store_counts counts{};
        counts.struct_size = sizeof counts;
        CHECK(routecap_store_stats(store, &counts));
        return counts;
    }

    const uint32_t block_rows, key_bytes;
    routecap_store *store = nullptr;
    int32_t descriptor = -1;
};

double timed(const std::function<void()> &work) {
    const double start = wall_us();
    work();
    return wall_us() - start;
}

std::string parameter(const char *name, uint64_t value) {
    return "\"" + std::string(name) + "\": " + std::to_string(value);
}

// What the library takes to copy rows that somebody else may write, and to check their ids.
double copy_and_check(std::vector<uint8_t> &rows, uint64_t count) {
    for (uint64_t i = 0; i < count * kLayers * kK; i++)
        rows[i] = static_cast<uint8_t>((i / kK * 13 + i % kK * 31) % kExperts);
    routecap_segment segment{};
    segment.rows = count, segment.ids = rows.data();
    routecap_view view{};
    view.struct_size = sizeof view, view.layers = kLayers, view.k = kK, view.experts = kExperts;
    view.dtype = ROUTECAP_DTYPE_U8, view.rows = count;
    view.segments = &segment, view.segment_count = 1, view.segment_size = sizeof segment;
    routecap_routing *routing = nullptr;
    const double us =
        timed([&] { CHECK(routecap_routing_import(&view, 0, nullptr, nullptr, &routing)); });
    routecap_routing_free(routing);
    return us;
}

// The least that writers without a lock take for so many blocks: each is claimed by a
// compare-and-swap, copied with a checksum by words that readers may see, published by a store, and
// found by another compare-and-swap.
double least(const std::vector<uint8_t> &rows, size_t blocks) {
    using Word = std::atomic<uint64_t>;
    const size_t words = rows.size() / blocks / sizeof(Word);
    static std::vector<Word> to, states, index;  // which are in memory already
    if (to.size() < words * blocks || states.size() < blocks) {
        to = std::vector<Word>(words * blocks);
        states = std::vector<Word>(blocks), index = std::vector<Word>(2 * blocks);
    }
    for (Word &state : states) state = 0;
    for (Word &cell : index) cell = 0;
    return timed([&] {
        for (size_t b = 0; b < blocks; b++) {
            uint64_t claimed = 0, none = 0, sum[4] = {1, 2, 3, 4};
            states[b].compare_exchange_strong(claimed, 1);
            for (size_t w = 0; w < words; w++) {
                uint64_t word;
                std::memcpy(&word, &rows[(b * words + w) * sizeof word], sizeof word);
                to[b * words + w].store(word, std::memory_order_relaxed);
                sum[w % 4] = (sum[w % 4] + word) * 0x9e3779b97f4a7c15;
            }
            const uint64_t all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
            states[b].store(all | 2, std::memory_order_release);
            index[b * 0x9e3779b97f4a7c15 % index.size()].compare_exchange_strong(none, b + 1);
        }
    });
}

// Publishes and adopts `rows` rows, a pass at a time or `piece` rows at a time.
void measure(Report &report, const char *name, uint32_t block_rows, uint32_t key_bytes,
             uint32_t flags, uint64_t rows, uint32_t piece, int repetitions, bool shared = false) {
    std::vector<double> publish_call, publish_work, adopt_call, adopt_work, look, copy, check,
        ratio, bytes, no_less;
    const std::string group = name;
    const size_t pass_blocks = kPass / block_rows, blocks = rows / block_rows;
    // One store for all, in which memory is used again and again.
    Engine engine;
    Prefixes prefixes(engine, block_rows, key_bytes, flags, shared);
    for (int i = -2; i < repetitions; i++) {
        const routecap_request a = engine.open(), b = engine.open();
        double call = 0, work = 0;
        for (uint64_t position = 0; position < rows; position += piece) {
            engine.run(a, position, piece);
            const std::vector<uint8_t> keys =
                prefixes.keys(position / block_rows, piece / block_rows);
            call += timed([&] {
                CHECK(routecap_request_publish(engine.capturer, a, prefixes.store, position,
                                               keys.data(), piece / block_rows, 0));
            });
            work += timed([&] { engine.progress(); });
        }
        const std::vector<uint8_t> keys = prefixes.keys(0, blocks);
        uint64_t there = 0;
        const double looked = timed([&] {
            CHECK(routecap_store_contains(prefixes.store, keys.data(), blocks, 0, nullptr, &there));
        });
        const double adopted = timed([&] {
            CHECK(routecap_request_adopt(engine.capturer, b, prefixes.store, 0, keys.data(), blocks,
                                         0, nullptr));
        });
        const double filled = timed([&] { engine.progress(); });
        std::vector<uint8_t> from(rows * kRowBytes, 1), to(rows * kRowBytes, 2);
        const double copied = timed([&] { std::memcpy(to.data(), from.data(), from.size()); });
        const double checked = copy_and_check(from, rows);
        const double needed = shared ? least(from, blocks) : 0;
        if (there != blocks) std::abort();
        const double used = static_cast<double>(prefixes.counts().bytes_in_use);
        CHECK(routecap_store_evict(prefixes.store, keys.data(), blocks, nullptr));
        for (const routecap_request request : {a, b})
            CHECK(routecap_request_close(engine.capturer, request));
        engine.progress();
        if (i < 0) continue;
        publish_call.push_back(call / static_cast<double>(blocks) *
                               static_cast<double>(pass_blocks));
        publish_work.push_back(work / static_cast<double>(blocks) *
                               static_cast<double>(pass_blocks));
        no_less.push_back(needed / static_cast<double>(blocks) * static_cast<double>(pass_blocks));
        look.push_back(looked);
        adopt_call.push_back(adopted);
        adopt_work.push_back(filled);
        copy.push_back(copied);
        check.push_back(checked);
        ratio.push_back(filled / checked);
        bytes.push_back(used / static_cast<double>(rows) - kRowBytes);
    }
    const std::string of = parameter("block_rows", block_rows) + ", " + parameter("rows", rows);
    const std::string many = std::to_string(pass_blocks) + " blocks",
                      all = std::to_string(blocks) + " blocks";
    report.add(group, "publish " + many + ", the call", of, "us", estimate(publish_call));
    report.add(group, "publish " + many + ", the worker", of, "us", estimate(publish_work));
    if (shared)
        report.add(group, "publish " + many + ", the least", of, "us", estimate(no_less));
    report.add(group, "look up " + all, of, "us", estimate(look));
    report.add(group, "adopt " + all + ", the call", of, "us", estimate(adopt_call));
    report.add(group, "adopt " + all + ", the worker", of, "us", estimate(adopt_work));
    report.add(group, "memcpy of as many rows", of, "us", estimate(copy));
    report.add(group, "copying and checking as many rows", of, "us", estimate(check));
    report.add(group, "adopt, the worker, over copying and checking", of, "x", estimate(ratio));
    report.add(group, "bytes of a stored row beside its cells", of, "bytes", estimate(bytes));
}

void measure_nothing(Report &report, int repetitions) {
    Engine engine;
    Prefixes prefixes(engine, 16, 32, 0);
    for (int r = 0; r < 256; r++) engine.open();
    std::vector<double> us;
    for (int i = 0; i < 100 * repetitions; i++)
        us.push_back(timed([&] {
            CHECK(
                routecap_request_publish_batch(engine.capturer, prefixes.store, nullptr, 0, 0, 0));
        }));
    report.add("256 requests", "a step in which nothing is published", "", "us", estimate(us));
}

}  // namespace

int main(int argc, char **argv) {
    const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
    const int repetitions = quick ? 3 : 15;
    Report report("the store of prefixes", argc, argv);
    measure(report, "blocks of 16 rows, published by the pass", 16, 32, 0, 32768, kPass,
            repetitions);
    measure(report, "blocks of 16 rows, published one by one", 16, 32, 0, 8192, 16, repetitions);
    measure(report, "slots of one row, published by the pass", 1, 8, ROUTECAP_STORE_SLOT_KEYS,
            32768, kPass, repetitions);
    measure(report, "slots of one row, published one by one", 1, 8, ROUTECAP_STORE_SLOT_KEYS, 4096,
            1, repetitions);
    measure(report, "shared: blocks of 16 rows", 16, 32, 0, 32768, kPass, repetitions, true);
    measure(report, "shared: slots of one row", 1, 8, ROUTECAP_STORE_SLOT_KEYS, 32768, kPass,
            repetitions, true);
    measure_nothing(report, repetitions);
    for (int i = 1; i + 1 < argc; i++)
        if (std::strcmp(argv[i], "--json") == 0) report.write_json(argv[i + 1]);
}
