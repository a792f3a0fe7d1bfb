#include "support.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <ggml-backend.h>

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

struct tap tap;

int32_t check(int32_t status, const char *what) {
    if (status < 0) die("%s: %s: %s", what, tap.api->status_name(status), tap.api->last_error());
    return status;
}

void must(bool done) {
    if (!done) die("%s", tap.error);
}

const routecap_api *load_routecap(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) die("%s", dlerror());
    const routecap_api *(*get_api)(uint32_t, uint32_t) = NULL;
    *(void **)&get_api = dlsym(library, "routecap_get_api");
    const routecap_api *api =
        get_api != NULL ? get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR) : NULL;
    if (api == NULL) die("%s cannot stand in for the version of the header", path);
    return api;
}

static void only_errors(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

struct llama_model *load_model(const char *path) {
    llama_log_set(only_errors, NULL);
    ggml_backend_load_all_from_path(getenv("GGML_BACKEND_DIR"));
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(path, params);
    if (model == NULL) die("%s does not load", path);
    return model;
}

void add_token(struct llama_batch *batch, llama_token token, llama_pos position,
               llama_seq_id sequence, bool logits) {
    int i = batch->n_tokens++;
    batch->token[i] = token;
    batch->pos[i] = position;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = sequence;
    batch->logits[i] = logits;
}

llama_token best_token(const float *logits, int tokens) {
    llama_token best = 0;
    for (int t = 1; t < tokens; t++) best = logits[t] > logits[best] ? t : best;
    return best;
}

struct bytes serialized(const routecap_routing *routing) {
    struct bytes bytes = {NULL, 0};
    if (tap.api->routing_serialize(routing, NULL, 0, &bytes.count) != ROUTECAP_ERR_BUFFER_TOO_SMALL)
        die("%s", tap.api->last_error());
    bytes.data = malloc(bytes.count);
    if (bytes.data == NULL) die("out of memory");
    check(tap.api->routing_serialize(routing, bytes.data, bytes.count, NULL), "routing_serialize");
    return bytes;
}

void write_file(const char *path, struct bytes bytes) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes.data, 1, bytes.count, file) != bytes.count ||
        fclose(file) != 0)
        die("%s cannot be written", path);
}
