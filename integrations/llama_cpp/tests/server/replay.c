/*
 * The oracle of check.py: which experts a model chooses, token by token, with nothing of routecap.
 * A forward pass has one token, so all that the engine's callback shows is that token's.
 *
 * usage: replay MODEL.gguf RESULT < SEQUENCES
 *
 * Each line of SEQUENCES is: SIZE KEEP TOKEN... . When SIZE - 1 tokens are in the context, half of
 * those behind the first KEEP are removed and the rest moves up, as llama-server does with a full
 * context. RESULT receives int32 [tokens][layers][k] for each line, one behind the other.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

static FILE *result;
static int seen; /* layers of this forward pass */

static void be_quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static bool on_tensor(struct ggml_tensor *tensor, bool ask, void *user) {
    (void)user;
    const bool chosen = strncmp(tensor->name, "ffn_moe_topk-", 13) == 0;
    if (ask || !chosen) return chosen || !ask;
    if (tensor->ne[1] != 1 || tensor->nb[0] != sizeof(int32_t)) exit(2);
    seen++;
    return fwrite(tensor->data, sizeof(int32_t), (size_t)tensor->ne[0], result) ==
           (size_t)tensor->ne[0];
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    llama_log_set(be_quiet, NULL);
    ggml_backend_load_all_from_path(getenv("GGML_BACKEND_DIR"));
    llama_backend_init();
    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], model_params);
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.cb_eval = on_tensor;
    struct llama_context *context = model != NULL ? llama_init_from_model(model, params) : NULL;
    result = fopen(argv[2], "wb");
    if (context == NULL || result == NULL) return 2;
    llama_memory_t memory = llama_get_memory(context);

    int size, keep, layers = 0;
    while (scanf("%d %d", &size, &keep) == 2) {
        llama_pos position = 0;
        llama_token token;
        llama_memory_clear(memory, true);
        while (scanf("%d", &token) == 1) { /* until a word that is no number: the end of the line */
            if (position + 1 >= size) {
                const llama_pos removed = (position - keep) / 2;
                llama_memory_seq_rm(memory, 0, keep, keep + removed);
                llama_memory_seq_add(memory, 0, keep + removed, position, -removed);
                position -= removed;
            }
            llama_seq_id sequence = 0, *sequences = &sequence;
            int32_t count = 1;
            int8_t logits = 1;
            struct llama_batch batch = {.n_tokens = 1,
                                        .token = &token,
                                        .pos = &position,
                                        .n_seq_id = &count,
                                        .seq_id = &sequences,
                                        .logits = &logits};
            seen = 0;
            if (llama_decode(context, batch) != 0) return 3;
            llama_synchronize(context);
            if (seen == 0 || (layers > 0 && seen != layers)) return 4;
            layers = seen;
            position++;
        }
        if (scanf(" end") != 0) return 5;
    }
    printf("%d layers\n", layers);
    return fclose(result) == 0 ? 0 : 6;
}
