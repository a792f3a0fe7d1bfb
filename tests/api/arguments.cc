// Bad input gets a status and one line of text, and changes nothing.
#include <rig.h>

#include <cstring>
#include <functional>

#include "../support/declared.h"

using namespace rig;

namespace {

routecap_config good_config() {
    routecap_config c;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&c, sizeof c));
    c.backend = backend();
    c.layers = 4, c.k = 2, c.experts = 16, c.rows = 32;
    return c;
}

bool built_with_cuda() {
    routecap_backend info{};
    info.struct_size = sizeof info;
    EXPECT_STATUS(ROUTECAP_OK, routecap_backend_info(ROUTECAP_BACKEND_CUDA, &info));
    return std::strstr(info.detail, "built without CUDA") == nullptr;
}

// The status of creating with a changed configuration. routecap_config_memory must say the same,
// but for what the machine alone can tell.
int32_t create(const std::function<void(routecap_config &)> &change) {
    routecap_config c = good_config();
    change(c);
    auto *capturer = reinterpret_cast<routecap_capturer *>(8);
    const int32_t status = routecap_capturer_create(&c, &capturer);
    EXPECT_EQ(capturer != nullptr, status >= 0);
    if (status < 0) {
        EXPECT_STRNE(routecap_last_error(), "");
        EXPECT_EQ(std::strchr(routecap_last_error(), '\n'), nullptr);
    }
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    const bool by_machine = c.backend == ROUTECAP_BACKEND_CUDA && c.device >= 0 &&
                            (status == ROUTECAP_ERR_NO_BACKEND || c.device > 0);
    EXPECT_STATUS(by_machine && built_with_cuda() ? ROUTECAP_OK : status,
                  routecap_config_memory(&c, &memory));
    routecap_capturer_destroy(capturer);
    return status;
}

}  // namespace

// Also where the device is what is wrong. It asks no driver, so that it can be called before a fork
// and without a device.
TEST(Arguments, config_memory_has_the_errors_of_create_that_no_driver_tells) {
    for (const int32_t device : {0, -1, 1, 1000})
        for (const int32_t on : {ROUTECAP_BACKEND_HOST, ROUTECAP_BACKEND_CUDA, 3})
            create([&](auto &c) { c.backend = on, c.device = device; });
    routecap_config c = good_config();
    c.backend = ROUTECAP_BACKEND_CUDA, c.device = -1;
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_config_memory(&c, &memory));
    if (on_cuda()) {
        EXPECT_LT(create([](auto &other) { other.device = 1000; }), 0);
    }
}

