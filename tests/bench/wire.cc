// Formats of the wire, decoded and encoded beside memcpy of the same message on the same thread:
// bench_wire [--quick] [--json FILE].
//
// GB/s are of the message as it travels, text included. Everything is repeated 15 times (3 with
// --quick), interleaved.
#include <routecap.h>

#include <algorithm>
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

struct Model {
    const char *name;
    uint32_t layers, k, experts;
};

// Rows of k distinct experts, drawn at random.
routecap_routing *random_routing(const Model &model, uint64_t rows) {
    std::mt19937 random(1);
    std::vector<uint16_t> all(model.experts), wide;
    std::iota(all.begin(), all.end(), uint16_t{0});
    for (uint64_t cell = 0; cell < rows * model.layers; cell++)
        for (uint32_t c = 0; c < model.k; c++) {
            std::swap(all[c], all[c + random() % (model.experts - c)]);
            wide.push_back(all[c]);
        }
    const std::vector<uint8_t> narrow(wide.begin(), wide.end());
    routecap_segment segment{};
    segment.rows = rows;
    segment.ids = model.experts <= 256 ? static_cast<const void *>(narrow.data()) : wide.data();
    routecap_view view{};
    view.struct_size = sizeof view,
    view.dtype = model.experts <= 256 ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I16;
    view.layers = model.layers, view.k = model.k, view.experts = model.experts, view.rows = rows;
    view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
    routecap_routing *routing = nullptr;
    CHECK(routecap_routing_import(&view, 0, nullptr, nullptr, &routing));
    return routing;
}

void measure(Report &report, const Model &model, uint64_t rows, int repetitions) {
    routecap_routing *const routing = random_routing(model, rows);
    routecap_wire_description format{};
    format.struct_size = sizeof format;
    for (int32_t f = ROUTECAP_WIRE_SERIALIZED; routecap_wire_describe(f, &format) == ROUTECAP_OK;
         f++) {
        routecap_wire_options options{};
        options.struct_size = sizeof options, options.format = f;
        uint64_t bytes = 0;
        routecap_wire_encode(routing, &options, nullptr, 0, &bytes, nullptr);
        std::vector<uint8_t> message(bytes, 1), to(bytes, 2);
        routecap_wire_hint hint{};
        hint.struct_size = sizeof hint, hint.layers = model.layers, hint.k = model.k,
        hint.experts = model.experts;
        std::vector<double> encode, decode, pieces, memory, fresh_memory, ratio;
        for (int i = -1; i < repetitions; i++) {
            const auto sample = [&](std::vector<double> &samples, auto call) {
                const double start = wall_us();
                call();
                const double used = wall_us() - start;
                if (i >= 0) samples.push_back(static_cast<double>(bytes) / used / 1e3);
            };
            sample(encode, [&] {
                CHECK(routecap_wire_encode(routing, &options, message.data(), bytes, nullptr,
                                           nullptr));
            });
            routecap_routing *decoded = nullptr;
            sample(decode, [&] {
                CHECK(routecap_wire_decode(message.data(), bytes, f, &hint, nullptr, &decoded));
            });
            routecap_routing_free(decoded);
            sample(pieces, [&] {
                routecap_wire_decoder *decoder = nullptr;
                CHECK(routecap_wire_decoder_create(f, &hint, &decoder));
                for (uint64_t at = 0; at < bytes; at += 65536)
                    CHECK(routecap_wire_decoder_write(decoder, message.data() + at,
                                                      std::min<uint64_t>(65536, bytes - at)));
                CHECK(routecap_wire_decoder_finish(decoder, nullptr, &decoded));
                routecap_wire_decoder_free(decoder);
            });
            routecap_routing_free(decoded);
            sample(memory, [&] {
                std::memcpy(to.data(), message.data(), bytes);
                asm volatile("" : : "r"(to.data()) : "memory");
            });
            sample(fresh_memory, [&] {  // as a routing's is
                auto *block = static_cast<uint8_t *>(std::malloc(bytes));
                std::memcpy(block, message.data(), bytes);
                asm volatile("" : : "r"(block) : "memory");
                std::free(block);
            });
            if (i >= 0) ratio.push_back(decode.back() / fresh_memory.back());
        }
        const std::string group = std::string(model.name) + ", " + format.name + ": " +
                                  std::to_string(bytes >> 20) + " MiB";
        const std::string parameters =
            "\"rows\": " + std::to_string(rows) + ", \"bytes\": " + std::to_string(bytes);
        report.add(group, "decode", parameters, "GB/s", estimate(decode),
                   format.format == ROUTECAP_WIRE_LISTS ? "" : "target 1.0");
        report.add(group, "decode in pieces of 64 KiB", parameters, "GB/s", estimate(pieces));
        report.add(group, "encode", parameters, "GB/s", estimate(encode));
        report.add(group, "memcpy of the message", parameters, "GB/s", estimate(memory));
        report.add(group, "memcpy of the message into new memory", parameters, "GB/s",
                   estimate(fresh_memory));
        report.add(group, "decode: share of that memcpy's speed", parameters, "ratio",
                   estimate(ratio));
    }
    routecap_routing_free(routing);
}

}  // namespace

int main(int argc, char **argv) {
    bool quick = false;
    std::string json;
    for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], "--quick") == 0) quick = true;
        if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[i + 1];
    }
    Report report("Formats of the wire", argc, argv);
    for (const Model &model :
         {Model{"48 x 8 of 128", 48, 8, 128}, Model{"58 x 8 of 256", 58, 8, 256},
          Model{"40 x 22 of 512", 40, 22, 512}})
        measure(report, model, quick ? 4096 : 32768, quick ? 3 : 15);
    if (!json.empty()) report.write_json(json);
}
