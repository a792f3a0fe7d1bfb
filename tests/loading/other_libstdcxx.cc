// A program with a C++ library of its own, linked into it and exported, so that its symbols come
// before those that routecap was linked with. It throws, starts threads and prints by that one, and
// uses routecap, which does so by its own.
//
//     other_libstdcxx LIBRARY
#include <dlfcn.h>
#include <routecap.h>

#include <cstdio>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

int failed = 0;
void check(bool holds, const char *what) {
    if (!holds) failed++, std::printf("does not hold: %s\n", what);
}
#define CHECK(expression) check(expression, #expression)

void own_library() {
    std::ostringstream text;
    try {
        std::vector<int>(1).at(7) = 1;
    } catch (const std::out_of_range &error) {
        text << error.what();
    }
    CHECK(!text.str().empty());
    int done = 0;
    std::thread([&] { done = 1; }).join();
    CHECK(done == 1);
}

void use(const routecap_api *api) {
    routecap_config config;
    CHECK(api->config_init(&config, sizeof config) == ROUTECAP_OK);
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = 1, config.k = 2, config.experts = 8, config.rows = 4;
    routecap_capturer *capturer = nullptr;
    // An exception inside: more memory than there is.
    routecap_config large = config;
    large.layers = ROUTECAP_MAX_LAYERS, large.k = ROUTECAP_MAX_K, large.experts = 64,
    large.rows = ROUTECAP_MAX_ROWS;
    large.slots = ROUTECAP_MAX_SLOTS;
    CHECK(api->capturer_create(&large, &capturer) == ROUTECAP_ERR_NO_MEMORY && capturer == nullptr);
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_OK);

    routecap_request request = 0;
    CHECK(api->request_open(capturer, nullptr, &request, 1) == ROUTECAP_OK);
    const std::vector<int32_t> ids{1, 2, 3, 4, 5, 6, 7, 0};
    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = ROUTECAP_DTYPE_I32;
    source.ids = ids.data();
    source.rows = 4;
    CHECK(api->step_begin(capturer, 4, nullptr) == ROUTECAP_OK);
    CHECK(api->layer_record(capturer, 0, &source, nullptr) == ROUTECAP_OK);
    CHECK(api->step_snapshot(capturer, nullptr) == ROUTECAP_OK);
    routecap_span span{};
    span.request = request;
    span.rows = 4;
    CHECK(api->step_issue(capturer, &span, sizeof span, 1, nullptr, nullptr, nullptr, nullptr) ==
          ROUTECAP_OK);
    routecap_routing *routing = nullptr;
    CHECK(api->request_finish(capturer, request, 4, &routing) == ROUTECAP_OK);
    CHECK(api->routing_wait(routing, -1) == ROUTECAP_OK);
    routecap_copy_options options;
    CHECK(api->copy_options_init(&options, sizeof options) == ROUTECAP_OK);
    options.dtype = ROUTECAP_DTYPE_I32;
    std::vector<int32_t> copy(8);
    CHECK(api->routing_copy_to(routing, &options, copy.data(), copy.size() * 4, nullptr, 0,
                               nullptr) == ROUTECAP_OK);
    CHECK(copy == ids);
    api->routing_free(routing);
    api->capturer_destroy(capturer);
}

}  // namespace

int main(int, char **argv) {
    own_library();
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::printf("%s\n", dlerror()), 2;
    const auto get_api =
        reinterpret_cast<decltype(&routecap_get_api)>(dlsym(library, "routecap_get_api"));
    for (int i = 0; i < 20; i++) use(get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR));
    own_library();
    std::cout << (failed == 0 ? "both libraries work\n" : "failed\n");
    return failed != 0;
}
