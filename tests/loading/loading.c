/*
 * What loading the library does to a process: nothing. And what it must survive: being loaded
 * twice, from two files, by many threads at once, and being closed while it is used.
 *
 *     loading LIBRARY COPY      COPY: the same library in another file
 *
 * Each case runs in a process of its own. The cases of the CUDA backend need the fake driver
 * (LD_LIBRARY_PATH=.../fake) and are left out without it, which is said. Ends with one line that
 * counts.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <routecap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../fault/fake_cuda.h"

static const char *library_file, *copy_file;
static int passed, failed;

static void check(int holds, const char *what, int line) {
    if (holds) {
        passed++;
        return;
    }
    failed++;
    printf("  loading.c:%d does not hold: %s\n", line, what);
}
#define CHECK(expression) check((expression) != 0, #expression, __LINE__)

/* ---- What a process has --------------------------------------------------------------------- */

static int entries(const char *folder) {
    DIR *directory = opendir(folder);
    int count = 0;
    while (directory != NULL && readdir(directory) != NULL) count++;
    if (directory != NULL) closedir(directory);
    return count;
}
static int threads(void) { return entries("/proc/self/task"); }
static int files(void) { return entries("/proc/self/fd"); }

/* The driver, if something has loaded it. */
static void *loaded_driver(void) { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); }

/* The fake driver's controls; NULL if that is not what is found. Loads it. */
static const fake_cuda *fake(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const fake_cuda *(*control)(void) = NULL;
    if (driver != NULL) *(void **)&control = dlsym(driver, "fake_cuda_control");
    return control == NULL ? NULL : control();
}

/* ---- What a program does with the library ---------------------------------------------------- */

static void *load(const char *file, int mode) {
    void *handle = dlopen(file, mode);
    if (handle == NULL) printf("%s\n", dlerror()), exit(2);
    return handle;
}

static const routecap_api *api_of(void *handle) {
    const routecap_api *(*get_api)(uint32_t, uint32_t);
    *(void **)&get_api = dlsym(handle, "routecap_get_api");
    return get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR);
}

static routecap_config config_of(const routecap_api *api, int32_t backend) {
    routecap_config config;
    CHECK(api->config_init(&config, sizeof config) == ROUTECAP_OK);
    config.backend = backend;
    config.layers = 2, config.k = 2, config.experts = 16, config.rows = 8;
    return config;
}

/* A capturer, a step of `rows` rows, and its routing, which is still in flight when it is returned.
 */
static routecap_routing *capture(const routecap_api *api, routecap_capturer *capturer,
                                 int32_t rows) {
    int32_t ids[2][8][2];
    for (int l = 0; l < 2; l++)
        for (int r = 0; r < 8; r++)
            ids[l][r][0] = (l + 3 * r) % 16, ids[l][r][1] = (l + 3 * r + 5) % 16;
    routecap_request request = 0;
    CHECK(api->request_open(capturer, NULL, &request, 1) == ROUTECAP_OK);
    CHECK(api->step_begin(capturer, (uint32_t)rows, NULL) == ROUTECAP_OK);
    for (uint32_t l = 0; l < 2; l++) {
        routecap_source source = {.struct_size = sizeof source,
                                  .dtype = ROUTECAP_DTYPE_I32,
                                  .ids = ids[l],
                                  .rows = (uint32_t)rows};
        CHECK(api->layer_record(capturer, l, &source, NULL) == ROUTECAP_OK);
    }
    CHECK(api->step_snapshot(capturer, NULL) == ROUTECAP_OK);
    routecap_span span = {.request = request, .rows = (uint32_t)rows};
    CHECK(api->step_issue(capturer, &span, sizeof span, 1, NULL, NULL, NULL, NULL) == ROUTECAP_OK);
    routecap_routing *routing = NULL;
    CHECK(api->request_finish(capturer, request, (uint64_t)rows, &routing) == ROUTECAP_OK);
    return routing;
}

