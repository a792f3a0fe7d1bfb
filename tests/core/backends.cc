// Backends, from inside: the word by which a snapshot finds its slot, and by which rows that were
// begun under an older name are known; and what the forward path and filing, which hold no lock
// together, tell each other of a slot.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "backend/backends.h"
#include "capture/capturer.h"
#include "kernels/list.h"

using namespace routecap;

namespace {

constexpr uint32_t kLayers = 2, kColumns = 2, kRows = 4;

int32_t backend_to_test() {
    const char *backend = std::getenv("ROUTECAP_TEST_BACKEND");
    return backend != nullptr && std::strcmp(backend, "cuda") == 0 ? ROUTECAP_BACKEND_CUDA
                                                                   : ROUTECAP_BACKEND_HOST;
}

Config config_of(uint64_t first_epoch, int32_t backend) {
    routecap_config c;
    EXPECT_EQ(routecap_config_init(&c, sizeof c), ROUTECAP_OK);
    c.backend = backend;
    c.layers = kLayers, c.k = kColumns, c.experts = 16, c.rows = kRows, c.slots = 3;
    c.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS;
    Config config;
    EXPECT_EQ(read_config(&c, config), ROUTECAP_OK);
    config.first_epoch = first_epoch;
    return config;
}

// The ids of a row at some position: different from those of its neighbours.
uint8_t id(uint64_t position, uint32_t layer, uint32_t column) {
    return static_cast<uint8_t>((position * 3 + layer * 5 + column * 7) % 16);
}

}  // namespace

// A name that comes back must not be taken for the one before it: on words of fewer bits it was,
// 2^24 namings later.
TEST(Naming, two_names_are_different_however_many_are_between_them) {
    using namespace kernels;
    const SlotLayout layout(kRows, {kLayers, kColumns, 1, 0});
    for (const uint32_t bits : {8u, 16u, 24u, 32u, 40u, 55u}) {
        SCOPED_TRACE(bits);
        std::vector<int16_t> sink(kLayers * kRows * kColumns, 1);
        std::vector<SinkLayer> layers;
        for (uint32_t l = 0; l < kLayers; l++)
            layers.push_back({&sink[l * kRows * kColumns],
                              kColumns,
                              ROUTECAP_DTYPE_I16,
                              {16, kColumns, kColumns}});
        std::unique_ptr<uint8_t, void (*)(void *)> memory(
            static_cast<uint8_t *>(std::aligned_alloc(64, layout.bytes())), std::free);
        Control control{};
        control.named = {5, 7};
        EXPECT_EQ(control.named.slot(), 5);
        EXPECT_EQ(control.named.epoch(), 7u);
        uint8_t *const slots = memory.get() - 5 * layout.bytes();
        const Begin begin{layers.data(), kLayers, 3, 0, &control, slots, layout};
        begin.once();
        const Snapshot<uint8_t, 2> snapshot{layers.data(), kLayers, kColumns,
                                            &control,      slots,   layout};
        snapshot.once();
        EXPECT_EQ(control.rows(), 3u);
        EXPECT_EQ(read_slot(layout, memory.get(), 7).covered, 3u);

        const uint64_t later = 7 + (uint64_t{1} << bits);
        control.named = {5, later};
        EXPECT_EQ(control.named.slot(), 5);
        EXPECT_EQ(control.named.epoch(), later);
        EXPECT_EQ(control.rows(), 0u);
        EXPECT_EQ(read_slot(layout, memory.get(), later).covered, 0u);
    }
}

// The same by the calls that a discard makes, on the host: a device has the same words, but to name
// slots so often takes minutes there.
TEST(Naming, what_was_left_in_a_slot_is_not_what_a_later_step_covers) {
    std::unique_ptr<Backend> backend;
    ASSERT_EQ(make_backend(config_of(1, ROUTECAP_BACKEND_HOST).of_backend(), backend), ROUTECAP_OK);
    ASSERT_EQ(backend->begin(kRows, nullptr), ROUTECAP_OK);
    ASSERT_EQ(backend->snapshot(nullptr), ROUTECAP_OK);
    EXPECT_EQ(backend->contents(0).covered, kRows);
    for (uint32_t i = 0; i < 1u << 24; i++) backend->name_slot(0, nullptr);
    EXPECT_EQ(backend->contents(0).covered, 0u);
}

