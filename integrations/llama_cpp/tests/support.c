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