static void check_routing(const routecap_api *api, routecap_routing *routing, int32_t rows) {
    CHECK(api->routing_wait(routing, -1) == ROUTECAP_OK);
    int32_t ids[8][2][2];
    routecap_copy_options options;
    CHECK(api->copy_options_init(&options, sizeof options) == ROUTECAP_OK);
    options.dtype = ROUTECAP_DTYPE_I32;
    CHECK(api->routing_copy_to(routing, &options, ids, sizeof ids, NULL, 0, NULL) == ROUTECAP_OK);
    int right = 0;
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < 2; l++)
            right += ids[r][l][0] == (l + 3 * r) % 16 && ids[r][l][1] == (l + 3 * r + 5) % 16;
    CHECK(right == 2 * rows);
}

/* The whole life of a capturer. */
static void use(const routecap_api *api, int32_t backend) {
    const routecap_config config = config_of(api, backend);
    routecap_capturer *capturer = NULL;
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_OK);
    if (backend == ROUTECAP_BACKEND_HOST) {
        routecap_routing *routing = capture(api, capturer, 5);
        check_routing(api, routing, 5);
        api->routing_free(routing);
    }
    api->capturer_destroy(capturer);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static void loading_does_nothing(void) {
    const int threads_before = threads(), files_before = files();
    void *handle = load(library_file, RTLD_NOW | RTLD_LOCAL);
    CHECK(threads() == threads_before);
    CHECK(files() == files_before);
    CHECK(loaded_driver() == NULL);
    /* Two constructors, both the compiler's own: the one that every library has, and
       __cpu_indicator_init, which asks the processor what it can. */
    struct link_map *map = NULL;
    CHECK(dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
    size_t bytes = 0;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_INIT_ARRAYSZ) bytes = entry->d_un.d_val;
    CHECK(bytes <= 2 * sizeof(void *));
    /* What needs no capturer makes none. */
    const routecap_api *api = api_of(handle);
    CHECK(api->version() / 100 == ROUTECAP_VERSION_MAJOR * 100 + ROUTECAP_VERSION_MINOR);
    CHECK(strcmp(api->status_name(ROUTECAP_ERR_CAPACITY), "ROUTECAP_ERR_CAPACITY") == 0);
    CHECK(*api->last_error() == 0);
    CHECK(threads() == threads_before);
}

static void the_host_backend_needs_no_driver(void) {
    const routecap_api *api = api_of(load(library_file, RTLD_NOW | RTLD_LOCAL));
    use(api, ROUTECAP_BACKEND_HOST);
    routecap_config config = config_of(api, ROUTECAP_BACKEND_CUDA);
    config.role = ROUTECAP_ROLE_DISABLED;
    routecap_capturer *capturer = NULL;
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_OK);
    api->capturer_destroy(capturer);
    CHECK(loaded_driver() == NULL);
}

static void no_context_without_a_capturer(void) {
    const routecap_api *api = api_of(load(library_file, RTLD_NOW | RTLD_LOCAL));
    const fake_cuda *driver = fake();
    fake_cuda_live live;
    routecap_backend info = {.struct_size = sizeof info};
    CHECK(api->backend_info(ROUTECAP_BACKEND_CUDA, &info) == ROUTECAP_OK && info.available == 1);
    routecap_capturer *capturer = NULL;
    routecap_config config = config_of(api, ROUTECAP_BACKEND_CUDA);
    routecap_memory memory = {.struct_size = sizeof memory};
    CHECK(api->config_memory(&config, &memory) == ROUTECAP_OK);
    config.device = 99;
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_ERR_ARGUMENT && capturer == NULL);
    config.device = 0, config.layers = 0;
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_ERR_ARGUMENT && capturer == NULL);
    CHECK(driver->count("cuDevicePrimaryCtxRetain") == 0);
    driver->live(&live);
    CHECK(live.primary_references == 0);
    /* One that fails halfway keeps none. */
    config.layers = 2;
    driver->fail("cuMemHostAlloc", 1, 2);
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_ERR_NO_MEMORY && capturer == NULL);
    driver->live(&live);
    CHECK(live.primary_references == 0 && live.device_allocations == 0 && live.streams == 0);
    use(api, ROUTECAP_BACKEND_CUDA);
    driver->live(&live);
    CHECK(live.primary_references == 0 && live.device_allocations == 0 && live.streams == 0);
}