TEST(Arguments, configuration) {
    EXPECT_STATUS(ROUTECAP_OK, create([](auto &) {}));
    const std::vector<std::function<void(routecap_config &)>> wrong = {
        [](auto &c) { c.backend = 0; },
        [](auto &c) { c.role = 3; },
        [](auto &c) { c.role = -1; },
        [](auto &c) { c.layers = 0; },
        [](auto &c) { c.layers = ROUTECAP_MAX_LAYERS + 1; },
        [](auto &c) { c.k = 0; },
        [](auto &c) { c.k = ROUTECAP_MAX_K + 1; },
        [](auto &c) { c.experts = 1; },
        [](auto &c) { c.experts = 0; },
        [](auto &c) { c.experts = ROUTECAP_MAX_EXPERTS + 1; },
        [](auto &c) { c.rows = 0; },
        [](auto &c) { c.rows = ROUTECAP_MAX_ROWS + 1; },
        [](auto &c) { c.slots = ROUTECAP_MAX_SLOTS + 1; },
        [](auto &c) { c.sink_dtype = ROUTECAP_DTYPE_U8; },
        [](auto &c) { c.flags = kConfigFlags + 1; },
        [](auto &c) { c.flags = ROUTECAP_CONFIG_LOAD_TAGS; },
        [](auto &c) { c.id_space = 2; },
        [](auto &c) { c.max_requests = UINT32_MAX; },
        [](auto &c) { c.reserved = 1; },
        [](auto &c) { c.budget_bytes = 1; },
        [](auto &c) {
            static const int32_t map[] = {0, 1, 1, 2};
            c.layer_map = map;
        },
        [](auto &c) {
            static const int32_t map[] = {-1, 1, 2, 3};
            c.layer_map = map;
        },
        [](auto &c) {
            static const uint32_t experts[] = {16, 16, 1, 16};
            c.layer_experts = experts;
        },
    };
    for (size_t i = 0; i < wrong.size(); i++)
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, create(wrong[i])) << i;
    // Of a later version, as far as this one knows.
    EXPECT_STATUS(ROUTECAP_ERR_NO_BACKEND, create([](auto &c) { c.backend = 1000; }));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, create([](auto &c) { c.struct_size = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, create([](auto &c) { c.struct_size = 0; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_capturer_create(nullptr, nullptr));
    routecap_capturer *capturer = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_capturer_create(nullptr, &capturer));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_config_init(nullptr, sizeof(routecap_config)));
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_config_init(&config, 4));

    // The smallest budget is one page.
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    config = good_config();
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
    EXPECT_STATUS(ROUTECAP_OK, create([&](auto &c) { c.budget_bytes = memory.page_bytes; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  create([&](auto &c) { c.budget_bytes = memory.page_bytes - 1; }));
}

// Callers may be older or newer than the library.
TEST(Arguments, struct_sizes) {
    struct Newer {
        routecap_config config;
        uint64_t unknown[3];
    } newer{good_config(), {}};
    newer.config.struct_size = sizeof newer;
    routecap_capturer *capturer = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_create(&newer.config, &capturer));
    routecap_capturer *refused = nullptr;
    newer.unknown[1] = 1;
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_capturer_create(&newer.config, &refused));

    struct NewerStats {
        routecap_stats stats;
        uint64_t unknown[2];
    } stats;
    std::memset(&stats, 0xee, sizeof stats);  // only the size is looked at
    stats.stats.struct_size = sizeof stats;
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_stats(capturer, &stats.stats));
    EXPECT_EQ(stats.stats.steps_issued, 0u);
    EXPECT_EQ(stats.unknown[0] | stats.unknown[1], 0u);
    EXPECT_EQ(stats.stats.struct_size, sizeof stats);
    stats.stats.struct_size = 0xcccccccc;  // never set: where it is not, memory must not be written
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_capturer_stats(capturer, &stats.stats));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, create([](auto &c) { c.struct_size = 65537; }));
    auto *layers = reinterpret_cast<routecap_layer_stats *>(&stats);
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE,
                  routecap_capturer_layer_stats(capturer, layers, 65537, 1));
    stats.stats.struct_size = 16;
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_capturer_stats(capturer, &stats.stats));

    struct NewerSpan {
        routecap_span span;
        uint64_t unknown;
    } spans[2] = {};
    routecap_request r[2];
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_open(capturer, nullptr, r, 2));
    for (uint32_t i = 0; i < 2; i++) spans[i].span = Rig::span(r[i], 0, i, 1);
    routecap_step step = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(capturer, &spans[0].span, sizeof spans[0], 2,
                                                   nullptr, nullptr, &step, nullptr));
    spans[1].unknown = 1;
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE,
                  routecap_step_issue(capturer, &spans[0].span, sizeof spans[0], 2, nullptr,
                                      nullptr, &step, nullptr));
    EXPECT_EQ(step, 0u);
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_step_issue(capturer, &spans[0].span, 8, 2,
                                                                nullptr, nullptr, &step, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_step_issue(capturer, &spans[0].span, sizeof spans[0], SIZE_MAX / 8,
                                      nullptr, nullptr, &step, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_step_issue(capturer, &spans[0].span, sizeof(routecap_span), UINT32_MAX,
                                      nullptr, nullptr, &step, nullptr));

    struct NewerItem {
        routecap_finish_item item;
        uint64_t unknown;
    } items[2] = {};
    for (uint32_t i = 0; i < 2; i++) items[i].item.request = r[i], items[i].item.rows = 1;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_request_finish_batch(capturer, &items[0].item, sizeof items[0], 2));
    for (auto &i : items) routecap_routing_free(i.item.routing);
    // A size that is not believed is not written by either.
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE,
                  routecap_request_finish_batch(capturer, &items[0].item, size_t{1} << 40, 2));
    routecap_capturer_destroy(capturer);
}

