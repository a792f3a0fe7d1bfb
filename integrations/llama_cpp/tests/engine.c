/*
 * llama.cpp among the engines of the oracle: the tap as it is, over the
 * engine's prebuilt libraries.
 *
 * usage: engine LIBROUTECAP MODEL.gguf FOLDER [--prune] [--split] [--hex] [--generate=N] PROMPT...
 *
 * Tokens are bytes. All prompts are prefilled together and then continued together by the likeliest
 * tokens; each request's routing is written in the serialised form, to FOLDER/request-0.routecap
 * and so on. --prune: only a prompt's last token wants logits. --split: a memory for each sequence,
 * for which the engine runs the rows of a batch in another order. --hex: two digits for each token
 * of a prompt, so that it may be 0. Prints a line for each prompt: the tokens that were generated, 8
 * unless N is given.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "tap.h"

enum { MAX_SEQUENCES = 8, CONTEXT = 2048, BATCH = 64, MICRO_BATCH = 16, MOST = 64 };

struct sequence {
    const unsigned char *prompt;
    int length, rows; /* tokens of the prompt, and tokens that were input */
    llama_token next; /* the likeliest token behind them */
    llama_token made[MOST];
    int count; /* of made */
};

static void save(const routecap_routing *routing, const char *folder, int number) {
    char path[4096];
    struct bytes bytes = serialized(routing);
    snprintf(path, sizeof path, "%s/request-%d.routecap", folder, number);
    write_file(path, bytes);
    free(bytes.data);
}

/* Decodes hexadecimal digits in their place. Returns how many bytes they are. */
static int decode_hex(char *digits) {
    int length = 0;
    unsigned value;
    for (; sscanf(digits + 2 * length, "%2x", &value) == 1; length++) digits[length] = (char)value;
    return length;
}

int main(int argc, char **argv) {
    bool prune = false, split = false, hex = false;
    int generate = 8;
    int first = 4;
    for (; first < argc && strncmp(argv[first], "--", 2) == 0; first++) {
        prune |= strcmp(argv[first], "--prune") == 0;
        split |= strcmp(argv[first], "--split") == 0;
        hex |= strcmp(argv[first], "--hex") == 0;
        if (sscanf(argv[first], "--generate=%d", &generate) == 1 &&
            (generate < 1 || generate > MOST))
            die("--generate=%d: give 1 to %d", generate, MOST);
    }
    const int sequences = argc - first;
    if (sequences < 1 || sequences > MAX_SEQUENCES)
        die("usage: engine LIBROUTECAP MODEL.gguf FOLDER [--prune] [--split] [--hex] "
            "[--generate=N] PROMPT...");
    const routecap_api *api = load_routecap(argv[1]);
    struct llama_model *model = load_model(argv[2]);

    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT;
    params.n_batch = BATCH;
    params.n_ubatch = MICRO_BATCH;
    params.n_seq_max = (uint32_t)sequences;
    params.kv_unified = !split;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32; /* comparable with other engines; the defaults
                                                      choose other experts in some cells */
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    must(tap_attach(&tap, api, &params));
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) die("no context");
    routecap_config config;
    must(tap_discover(&tap, context, &config));
    must(tap_start(&tap, &config));

    struct sequence all[MAX_SEQUENCES] = {0};
    for (int s = 0; s < sequences; s++) {
        all[s].prompt = (const unsigned char *)argv[first + s];
        all[s].length = hex ? decode_hex(argv[first + s]) : (int)strlen(argv[first + s]);
        must(tap_open(&tap, s));
    }
    struct llama_batch batch = llama_batch_init(BATCH, 0, 1);
    const int tokens = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (bool done = false; !done;) {
        int logits_at[MAX_SEQUENCES];
        bool prefilling = false;
        for (int s = 0; s < sequences; s++) prefilling |= all[s].rows < all[s].length;
        batch.n_tokens = 0;
        done = true;
        for (int s = 0; s < sequences; s++) {
            struct sequence *q = &all[s];
            int ready = prefilling ? q->length - q->rows : 1;
            logits_at[s] = -1;
            for (; ready > 0 && batch.n_tokens < BATCH; ready--, q->rows++) {
                const bool last = q->rows + 1 >= q->length;
                if (last) logits_at[s] = batch.n_tokens;
                add_token(&batch, prefilling ? q->prompt[q->rows] : q->next, q->rows, s,
                          last || !prune);
            }
            done &=
                q->rows >= q->length + generate - 1; /* the last token generated is never input */
        }
        must(tap_begin(&tap, &batch));
        if (llama_decode(context, batch) != 0) die("llama_decode failed");
        must(tap_issue(&tap));
        for (int s = 0; s < sequences; s++)
            if (logits_at[s] >= 0) {
                struct sequence *q = &all[s];
                q->next = best_token(llama_get_logits_ith(context, logits_at[s]), tokens);
                if (q->count < generate) q->made[q->count++] = q->next;
            }
    }

    for (int s = 0; s < sequences; s++) {
        routecap_routing *routing;
        must(tap_end(&tap, s, &routing));
        check(api->routing_wait(routing, -1), "routing_wait");
        save(routing, argv[3], s);
        api->routing_free(routing);
        for (int i = 0; i < all[s].count; i++) printf("%d ", (int)all[s].made[i]);
        printf("\n");
    }
    llama_batch_free(batch);
    llama_free(context);
    tap_stop(&tap);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