static void loaded_twice_it_is_one(void) {
    void *local = load(library_file, RTLD_LAZY | RTLD_LOCAL),
         *global = load(library_file, RTLD_NOW | RTLD_GLOBAL);
    CHECK(local == global);
    CHECK(api_of(local) == api_of(global));
    CHECK(dlsym(RTLD_DEFAULT, "routecap_version") != NULL);
    use(api_of(local), ROUTECAP_BACKEND_HOST);
}

/* Two files are two libraries, each with code of its own, also where the first one's symbols are
 * global. */
static void two_copies_are_two(void) {
    void *first = load(library_file, RTLD_NOW | RTLD_GLOBAL),
         *second = load(copy_file, RTLD_NOW | RTLD_LOCAL);
    CHECK(first != second);
    const routecap_api *apis[2] = {api_of(first), api_of(second)};
    CHECK(apis[0] != apis[1]);
    for (int a = 0; a < 2; a++) {
        Dl_info table, entry;
        CHECK(dladdr(apis[a], &table) != 0);
        void *functions[(sizeof(routecap_api) - offsetof(routecap_api, version)) / sizeof(void *)];
        memcpy(functions, (const char *)apis[a] + offsetof(routecap_api, version),
               sizeof functions);
        int own = 0, count = (int)(sizeof functions / sizeof functions[0]);
        for (int f = 0; f < count; f++)
            own += dladdr(functions[f], &entry) != 0 && entry.dli_fbase == table.dli_fbase;
        CHECK(own == count);
        use(apis[a], ROUTECAP_BACKEND_HOST);
    }
    /* At once, and what went wrong in one is not told by the other. */
    const routecap_config config = config_of(apis[0], ROUTECAP_BACKEND_HOST);
    routecap_capturer *capturers[2];
    routecap_routing *routings[2];
    for (int a = 0; a < 2; a++) {
        CHECK(apis[a]->capturer_create(&config, &capturers[a]) == ROUTECAP_OK);
        routings[a] = capture(apis[a], capturers[a], 4 + a);
    }
    routecap_capturer *none = NULL;
    CHECK(apis[1]->capturer_create(NULL, &none) == ROUTECAP_ERR_ARGUMENT);
    CHECK(*apis[0]->last_error() == 0 && *apis[1]->last_error() != 0);
    for (int a = 0; a < 2; a++) {
        check_routing(apis[a], routings[a], 4 + a);
        apis[a]->routing_free(routings[a]);
        apis[a]->capturer_destroy(capturers[a]);
    }
}

static void cycles(int32_t backend, int count) {
    const routecap_api *api = api_of(load(library_file, RTLD_NOW | RTLD_LOCAL));
    for (int i = 0; i < count / 10; i++) use(api, backend);
    const int threads_before = threads(), files_before = files();
    const size_t bytes_before = mallinfo2().uordblks;
    for (int i = 0; i < count; i++) use(api, backend);
    CHECK(threads() == threads_before);
    CHECK(files() == files_before);
    const size_t bytes = mallinfo2().uordblks;
    /* What a cycle left behind would be 32 bytes or more of each, which is the least of malloc's; it
     * keeps some that were freed for itself. The fake driver keeps handles. */
    if (backend == ROUTECAP_BACKEND_HOST) CHECK(bytes < bytes_before + 16 * (size_t)count);
}
static void thousands_of_cycles(void) { cycles(ROUTECAP_BACKEND_HOST, 3000); }
static void hundreds_of_cycles_on_cuda(void) {
    const fake_cuda *driver = fake();
    cycles(ROUTECAP_BACKEND_CUDA, 300);
    fake_cuda_live live;
    driver->live(&live);
    CHECK(live.primary_references == 0 && live.device_allocations == 0 &&
          live.host_allocations == 0 && live.streams == 0 && live.events == 0);
    CHECK(driver->violations() == 0);
}