// Some calls wrote to all elements before they looked how many there are said to be.
TEST(Arguments, more_elements_than_memory_can_hold_are_refused_and_none_is_written) {
    constexpr size_t kMany = SIZE_MAX / 8;
    routecap_config config = good_config();
    for (const int32_t role : {ROUTECAP_ROLE_OWNER, ROUTECAP_ROLE_DISABLED}) {
        SCOPED_TRACE(role);
        const bool captures = role == ROUTECAP_ROLE_OWNER;
        config.role = role;
        routecap_capturer *c = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &c));
        const auto refused = [](int32_t status) {
            EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, status);
            EXPECT_STRNE(routecap_last_error(), "");
        };
        routecap_request request = 7;
        int32_t status = 1;
        refused(routecap_request_open(c, nullptr, &request, kMany));
        EXPECT_EQ(request, 7u);
        refused(routecap_request_close_batch(c, &request, &status, kMany));
        refused(routecap_step_issue(c, nullptr, sizeof(routecap_span), kMany, nullptr, &status,
                                    nullptr, nullptr));
        EXPECT_EQ(status, 1);
        uint64_t counts = 5;
        routecap_load load{};
        load.struct_size = sizeof load;
        refused(routecap_capturer_load(c, nullptr, &load, &counts, kMany));
        EXPECT_EQ(counts, 5u);
        routecap_layer_stats stats{};
        refused(routecap_capturer_layer_stats(c, &stats, sizeof stats, kMany));
        auto *const routing = reinterpret_cast<routecap_routing *>(8);
        routecap_extract_item extract{};
        extract.routing = routing;
        const int32_t extracted =
            routecap_request_extract_batch(c, &extract, sizeof extract, kMany);
        routecap_finish_item finish{};
        finish.routing = routing;
        const int32_t finished = routecap_request_finish_batch(c, &finish, sizeof finish, kMany);
        EXPECT_TRUE(extract.routing == routing && finish.routing == routing);
        if (captures) {
            refused(extracted), refused(finished);
            routecap_accept_item accept{};
            refused(routecap_request_accept_batch(c, &accept, sizeof accept, kMany));
        } else {
            EXPECT_STATUS(ROUTECAP_ERR_DISABLED, extracted);
            EXPECT_STATUS(ROUTECAP_ERR_DISABLED, finished);
        }
        routecap_capturer_destroy(c);
    }

    config.role = ROUTECAP_ROLE_OWNER;
    routecap_store_config store_config{};
    ASSERT_STATUS(ROUTECAP_OK, routecap_store_config_init(&store_config, sizeof store_config));
    store_config.block_rows = 1, store_config.key_bytes = 8;
    routecap_store *store = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_store_create(&store_config, &config, &store));
    const uint64_t key = 5;
    int32_t reason = 1;
    uint64_t number = 1;
    for (const int32_t status : {routecap_store_contains(store, &key, kMany, 0, &reason, &number),
                                 routecap_store_retain(store, &key, kMany, &reason),
                                 routecap_store_release(store, &key, kMany),
                                 routecap_store_evict(store, &key, kMany, &number),
                                 routecap_store_move(store, &key, &key, kMany),
                                 routecap_store_export(store, &key, kMany, 0, nullptr, 0, &number)})
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, status);
    EXPECT_EQ(reason, 1);
    routecap_store_free(store);

    const routecap_routing *const no_routing = nullptr;
    routecap_routing *made = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_merge(&no_routing, kMany, 0, &made));
    const int32_t executed = 0, *const ranks = &executed;
    int32_t merged = 0;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_received_merge(&ranks, kMany, 1, &merged));
    made = reinterpret_cast<routecap_routing *>(8);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_plan_scatter(nullptr, nullptr, 0, nullptr, 0, &made, kMany));
    EXPECT_EQ(made, reinterpret_cast<routecap_routing *>(8));
}