// Steps before, at and after the epochs at which a narrower word began anew. On a device they are
// those at which its upper half changes.
TEST(Naming, steps_go_on_where_the_epochs_outgrow_24_and_32_bits) {
    for (const uint64_t bits : {24u, 32u, 48u}) {
        SCOPED_TRACE(bits);
        std::unique_ptr<Capturer> capturer;
        ASSERT_EQ(
            Capturer::create(config_of((uint64_t{1} << bits) - 7, backend_to_test()), capturer),
            ROUTECAP_OK);
        routecap_request request = 0;
        ASSERT_EQ(capturer->requests.open(nullptr, &request, 1), ROUTECAP_OK);
        for (uint64_t position = 0; position < 16 * kRows; position += kRows) {
            ASSERT_EQ(capturer->forward.begin(kRows, nullptr), ROUTECAP_OK);
            for (uint32_t l = 0; l < kLayers; l++) {
                routecap_sink sink{};
                sink.struct_size = sizeof sink;
                ASSERT_EQ(capturer->forward.sink_layer(l, &sink), ROUTECAP_OK);
                for (uint32_t r = 0; r < kRows; r++)  // the fake driver's device is host memory
                    for (uint32_t c = 0; c < kColumns; c++)
                        static_cast<int16_t *>(sink.ids)[r * kColumns + c] = id(position + r, l, c);
            }
            ASSERT_EQ(capturer->forward.snapshot(nullptr), ROUTECAP_OK);
            routecap_span span{};
            span.request = request;
            span.position = position;
            span.rows = kRows;
            routecap_step step = 0;
            ASSERT_EQ(
                capturer->forward.issue(&span, sizeof span, 1, nullptr, nullptr, &step, nullptr),
                ROUTECAP_OK);
            ASSERT_EQ(capturer->finalize(step, -1, nullptr), ROUTECAP_OK);
            if (position % 3 == 0) {
                ASSERT_EQ(capturer->forward.discard(nullptr), ROUTECAP_OK);
            }
        }
        routecap_copy_options options;
        ASSERT_EQ(routecap_copy_options_init(&options, sizeof options), ROUTECAP_OK);
        options.dtype = ROUTECAP_DTYPE_U8;
        std::vector<uint8_t> ids(16 * kRows * kLayers * kColumns, 0xff), expected;
        ASSERT_EQ(capturer->reader.extract_into(request, 0, ROUTECAP_ROWS_ALL, &options, ids.data(),
                                                ids.size(), nullptr, 0, nullptr),
                  ROUTECAP_OK);
        for (uint64_t p = 0; p < 16 * kRows; p++)
            for (uint32_t l = 0; l < kLayers; l++)
                for (uint32_t c = 0; c < kColumns; c++) expected.push_back(id(p, l, c));
        EXPECT_EQ(ids, expected);
    }
}

// The forward thread hands a step over before it makes the copy: whoever files must not take what
// an earlier step left.
TEST(Backends, a_step_has_not_landed_before_it_was_copied) {
    std::unique_ptr<Backend> backend;
    ASSERT_EQ(make_backend(config_of(1, backend_to_test()).of_backend(), backend), ROUTECAP_OK);
    for (const uint32_t rows : {4u, 2u, 3u}) {
        bool capturing = true;
        ASSERT_EQ(backend->enter(nullptr, capturing), ROUTECAP_OK);
        ASSERT_EQ(backend->begin(rows, nullptr), ROUTECAP_OK);
        ASSERT_EQ(backend->snapshot(nullptr), ROUTECAP_OK);
        backend->expect(0);
        EXPECT_FALSE(backend->landed(0));
        backend->copy(0, rows, {nullptr, 0, 0}, 1, nullptr);
        while (!backend->landed(0)) std::this_thread::yield();
        EXPECT_EQ(backend->contents(0).covered, rows);
        EXPECT_EQ(backend->failure(0), nullptr);
        backend->name_slot(0, nullptr);
    }
}

// ---- Handles --------------------------------------------------------------------------------

// What a process has given out it never gives out again: at the end it refuses.
TEST(Handles, end_and_do_not_begin_anew) {
    Config config = config_of(0, ROUTECAP_BACKEND_HOST);
    std::unique_ptr<Capturer> capturer;
    ASSERT_EQ(Capturer::create(config, capturer), ROUTECAP_OK);
    const uint64_t before = Serials::take(1);
    Serials::start_at(Serials::kLast - 2);
    routecap_request requests[3] = {}, other = 0;
    ASSERT_EQ(capturer->requests.open(nullptr, requests, 2), ROUTECAP_OK);
    EXPECT_NE(requests[0], requests[1]);
    EXPECT_EQ(capturer->requests.open(nullptr, requests, 3), ROUTECAP_ERR_TOO_MANY_REQUESTS);
    EXPECT_EQ(capturer->requests.open(nullptr, &other, 1), ROUTECAP_OK);
    EXPECT_EQ(other >> Serials::kIndexBits, Serials::kLast);
    EXPECT_EQ(capturer->requests.open(nullptr, requests, 1), ROUTECAP_ERR_TOO_MANY_REQUESTS);
    routecap_request child = 0;
    EXPECT_EQ(capturer->requests.fork(other, 0, &child), ROUTECAP_ERR_TOO_MANY_REQUESTS);
    EXPECT_EQ(capturer->requests.close(other), ROUTECAP_OK);
    EXPECT_EQ(capturer->requests.open(nullptr, requests, 1), ROUTECAP_ERR_TOO_MANY_REQUESTS);
    Serials::start_at(before + 1);
}
