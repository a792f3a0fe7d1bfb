/*
 * Prefill in one process, decode in another: the rows of the prompt travel beside the KV cache.
 *
 * usage: prefill_decode LIBROUTECAP MODEL.gguf TEXT:BYTES
 *
 * The KV cache travels as llama.cpp's saved state, in a file. The decode process takes whole blocks
 * of it and computes the rest of the prompt itself, as engines do. The rows of these blocks travel
 * beside it, as prefill's routing in the serialised form. Two ways to use them are compared with a
 * run that was not divided:
 *
 *   - decode attaches the routing to its request, and so has all rows
 *   - a router between the two splices the bytes of both routings, and decodes no row
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"
#include "tap.h"

enum { CONTEXT = 1024, BLOCK_ROWS = 16, GENERATE = 24 };

/* ---- Bytes --------------------------------------------------------------------------------- */

static struct bytes read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    struct bytes bytes = {NULL, 0};
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) die("%s cannot be read", path);
    bytes.count = (uint64_t)ftell(file);
    bytes.data = malloc(bytes.count);
    rewind(file);
    if (bytes.data == NULL || fread(bytes.data, 1, bytes.count, file) != bytes.count)
        die("%s cannot be read", path);
    fclose(file);
    return bytes;
}

/* Two serialised routings, the second from `row` on. No id is looked at. */
static struct bytes spliced(struct bytes head, struct bytes tail, uint64_t row) {
    routecap_splice splice = {.struct_size = sizeof splice};
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    const uint64_t room = head.count + tail.count + 128;
    unsigned char *header = malloc(room);
    struct bytes whole = {malloc(2 * room), 0};
    if (header == NULL || whole.data == NULL) die("out of memory");
    check(tap.api->serialized_splice(head.data, head.count, tail.data, tail.count, row, header,
                                     room, pieces, sizeof *pieces, ROUTECAP_MAX_PIECES, &splice),
          "serialized_splice");
    for (uint32_t p = 0; p < splice.pieces; p++) {
        const unsigned char *from[] = {header, head.data, tail.data};
        memcpy(whole.data + whole.count, from[pieces[p].source] + pieces[p].offset,
               pieces[p].bytes);
        whole.count += pieces[p].bytes;
    }
    free(header);
    return whole;
}

/* ---- The engine ---------------------------------------------------------------------------- */

struct engine {
    struct llama_model *model;
    struct llama_context *context;
    struct llama_batch batch;
    routecap_config config;
    llama_token tokens[CONTEXT];
    int prompt, blocks; /* tokens of the prompt, and whole blocks of them */
};

static void start(struct engine *engine, char **argv) {
    char *colon = strrchr(argv[3], ':');
    if (colon == NULL) die("%s is not TEXT:BYTES", argv[3]);
    const int bytes = atoi(colon + 1);
    *colon = '\0';
    const struct bytes text = read_file(argv[3]);
    *colon = ':';
    if (bytes < 1 || bytes > CONTEXT - GENERATE || (uint64_t)bytes > text.count)
        die("%s has not so many bytes, or too many", argv[3]);
    engine->prompt = bytes;
    for (int t = 0; t < bytes; t++) engine->tokens[t] = text.data[t];
    free(text.data);

    const routecap_api *api = load_routecap(argv[1]);
    engine->model = load_model(argv[2]);
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = CONTEXT;
    params.n_ubatch = 64;
    params.n_threads = params.n_threads_batch = 1;
    must(tap_attach(&tap, api, &params));
    engine->context = llama_init_from_model(engine->model, params);
    if (engine->context == NULL) die("no context");
    must(tap_discover(&tap, engine->context, &engine->config));
    must(tap_start(&tap, &engine->config));
    engine->batch = llama_batch_init(CONTEXT, 0, 1);
    engine->blocks = engine->prompt / BLOCK_ROWS;
}

/* Runs tokens [from, to) in one pass, and returns the best token behind them. */
static llama_token run(struct engine *engine, int from, int to) {
    engine->batch.n_tokens = 0;
    for (int t = from; t < to; t++) add_token(&engine->batch, engine->tokens[t], t, 0, true);
    must(tap_begin(&tap, &engine->batch));
    if (llama_decode(engine->context, engine->batch) != 0) die("llama_decode failed");
    must(tap_issue(&tap));
    const float *logits = llama_get_logits_ith(engine->context, to - from - 1);
    const int tokens = llama_vocab_n_tokens(llama_model_get_vocab(engine->model));
    llama_token best = 0;
    for (int t = 1; t < tokens; t++) best = logits[t] > logits[best] ? t : best;
    return best;
}