TEST(Arguments, null_and_forms) {
    Rig rig;
    routecap_capturer *c = rig.capturer();
    const routecap_request r = rig.open();
    routecap_stats stats{};
    routecap_routing *routing = nullptr;
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_capturer_stats(nullptr, &stats));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_capturer_stats(c, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_capturer_stats(c, &stats));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_capturer_layer_stats(c, nullptr, sizeof(routecap_layer_stats), 1));
    routecap_layer_stats layers[5];
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER,
                  routecap_capturer_layer_stats(c, layers, sizeof layers[0], 5));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_capturer_layer_stats(c, layers, 8, 1));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sink_bind(c, 0, 1, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sink_layer(c, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_layer_record(c, 0, nullptr, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_open(c, nullptr, nullptr, 1));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(c, nullptr, nullptr, 0));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_fork(c, r, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_attach(c, r, nullptr, 0));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_request_coverage(c, r, 0, 0, nullptr, nullptr, 0, 0));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_coverage(c, r, 0, 0, &coverage, nullptr,
                                                                   sizeof(routecap_missing), 1));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_extract(c, r, 0, 0, 0, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_extract(c, r, 0, 0, 3, 0, &routing));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_extract(c, r, 0, 0, 0, 4, &routing));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_request_extract_batch(c, nullptr, sizeof(routecap_extract_item), 1));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_finish(c, r, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                  routecap_request_finish(c, r, ROUTECAP_MAX_POSITION + 1, &routing));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_request_close_batch(c, nullptr, nullptr, 1));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_wait(nullptr, 0));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_retain(nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(c, 1));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_finalize(c, 0, 0, nullptr));
    if (!on_cuda()) {  // where 1 is a stream
        const auto stream = reinterpret_cast<routecap_stream>(1);
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_step_begin(c, 1, stream));
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                      routecap_step_issue(c, nullptr, sizeof(routecap_span), 0, nullptr, nullptr,
                                          nullptr, stream));
    }
    rig.expect_length(r, 0);
    EXPECT_EQ(rig.stats().steps_issued, 0u);
}

TEST(Arguments, results_need_a_place) {
    Rig rig;
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 4}}}));
    const RoutingPtr made(rig.extract(r, 0, 4, ROUTECAP_OK));
    const routecap_routing *routing = made.get();
    auto *part = reinterpret_cast<routecap_routing *>(8);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    routecap_missing missing[1]{};
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_config_memory(&config, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_view(routing, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_routing_coverage(routing, nullptr, nullptr, 0, 0));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_routing_coverage(routing, &coverage, nullptr, sizeof *missing, 1));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE,
                  routecap_routing_coverage(routing, &coverage, missing, 1, 1));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_slice(routing, 0, 1, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_split(routing, 2, 2, nullptr, &part));
    EXPECT_EQ(part, nullptr);
    part = reinterpret_cast<routecap_routing *>(8);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_split(routing, 2, 2, &part, nullptr));
    EXPECT_EQ(part, nullptr);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_merge(&routing, 1, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_merge(&routing, 0, 0, &part));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_deserialize(missing, sizeof missing, 0,
                                                                      nullptr, nullptr, nullptr));
    const routecap_view view = view_of(routing);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_routing_import(&view, 0, nullptr, nullptr, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_serialized_info(missing, sizeof missing, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_serialized_splice(missing, sizeof missing, missing, sizeof missing, 0,
                                             nullptr, 0, nullptr, 0, 0, nullptr));
    routecap_copy_options options;
    EXPECT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
    options.dtype = ROUTECAP_DTYPE_I32;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_copy_to(routing, &options, nullptr,
                                                                  SIZE_MAX, nullptr, 0, nullptr));
    options.row_stride = INT64_MAX;  // more than there is
    EXPECT_STATUS(
        ROUTECAP_ERR_BUFFER_TOO_SMALL,
        routecap_routing_copy_to(routing, &options, missing, SIZE_MAX, nullptr, 0, nullptr));
}

