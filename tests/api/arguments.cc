// Bad input that the vectors cannot give: counts beyond all memory, buffers that are not there,
// devices that are none. It gets a status and one line of text.
#include <rig.h>

#include <cstring>
#include <functional>

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
        refused(routecap_capturer_load(c, &load, &counts, kMany));
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
                                 routecap_store_evict(store, &key, kMany, &number)})
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, status);
    EXPECT_EQ(reason, 1);
    routecap_store_free(store);

    const routecap_routing *const no_routing = nullptr;
    routecap_routing *made = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_merge(&no_routing, kMany, 0, &made));
    made = reinterpret_cast<routecap_routing *>(8);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_plan_scatter(nullptr, nullptr, 0, nullptr, 0, &made, kMany));
    EXPECT_EQ(made, reinterpret_cast<routecap_routing *>(8));
}

// The address of a layer was computed of any stride, and overflowed.
TEST(Arguments, strides_that_no_memory_has_are_refused_where_rows_arrive) {
    if (on_cuda()) return;  // rows arrive on the host backend alone
    Rig rig({.shape = {.layers = 3}});
    const routecap_request request = rig.open();
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = ROUTECAP_SNAPSHOT_LATER;
    const routecap_step step =
        rig.issue({rig.span(request, 0, 0, 1)}, ROUTECAP_OK, nullptr, &options);
    const std::vector<int16_t> ids(rig.shape().layers * rig.shape().k);
    routecap_sink rows{};
    rows.struct_size = sizeof rows;
    rows.dtype = ROUTECAP_DTYPE_I16;
    rows.ids = const_cast<int16_t *>(ids.data());
    rows.k = rig.shape().k;
    rows.rows = 1;
    for (const int64_t far : {INT64_MAX, INT64_MAX / 2, int64_t{1} << 51, INT64_MIN}) {
        rows.row_stride = 0, rows.layer_stride = far;
        EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                      routecap_step_arrive(rig.capturer(), step, &rows));
        rows.row_stride = far, rows.layer_stride = 0;
        EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                      routecap_step_arrive(rig.capturer(), step, &rows));
    }
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_arrive(rig.capturer(), step, nullptr));
    EXPECT_STATUS(ROUTECAP_LOST, routecap_step_finalize(rig.capturer(), step, -1, nullptr));
}

TEST(Arguments, memory_of_any_size_that_is_not_there_is_not_written) {
    Rig rig;
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 4}}}));
    const RoutingPtr routing(rig.extract(r, 0, 4, ROUTECAP_OK));
    routecap_copy_options options;
    EXPECT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
    options.dtype = ROUTECAP_DTYPE_I32;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_copy_to(routing.get(), &options, nullptr,
                                                                  SIZE_MAX, nullptr, 0, nullptr));
    int32_t one = 7;
    options.row_stride = INT64_MAX;  // more than there is
    EXPECT_STATUS(
        ROUTECAP_ERR_BUFFER_TOO_SMALL,
        routecap_routing_copy_to(routing.get(), &options, &one, SIZE_MAX, nullptr, 0, nullptr));
    EXPECT_EQ(one, 7);
    auto *part = reinterpret_cast<routecap_routing *>(8);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_routing_split(routing.get(), 2, 2, &part, nullptr));
    EXPECT_EQ(part, nullptr);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_serialized_splice(&one, sizeof one, &one, sizeof one, 0, nullptr, 0,
                                             nullptr, 0, 0, nullptr));
}