/* The rest of the prompt behind its whole blocks, and the answer. */
static routecap_routing *answer(struct engine *engine) {
    const int behind = engine->blocks * BLOCK_ROWS;
    int length = engine->prompt;
    llama_token next =
        behind < length ? run(engine, behind, length) : run(engine, length - 1, length);
    for (int i = 0; i < GENERATE; i++, length++) {
        engine->tokens[length] = next;
        next = run(engine, length, length + 1);
    }
    routecap_routing *routing;
    must(tap_end(&tap, 0, &routing));
    check(tap.api->routing_wait(routing, -1), "routing_wait");
    return routing;
}

static void forget(struct engine *engine) {
    llama_memory_seq_rm(llama_get_memory(engine->context), -1, -1, -1);
}

static void stop(struct engine *engine) {
    llama_batch_free(engine->batch);
    llama_free(engine->context);
    tap_stop(&tap);
    llama_model_free(engine->model);
    llama_backend_free();
}

/* ---- The two processes --------------------------------------------------------------------- */

/* Computes the prompt; leaves its state in FOLDER/state, and its routing in
 * FOLDER/prefill.routecap. */
static int prefill(struct engine *engine, const char *folder) {
    char path[4096];
    must(tap_open(&tap, 0));
    run(engine, 0, engine->blocks * BLOCK_ROWS);
    routecap_routing *routing;
    must(tap_end(&tap, 0, &routing));
    check(tap.api->routing_wait(routing, -1), "routing_wait");

    snprintf(path, sizeof path, "%s/state", folder);
    if (llama_state_seq_save_file(engine->context, path, 0, engine->tokens,
                                  (size_t)(engine->blocks * BLOCK_ROWS)) == 0)
        die("%s: not saved", path);
    snprintf(path, sizeof path, "%s/prefill.routecap", folder);
    const struct bytes bytes = serialized(routing);
    write_file(path, bytes);
    free(bytes.data);
    tap.api->routing_free(routing);
    return 0;
}

/* Starts this program again as the prefill process, and waits for its end. */
static void start_prefill(char **argv, const char *folder) {
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) die("fork failed");
    if (child == 0) {
        execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], folder, (char *)NULL);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) die("the prefill process failed");
}

static bool same(const char *what, struct bytes a, struct bytes b) {
    const bool equal = a.count == b.count && memcmp(a.data, b.data, a.count) == 0;
    printf("%s: %s as the run that was not divided\n", what, equal ? "the same" : "NOT the same");
    return equal;
}

int main(int argc, char **argv) {
    static struct engine engine;
    if (argc != 4 && argc != 5) die("usage: prefill_decode LIBROUTECAP MODEL.gguf TEXT:BYTES");
    start(&engine, argv);
    if (argc == 5) {
        const int status = prefill(&engine, argv[4]);
        stop(&engine);
        return status;
    }
    const routecap_api *api = tap.api;
    const uint64_t behind = (uint64_t)engine.blocks * BLOCK_ROWS;

    /* Undivided. */
    must(tap_open(&tap, 0));
    run(&engine, 0, (int)behind);
    routecap_routing *routing = answer(&engine);
    const struct bytes undivided = serialized(routing);
    api->routing_free(routing);
    forget(&engine);

    /* Prefill elsewhere. */
    char folder[] = "/tmp/prefill_decode_XXXXXX", path[64];
    if (mkdtemp(folder) == NULL) die("no folder for the state");
    start_prefill(argv, folder);

    /* Decode here: its request begins with the rows of the KV that it takes. */
    llama_token saved[CONTEXT];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/state", folder);
    if (llama_state_seq_load_file(engine.context, path, 0, saved, CONTEXT, &count) == 0 ||
        count != behind)
        die("%s: not loaded", path);
    unlink(path);
    snprintf(path, sizeof path, "%s/prefill.routecap", folder);
    const struct bytes head = read_file(path);
    unlink(path);
    rmdir(folder);
    routecap_routing *prompt;
    check(api->routing_deserialize(head.data, head.count, 0, NULL, NULL, &prompt),
          "routing_deserialize");
    must(tap_open(&tap, 0));
    check(api->request_attach(tap.capturer, tap.requests[0], prompt, behind), "request_attach");
    api->routing_free(prompt);
    routing = answer(&engine);
    printf("prompt of %d tokens: %" PRIu64
           " rows of %d blocks from the prefill process, %d tokens "
           "generated\n",
           engine.prompt, behind, engine.blocks, GENERATE);
    const struct bytes attached = serialized(routing);
    bool ok = same("attached", attached, undivided);

    /* The other way: decode's own rows behind prefill's. */
    routecap_routing *own;
    check(api->routing_slice(routing, behind, ROUTECAP_ROWS_ALL, &own), "routing_slice");
    const struct bytes tail = serialized(own), joined = spliced(head, tail, behind);
    ok &= same("spliced", joined, undivided);

    api->routing_free(own);
    api->routing_free(routing);
    free(undivided.data), free(attached.data), free(head.data), free(tail.data), free(joined.data);
    stop(&engine);
    return !ok;
}