TEST(Arguments, spans) {
    Rig rig;
    const routecap_request r = rig.open(), s = rig.open();
    rig.run({{1, 0, 8}});
    const auto refused = [&](int32_t status, std::vector<routecap_span> spans) {
        // A good one, which must have no effect.
        spans.insert(spans.begin(), Rig::span(s, 0, 0, 1));
        rig.issue(spans, status);
        rig.expect_length(s, 0);
        rig.expect_length(r, 0);
    };
    const auto with = [&](auto change) {
        routecap_span span = Rig::span(r, 0, 0, 1);
        change(span);
        return std::vector<routecap_span>{span};
    };
    refused(ROUTECAP_ERR_ARGUMENT, with([](auto &x) { x.rows = 0; }));
    refused(ROUTECAP_ERR_ARGUMENT, with([](auto &x) { x.flags = 32; }));
    refused(ROUTECAP_ERR_ARGUMENT,
            with([](auto &x) { x.flags = ROUTECAP_SPAN_PREFILL | ROUTECAP_SPAN_DECODE; }));
    refused(ROUTECAP_ERR_ARGUMENT, with([](auto &x) { x.reserved = 1; }));
    refused(ROUTECAP_ERR_ARGUMENT, with([](auto &x) { x.position_end = 1; }));
    refused(ROUTECAP_ERR_ARGUMENT, with([](auto &x) { x.position = ROUTECAP_MAX_POSITION; }));
    refused(ROUTECAP_ERR_ARGUMENT, with([](auto &x) { x.position = UINT64_MAX; }));
    refused(ROUTECAP_ERR_ARGUMENT,
            with([](auto &x) { x.position = ROUTECAP_MAX_POSITION - 1, x.rows = 2; }));
    refused(ROUTECAP_ERR_CAPACITY, with([](auto &x) { x.sink_row = 32; }));
    refused(ROUTECAP_ERR_CAPACITY, with([](auto &x) { x.rows = 33; }));
    refused(ROUTECAP_ERR_CAPACITY, with([](auto &x) { x.rows = UINT32_MAX, x.sink_row = 2; }));
    refused(ROUTECAP_ERR_CAPACITY, with([](auto &x) { x.sink_row = UINT32_MAX; }));
    // No positions.
    refused(ROUTECAP_ERR_ARGUMENT,
            with([](auto &x) { x.flags = ROUTECAP_SPAN_DEVICE_POSITIONS, x.position_end = 1; }));
    refused(ROUTECAP_ERR_OVERLAP, {Rig::span(r, 4, 0, 4), Rig::span(r, 0, 0, 5)});
    refused(ROUTECAP_ERR_OVERLAP, {Rig::span(r, 0, 0, 1), Rig::span(r, 8, 0, 4),
                                   Rig::span(r, 2, 0, 2), Rig::span(r, 3, 0, 3)});

    int64_t positions[32] = {};
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions = positions;
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    const auto device = [&](uint64_t first, uint64_t end) {
        routecap_span x = Rig::span(r, first, 0, 1, ROUTECAP_SPAN_DEVICE_POSITIONS);
        x.position_end = end;
        return std::vector<routecap_span>{x};
    };
    rig.issue(device(0, 0), ROUTECAP_ERR_ARGUMENT, nullptr, &options);
    rig.issue(device(5, 4), ROUTECAP_ERR_ARGUMENT, nullptr, &options);
    rig.issue(device(0, ROUTECAP_MAX_POSITION + 1), ROUTECAP_ERR_ARGUMENT, nullptr, &options);
    options.positions_dtype = ROUTECAP_DTYPE_I16;
    rig.issue(device(0, 1), ROUTECAP_ERR_DTYPE, nullptr, &options);
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    options.snapshot = 2;
    rig.issue(device(0, 1), ROUTECAP_ERR_ARGUMENT, nullptr, &options);
    options.snapshot = 0;
    options.reserved = 1;
    rig.issue(device(0, 1), ROUTECAP_ERR_ARGUMENT, nullptr, &options);
    EXPECT_EQ(rig.stats().steps_issued, 0u);
    EXPECT_EQ(rig.stats().rows_issued, 0u);

    // What was refused did not cost the forward: it is still there to be issued.
    rig.land(rig.issue({Rig::span(r, 0, 0, 8), Rig::span(s, 2, 1, 1), Rig::span(s, 0, 0, 1)}));
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 8));
}

