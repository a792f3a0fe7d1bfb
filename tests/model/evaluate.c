/*
 * Logits and routing of a mixture-of-experts model over bytes in llama.cpp, for comparison with
 * other engines.
 *
 * usage: evaluate MODEL.gguf TEXT BYTES OUTPUT
 *
 * The first BYTES bytes of TEXT are one prompt, evaluated at once with a float32 KV cache and
 * without flash attention. OUTPUT: the logits, float32 [BYTES][256], then the chosen experts of
 * each layer in turn, int32 [layers][BYTES][k].
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

enum { VOCABULARY = 256, MAX_LAYERS = 64 };

struct routing {
    int32_t *ids[MAX_LAYERS]; /* [rows][k] */
    int64_t rows, k;
};

static void require(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "evaluate: %s\n", what);
    exit(1);
}

static bool on_tensor(struct ggml_tensor *tensor, bool ask, void *user) {
    struct routing *routing = user;
    int layer;
    if (sscanf(tensor->name, "ffn_moe_topk-%d", &layer) != 1) return !ask;
    if (ask) return true;
    require(layer < MAX_LAYERS && tensor->type == GGML_TYPE_I32 && tensor->ne[1] == routing->rows,
            "an unexpected top-k tensor");
    routing->k = tensor->ne[0];
    size_t row_bytes = (size_t)routing->k * sizeof(int32_t);
    require((routing->ids[layer] = malloc((size_t)routing->rows * row_bytes)) != NULL,
            "out of memory");
    for (int64_t r = 0; r < routing->rows; r++) /* a view: its rows are far apart */
        memcpy((char *)routing->ids[layer] + (size_t)r * row_bytes,
               (const char *)tensor->data + (size_t)r * tensor->nb[1], row_bytes);
    return true;
}

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv) {
    require(argc == 5 && atoi(argv[3]) > 0, "usage: evaluate MODEL.gguf TEXT BYTES OUTPUT");
    int32_t rows = atoi(argv[3]);
    unsigned char *bytes = malloc((size_t)rows);
    FILE *text = fopen(argv[2], "rb"), *output = fopen(argv[4], "wb");
    require(bytes != NULL && text != NULL && output != NULL, "cannot open the text or the output");
    require(fread(bytes, 1, (size_t)rows, text) == (size_t)rows, "the text is too short");
    fclose(text);

    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(getenv("GGML_BACKEND_DIR"));
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    require(model != NULL, "the model does not load");
    struct routing routing = {.rows = rows};
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = (uint32_t)rows;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.n_threads = params.n_threads_batch = 1;
    params.cb_eval = on_tensor;
    params.cb_eval_user_data = &routing;
    struct llama_context *context = llama_init_from_model(model, params);
    require(context != NULL, "no context");

    struct llama_batch batch = llama_batch_init(rows, 0, 1);
    for (int32_t i = 0; i < rows; i++) {
        batch.token[i] = bytes[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true; /* of every row, so that the last layer computes every row */
    }
    batch.n_tokens = rows;
    require(llama_decode(context, batch) == 0, "decoding failed");
    for (int32_t i = 0; i < rows; i++)
        fwrite(llama_get_logits_ith(context, i), sizeof(float), VOCABULARY, output);
    for (int layer = 0; layer < MAX_LAYERS; layer++) {
        if (routing.ids[layer] != NULL)
            fwrite(routing.ids[layer], sizeof(int32_t), (size_t)(rows * routing.k), output);
        free(routing.ids[layer]);
    }
    require(fclose(output) == 0, "cannot write the output");
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    free(bytes);
    return 0;
}