/* Whoever closes the library while it is used, also with a step in flight, closes nothing. */
static void closing_keeps_it(void) {
    void *handle = load(library_file, RTLD_NOW | RTLD_LOCAL);
    const routecap_api *api = api_of(handle);
    const routecap_config config = config_of(api, ROUTECAP_BACKEND_HOST);
    routecap_capturer *capturer = NULL;
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_OK);
    routecap_routing *routing = capture(api, capturer, 8);
    CHECK(dlclose(handle) == 0);
    check_routing(api, routing, 8);
    routecap_routing *second = capture(api, capturer, 3);
    api->capturer_destroy(capturer);
    check_routing(api, second, 3);
    api->routing_free(routing);
    api->routing_free(second);
    void *again = dlopen(library_file, RTLD_NOW | RTLD_NOLOAD);
    CHECK(again != NULL && api_of(again) == api);
    use(api, ROUTECAP_BACKEND_HOST);
}

static int32_t thread_backend;
static pthread_barrier_t barrier;
static void *first_use(void *result) {
    pthread_barrier_wait(&barrier);
    const routecap_api *api = api_of(load(library_file, RTLD_NOW | RTLD_LOCAL));
    routecap_config config;
    routecap_capturer *capturer = NULL;
    int32_t status = api->config_init(&config, sizeof config);
    config.backend = thread_backend;
    config.layers = 2, config.k = 2, config.experts = 16, config.rows = 8;
    if (status == ROUTECAP_OK) status = api->capturer_create(&config, &capturer);
    api->capturer_destroy(capturer);
    *(int32_t *)result = status;
    return NULL;
}
static void many_threads(int32_t backend) {
    enum { kThreads = 8 };
    pthread_t ids[kThreads];
    int32_t status[kThreads];
    thread_backend = backend;
    pthread_barrier_init(&barrier, NULL, kThreads);
    for (int t = 0; t < kThreads; t++)
        CHECK(pthread_create(&ids[t], NULL, first_use, &status[t]) == 0);
    for (int t = 0; t < kThreads; t++) {
        pthread_join(ids[t], NULL);
        CHECK(status[t] == ROUTECAP_OK);
    }
}
static void first_used_by_many_threads(void) { many_threads(ROUTECAP_BACKEND_HOST); }
static void first_used_by_many_threads_on_cuda(void) { many_threads(ROUTECAP_BACKEND_CUDA); }

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
        int on_cuda;
    } cases[] = {{"loading does nothing", loading_does_nothing, 0},
                 {"the host backend needs no driver", the_host_backend_needs_no_driver, 0},
                 {"no context without a capturer", no_context_without_a_capturer, 1},
                 {"loaded twice it is one", loaded_twice_it_is_one, 0},
                 {"two copies are two", two_copies_are_two, 0},
                 {"thousands of cycles", thousands_of_cycles, 0},
                 {"hundreds of cycles on CUDA", hundreds_of_cycles_on_cuda, 1},
                 {"closing keeps it", closing_keeps_it, 0},
                 {"first used by many threads", first_used_by_many_threads, 0},
                 {"first used by many threads on CUDA", first_used_by_many_threads_on_cuda, 1}};
    if (argc < 3) return 2;
    library_file = argv[1], copy_file = argv[2];
    int cases_failed = 0, cases_passed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            if (cases[c].on_cuda && fake() == NULL) {
                printf("left out, without the fake driver: %s\n", cases[c].name);
                exit(0);
            }
            cases[c].run();
            printf("%s: %d checks, %d failed\n", cases[c].name, passed + failed, failed);
            exit(failed != 0 || passed == 0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        if (status == 0)
            cases_passed++;
        else
            cases_failed++, printf("FAILED (%d): %s\n", status, cases[c].name);
    }
    printf("%d checks passed, %d failed\n", cases_passed, cases_failed);
    return cases_failed != 0;
}