TEST(Arguments, sources) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = 8}});
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
    const int32_t ids[64] = {0, 1};
    const auto record = [&](auto change, uint32_t layer = 0) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids;
        source.rows = 1;
        change(source);
        return rig.record(layer, source);
    };
    for (int32_t dtype : {0, ROUTECAP_DTYPE_U8, ROUTECAP_DTYPE_U16, 99})
        EXPECT_STATUS(ROUTECAP_ERR_DTYPE, record([&](auto &s) { s.dtype = dtype; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, record([](auto &s) { s.k_source = 1; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([](auto &s) { s.ids = nullptr; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([](auto &s) { s.table_size = 4; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([&](auto &s) { s.table = ids; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([](auto &s) { s.flags = 2; }));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, record([](auto &s) { s.first_row = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, record([](auto &s) { s.first_row = UINT32_MAX; }));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, record([](auto &s) { s.rows = 9; }));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, record([](auto &) {}, 2));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, record([](auto &s) { s.struct_size = 4; }));
    EXPECT_STATUS(ROUTECAP_OK, record([](auto &s) { s.rows = 0; }));
    EXPECT_STATUS(ROUTECAP_OK, record([](auto &) {}));
    // Arbitrary for one row.
    EXPECT_STATUS(ROUTECAP_OK, record([](auto &s) { s.row_stride = -77; }, 1));

    Rig unbound({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = 8},
                 .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
    EXPECT_STATUS(ROUTECAP_ERR_STATE, unbound.record(0, {{1, 2}}));
}

TEST(Arguments, binding) {
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 16, .rows = 8},
             .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
    auto *memory = static_cast<unsigned char *>(rig.device().allocate(1024));
    const auto bind = [&](uint32_t first, uint32_t layers, auto change) {
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        sink.dtype = ROUTECAP_DTYPE_I32;
        sink.ids = memory;
        sink.rows = 8;
        sink.k = 2;
        change(sink);
        return routecap_sink_bind(rig.capturer(), first, layers, &sink);
    };
    const auto same = [](auto &) {};
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, bind(3, 1, same));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, bind(2, 2, same));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, bind(1, UINT32_MAX, same));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, bind(0, 0, same));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, bind(0, 1, [](auto &s) { s.ids = nullptr; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, bind(0, 1, [&](auto &s) { s.ids = memory + 2; }));
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, bind(0, 1, [](auto &s) { s.dtype = ROUTECAP_DTYPE_U8; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, bind(0, 1, [](auto &s) { s.rows = 7; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, bind(0, 1, [](auto &s) { s.k = 3; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, bind(0, 1, [](auto &s) { s.row_stride = 1; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, bind(0, 2, [](auto &s) { s.layer_stride = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  bind(0, 2, [](auto &s) { s.row_stride = INT64_MAX; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  bind(0, 2, [](auto &s) { s.layer_stride = INT64_MAX; }));
    EXPECT_STATUS(ROUTECAP_OK, bind(0, 2, [](auto &s) { s.row_stride = 3, s.layer_stride = 40; }));
    EXPECT_STATUS(ROUTECAP_ERR_STATE, bind(0, 1, same));
    EXPECT_STATUS(ROUTECAP_ERR_STATE,
                  bind(0, 1, [](auto &s) { s.row_stride = 3, s.dtype = ROUTECAP_DTYPE_I16; }));
    // Layer 1 is fixed, so layer 2 is not bound either.
    EXPECT_STATUS(ROUTECAP_ERR_STATE, bind(1, 2, same));
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), 2, &sink));
    EXPECT_EQ(sink.ids, nullptr);
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), 1, &sink));
    EXPECT_EQ(sink.ids, memory + 40 * 4);
    EXPECT_EQ(sink.row_stride, 3);

    // A layer without a sink is missing.
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(2));
    for (uint32_t l : {0u, 1u}) rig.record_tokens(l, {{1, 0, 2}});
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 0, 2)}));
    Rows expected = routed_rows(rig.shape(), 1, 0, 2);
    for (Row &row : expected) row[2].reset();
    rig.expect(r, 0, expected);
    EXPECT_STATUS(ROUTECAP_ERR_STATE, bind(2, 1, same));  // begun
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, routecap_sink_layer(rig.capturer(), 3, &sink));
}

TEST(Arguments, requests_that_are_gone) {
    Rig rig({.max_requests = 2});
    const routecap_request a = rig.open(), b = rig.open();
    routecap_request more[2] = {9, 9};
    EXPECT_STATUS(ROUTECAP_ERR_TOO_MANY_REQUESTS,
                  routecap_request_open(rig.capturer(), nullptr, more, 1));
    EXPECT_EQ(more[0], 0u);
    EXPECT_STATUS(ROUTECAP_ERR_TOO_MANY_REQUESTS,
                  routecap_request_fork(rig.capturer(), a, 0, more));
    rig.close(a);
    EXPECT_STATUS(ROUTECAP_ERR_TOO_MANY_REQUESTS,
                  routecap_request_open(rig.capturer(), nullptr, more, 2));
    const routecap_request again = rig.open();
    EXPECT_NE(again, a);
    const RoutingPtr routing(rig.finish(b, 0));
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    routecap_routing *none = nullptr;
    for (routecap_request gone : {a, b, routecap_request{0}, ~routecap_request{0},
                                  routecap_request{again ^ (uint64_t{1} << 40)}}) {
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                      routecap_request_accept(rig.capturer(), gone, 1, nullptr, 0));
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                      routecap_request_truncate(rig.capturer(), gone, 0));
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                      routecap_request_fork(rig.capturer(), gone, 0, more));
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                      routecap_request_attach(rig.capturer(), gone, routing.get(), 0));
        EXPECT_STATUS(
            ROUTECAP_ERR_UNKNOWN_REQUEST,
            routecap_request_coverage(rig.capturer(), gone, 0, 0, &coverage, nullptr, 0, 0));
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                      routecap_request_extract(rig.capturer(), gone, 0, 0, 0, 0, &none));
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                      routecap_request_finish(rig.capturer(), gone, 0, &none));
        if (gone != 0) {
            EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                          routecap_request_close(rig.capturer(), gone));
        }
        rig.run({{1, 0, 1}});
        std::vector<int32_t> status;
        rig.issue({Rig::span(gone, 0, 0, 1)}, ROUTECAP_PARTIAL, &status);
        EXPECT_EQ(status[0], ROUTECAP_ERR_UNKNOWN_REQUEST);
    }
    EXPECT_EQ(rig.stats().rows_skipped, 5u);
    EXPECT_EQ(rig.stats().requests_open, 1u);
}

TEST(Arguments, backends) {
    routecap_backend info{};
    info.struct_size = sizeof info;
    EXPECT_STATUS(ROUTECAP_OK, routecap_backend_info(ROUTECAP_BACKEND_HOST, &info));
    EXPECT_EQ(info.available, 1);
    EXPECT_STATUS(ROUTECAP_OK, routecap_backend_info(ROUTECAP_BACKEND_CUDA, &info));
    EXPECT_STRNE(info.detail, "");
    if (info.available == 0) {
        EXPECT_STATUS(ROUTECAP_ERR_NO_BACKEND,
                      create([](auto &c) { c.backend = ROUTECAP_BACKEND_CUDA; }));
    }
    EXPECT_STATUS(ROUTECAP_OK, routecap_backend_info(1000, &info));
    EXPECT_EQ(info.available, 0);
    EXPECT_STRNE(info.detail, "");
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_backend_info(ROUTECAP_BACKEND_HOST, nullptr));
}

TEST(Arguments, names_and_texts) {
    EXPECT_STREQ(routecap_status_name(ROUTECAP_OK), "ROUTECAP_OK");
    EXPECT_STREQ(routecap_status_name(ROUTECAP_NOT_CAPTURED), "ROUTECAP_NOT_CAPTURED");
    EXPECT_STREQ(routecap_status_name(ROUTECAP_ERR_CAPACITY), "ROUTECAP_ERR_CAPACITY");
    EXPECT_STREQ(routecap_status_name(-12345), "ROUTECAP_STATUS_UNKNOWN");
    EXPECT_EQ(routecap_version(), ROUTECAP_VERSION_MAJOR * 10000u + ROUTECAP_VERSION_MINOR * 100u +
                                      ROUTECAP_VERSION_PATCH);
    EXPECT_NE(routecap_get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR), nullptr);
    EXPECT_EQ(routecap_get_api(ROUTECAP_VERSION_MAJOR + 1, 0), nullptr);
    const std::string own =
        std::to_string(ROUTECAP_VERSION_MAJOR) + "." + std::to_string(ROUTECAP_VERSION_MINOR);
    EXPECT_STREQ(routecap_last_error(), ("version " + std::to_string(ROUTECAP_VERSION_MAJOR + 1) +
                                         ".0 was asked for; this library has " + own)
                                            .c_str());
    EXPECT_EQ(routecap_get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR + 1), nullptr);
    EXPECT_EQ(routecap_get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR)->size,
              sizeof(routecap_api));
}
