/*
 * See tap.h. llama.cpp calls on_tensor() for every tensor of its graph, first to ask whether it is
 * of interest, and again behind its computation if it is. That is where both halves of capture are
 * had: ids behind "ffn_moe_topk-<layer>", and whose they are in the questions.
 */
#include "tap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <ggml.h>

enum {
    IDLE,
    LISTENING,
    FORWARD,
    FAILED
}; /* FAILED: a forward pass that will not be issued, because something in it was not understood */

__attribute__((format(printf, 2, 3))) static bool fail(struct tap *tap, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(tap->error, sizeof tap->error, format, arguments);
    va_end(arguments);
    if (tap->state == FORWARD) tap->state = FAILED;
    return false;
}

static bool check(struct tap *tap, int32_t status, const char *what) {
    if (status == ROUTECAP_OK) return true;
    return fail(tap, "routecap_%s: %s: %s", what, tap->api->status_name(status),
                tap->api->last_error());
}

/* ---- In the forward pass ------------------------------------------------------------------- */

/*
 * Copies an input of the graph, one number for each row. Inputs lie in memory that is used again as
 * soon as their last consumer has run: they must be read when a consumer is asked about, and never
 * when a result is there.
 */
static void copy_input(struct tap *tap, const struct ggml_tensor *input, int64_t *to) {
    int64_t count = input->ne[0];
    if (!ggml_is_contiguous(input) ||
        (input->type != GGML_TYPE_I32 && input->type != GGML_TYPE_I64)) {
        fail(tap, "the input %s is not a list of integers", input->name);
        return;
    }
    if (count > 0)
        ggml_backend_tensor_get(input, to, 0, (size_t)count * ggml_type_size(input->type));
    for (int64_t i = count - 1; i >= 0 && input->type == GGML_TYPE_I32;
         i--) { /* backwards: 32 bits become 64 in place */
        int32_t number;
        memcpy(&number, (const char *)to + i * (int64_t)sizeof number, sizeof number);
        to[i] = number;
    }
}

/* Does it keep the rows that want logits, of something that was computed for all rows? The list of
 * these rows is an input of the graph, which has no name in some versions. */
static bool selects_outputs(const struct tap *tap, const struct ggml_tensor *tensor) {
    const struct ggml_tensor *all = tensor->src[0], *input = tensor->src[1];
    return input->ne[0] <= tap->rows &&
           (strstr(input->name, "out_ids") != NULL ||
            (input->op == GGML_OP_NONE && (input->flags & GGML_TENSOR_FLAG_INPUT) != 0 &&
             all->op != GGML_OP_NONE && all->ne[1] == tap->rows));
}

/* The engine is about to run `tensor`: does it say something about the rows of the micro-batch? */
static void identify(struct tap *tap, const struct ggml_tensor *tensor) {
    const struct ggml_tensor *input = tensor->src[1];
    int64_t count = input != NULL ? input->ne[0] : 0;
    if (tensor->op == GGML_OP_GET_ROWS && strstr(input->name, "inp_tokens") != NULL) {
        if (tap->embedding == NULL) tap->embedding = tensor->src[0];
        if (tap->embedding != tensor->src[0])
            return; /* some models look tokens up in other tables as well */
        tap->first_row += tap->rows;
        tap->rows = tap->outputs = 0;
        if (tap->first_row + (uint64_t)count > (uint64_t)tap->batch.n_tokens) {
            fail(tap, "the engine runs more rows than the batch has");
            return;
        }
        tap->rows = (uint32_t)count;
        copy_input(tap, input, tap->token + tap->first_row);
        for (uint32_t row = tap->first_row; row < tap->first_row + tap->rows; row++)
            tap->position[row] = tap->cell[row] = -1;
    } else if (tensor->op == GGML_OP_GET_ROWS && selects_outputs(tap, tensor)) {
        tap->outputs = (uint32_t)count;
        copy_input(tap, input, tap->output);
    } else if (tensor->op == GGML_OP_ROPE && count == tap->rows &&
               tap->position[tap->first_row] < 0) {
        copy_input(tap, input, tap->position + tap->first_row);
    } else if (tensor->op == GGML_OP_SET_ROWS && count == tap->rows &&
               tap->cell[tap->first_row] < 0) {
        copy_input(tap, input, tap->cell + tap->first_row);
        tap->cells = tensor->ne[1];
    }
}

/* The experts of one layer are chosen: a view [rows][k] into all experts sorted by weight, so its
 * rows are `experts` elements apart. */
static void record(struct tap *tap, const struct ggml_tensor *topk, int layer) {
    uint32_t rows = (uint32_t)topk->ne[1];
    if (topk->type != GGML_TYPE_I32 || topk->nb[0] != sizeof(int32_t) || topk->ne[0] != tap->k) {
        fail(tap, "%s has %d experts of type %s, and not %d of type i32", topk->name,
             (int)topk->ne[0], ggml_type_name(topk->type), tap->k);
        return;
    }
    if (!ggml_backend_buffer_is_host(topk->view_src != NULL ? topk->view_src->buffer
                                                            : topk->buffer)) {
        fail(tap, "%s is not in host memory: run all layers on the CPU", topk->name);
        return;
    }
    routecap_source source = {.struct_size = sizeof source,
                              .dtype = ROUTECAP_DTYPE_I32,
                              .ids = topk->data,
                              .rows = rows,
                              .row_stride = (int64_t)(topk->nb[1] / sizeof(int32_t)),
                              .first_row = tap->first_row};
    if (rows == 0) return;
    if (rows != tap->rows) {
        /* The last layer: only rows that want logits go through it, by an index list. The other
         * rows of this layer do not exist. */
        if (rows != tap->outputs) {
            fail(tap, "%s has %u rows, and the micro-batch %u, of which %u want logits", topk->name,
                 rows, tap->rows, tap->outputs);
            return;
        }
        for (uint32_t row = 0; row < rows; row++)
            tap->index[row] = (int32_t)(tap->first_row + tap->output[row]);
        source.row_index = tap->index;
    }
    check(tap, tap->api->layer_record(tap->capturer, (uint32_t)layer, &source, NULL),
          "layer_record");
}

/* The warm-up forward: note what runs. The ids were cut out of, or chosen among, one number for
 * each expert. */
static void discover(struct tap *tap, const struct ggml_tensor *topk, int decoder_layer) {
    int32_t k = (int32_t)topk->ne[0], experts = (int32_t)topk->src[0]->ne[0];
    if (tap->layers > 0 && (k != tap->k || experts != tap->experts))
        tap->k = -1;
    else
        tap->k = k, tap->experts = experts;
    tap->layer_map[tap->layers++] = decoder_layer;
}

static const char chosen[] = "ffn_moe_topk-"; /* and the layer's number */

/* Do these experts run by ids that have the name that is waited for? A copy for another backend has
 * it in its own. */
static bool is_known(const struct ggml_tensor *ids) {
    for (int depth = 0; ids != NULL && depth < 4; depth++, ids = ids->src[0])
        if (strstr(ids->name, chosen) != NULL) return true;
    return false;
}

/* The layer of a tensor of that name, or -1: of another, or of a view of one. */
static int layer_of(struct tap *tap, const struct ggml_tensor *tensor) {
    if (strncmp(tensor->name, chosen, sizeof chosen - 1) != 0) return -1;
    char *end;
    const char *number = tensor->name + sizeof chosen - 1;
    long layer = strtol(number, &end, 10);
    if (strncmp(end, " (", 2) == 0) return -1;
    if (end == number || *end != '\0' || layer < 0 || layer >= TAP_MAX_LAYERS) {
        fail(tap, "%s has no number of a layer behind %s", tensor->name, chosen);
        return -1;
    }
    return (int)layer;
}

static bool on_tensor(struct ggml_tensor *tensor, bool ask, void *user) {
    struct tap *tap = user;
    if (tap->state != LISTENING && tap->state != FORWARD) return !ask;
    if (ask) identify(tap, tensor);
    if (ask && tap->state == LISTENING && tensor->op == GGML_OP_MUL_MAT_ID &&
        !is_known(tensor->src[2]))
        fail(tap, "%s runs experts by %s, which is not called %s<layer>: report the model",
             tensor->name, tensor->src[2]->name, chosen);
    int decoder_layer = layer_of(tap, tensor);
    if (decoder_layer < 0) return !ask;
    if (tap->state == LISTENING) {
        if (!ask) discover(tap, tensor, decoder_layer);
        return true;
    }
    int layer = tap->layer_of[decoder_layer];
    if (!ask && layer >= 0) record(tap, tensor, layer);
    return !ask || layer >= 0; /* false behind a computation would end it */
}

/* ---- Attaching ----------------------------------------------------------------------------- */

bool tap_attach(struct tap *tap, const routecap_api *api, struct llama_context_params *params) {
    *tap = (struct tap){
        .api = api,
        .state = IDLE,
        .streams = params->kv_unified || params->n_seq_max == 0 ? 1 : (int)params->n_seq_max};
    if (params->cb_eval != NULL)
        return fail(
            tap,
            "the context has a callback already: two taps on one context would take each other's place");
    params->cb_eval = on_tensor;
    params->cb_eval_user_data = tap;
    return true;
}

bool tap_discover(struct tap *tap, struct llama_context *context, routecap_config *config) {
    const size_t rows = tap->max_rows = llama_n_batch(context);
    free(tap->memory);
    tap->memory = malloc(rows * (4 * sizeof(int64_t) + sizeof(int32_t)));
    if (tap->memory == NULL) return fail(tap, "out of memory");
    tap->token = tap->memory, tap->position = tap->token + rows, tap->cell = tap->position + rows,
    tap->output = tap->cell + rows;
    tap->index = (int32_t *)(tap->output + rows);

    llama_token token = 0;
    tap->batch = llama_batch_get_one(&token, 1);
    tap->embedding = NULL;
    tap->first_row = tap->rows = 0;
    tap->layers = tap->k = tap->experts = 0;
    tap->error[0] = '\0';
    tap->state = LISTENING;
    int decoded = llama_decode(context, tap->batch);
    llama_synchronize(context);
    tap->state = IDLE;
    llama_memory_seq_rm(llama_get_memory(context), 0, -1, -1);
    if (decoded != 0) return fail(tap, "the warm-up failed: llama_decode returned %d", decoded);
    if (tap->error[0] != '\0') return false;
    if (tap->layers == 0)
        return fail(
            tap, "this model has no MoE layers: it computes no tensor called ffn_moe_topk-<layer>");
    if (tap->k < 1) return fail(tap, "layers of this model differ in the number of their experts");

    if (!check(tap, tap->api->config_init(config, sizeof *config), "config_init")) return false;
    config->backend = ROUTECAP_BACKEND_HOST;
    config->layers = (uint32_t)tap->layers;
    config->k = (uint32_t)tap->k;
    config->experts = (uint32_t)tap->experts;
    config->rows = tap->max_rows;
    config->layer_map = tap->layer_map;
    return true;
}

bool tap_start(struct tap *tap, const routecap_config *config) {
    if (tap->layers == 0) return fail(tap, "tap_discover has not found layers with experts");
    if (tap->capturer != NULL) return fail(tap, "the tap has a capturer");
    if (config->k != (uint32_t)tap->k)
        return fail(tap, "the model runs %d experts per token, the capturer's k is %u", tap->k,
                    config->k);
    if (config->layer_experts == NULL && config->experts != (uint32_t)tap->experts)
        return fail(tap, "the model's layers have %d experts, the capturer's %u", tap->experts,
                    config->experts);
    if (config->rows < tap->max_rows)
        return fail(
            tap,
            "a batch may have %u rows (n_batch), the capturer has %u; micro-batches (n_ubatch) change nothing in that",
            tap->max_rows, config->rows);
    for (int layer = 0; layer < TAP_MAX_LAYERS; layer++) tap->layer_of[layer] = -1;
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        int32_t decoder_layer =
            config->layer_map != NULL ? config->layer_map[layer] : (int32_t)layer;
        int found = 0;
        while (found < tap->layers && tap->layer_map[found] != decoder_layer) found++;
        if (found == tap->layers)
            return fail(tap, "the capturer's layer %u is decoder layer %d, which has no experts",
                        layer, decoder_layer);
        tap->layer_of[decoder_layer] = (int32_t)layer;
    }
    if (!check(tap, tap->api->capturer_create(config, &tap->capturer), "capturer_create"))
        return false;
    tap->slots = config->slots > 0 ? config->slots : 2; /* routecap's default */
    tap->step = 0;
    return true;
}

void tap_stop(struct tap *tap) {
    tap->api->capturer_destroy(tap->capturer);
    free(tap->memory);
    free(tap->spans);
    *tap = (struct tap){.api = tap->api, .state = IDLE}; /* the context may still call on_tensor */
}

/* ---- Around the forward pass --------------------------------------------------------------- */

bool tap_begin(struct tap *tap, const struct llama_batch *batch) {
    if (tap->capturer == NULL) return fail(tap, "the tap was not started");
    /* FAILED after every fail() below: the engine may go on, and tap_issue says it again. */
    tap->state = FORWARD;
    if (batch->token == NULL) return fail(tap, "the batch has embeddings in the place of tokens");
    if (batch->n_tokens < 1 || (uint32_t)batch->n_tokens > tap->max_rows)
        return fail(tap, "%d tokens in a batch of at most %u", batch->n_tokens, tap->max_rows);
    size_t spans = 0; /* at most */
    for (int row = 0; row < batch->n_tokens; row++)
        spans += batch->seq_id != NULL ? (size_t)batch->n_seq_id[row] : 1;
    if (spans > tap->span_capacity) {
        free(tap->spans);
        tap->spans = malloc(spans * sizeof *tap->spans);
        tap->span_capacity = tap->spans != NULL ? spans : 0;
        if (tap->spans == NULL) return fail(tap, "out of memory");
    }

    /* A step beyond config.slots would be lost: wait for an old one, which has long landed unless
     * this machine has no core to spare. */
    if (tap->step >= tap->slots &&
        tap->api->step_finalize(tap->capturer, tap->step + 1 - tap->slots, -1, NULL) < 0)
        return fail(tap, "routecap_step_finalize: %s", tap->api->last_error());
    if (!check(tap, tap->api->step_begin(tap->capturer, (uint32_t)batch->n_tokens, NULL),
               "step_begin"))
        return false;
    tap->batch = *batch;
    tap->first_row = tap->rows = tap->outputs = 0;
    return true;
}

/*
 * Whose are the rows that ran? The engine runs a batch's rows in their order or, where its memory
 * has a stream for each sequence, in an order of its own among sequences, but in their order within
 * each: the memory cell tells which. Tokens and positions must agree, or the order is another one.
 */
static bool find_spans(struct tap *tap, size_t *span_count) {
    static const llama_seq_id first = 0; /* what llama.cpp takes where a batch does not say */
    uint32_t next[TAP_MAX_SEQUENCES] = {
        0}; /* by stream: the first row of the batch that may be the next one to run */
    routecap_span *last[TAP_MAX_SEQUENCES] = {0}; /* by sequence */
    const struct llama_batch *batch = &tap->batch;
    const uint32_t rows = (uint32_t)batch->n_tokens;
    *span_count = 0;
    if (tap->first_row + tap->rows != rows)
        return fail(tap, "the engine ran %u of the batch's %u rows", tap->first_row + tap->rows,
                    rows);
    for (uint32_t sink_row = 0; sink_row < rows; sink_row++) {
        int64_t stream = tap->streams == 1 ? 0
                         : tap->cell[sink_row] < 0
                             ? -1
                             : tap->cell[sink_row] / (tap->cells / tap->streams);
        if (stream < 0 || stream >= tap->streams)
            return fail(tap, "row %u has no cell in the engine's memory that says whose it is",
                        sink_row);
        uint32_t row = next[stream];
        while (row < rows && tap->streams > 1 &&
               (batch->seq_id != NULL ? batch->seq_id[row][0] : first) != stream)
            row++;
        next[stream] = row + 1;
        int64_t position = tap->position[sink_row];
        if (row < rows && batch->pos != NULL && position < 0)
            position = batch->pos[row]; /* a model without rotary embeddings */
        if (row == rows || tap->token[sink_row] != batch->token[row] || position < 0 ||
            (batch->pos != NULL && position != batch->pos[row]))
            return fail(
                tap,
                "the engine runs the rows of the batch in an order that this tap does not know (at row %u)",
                sink_row);

        const llama_seq_id *sequences = batch->seq_id != NULL ? batch->seq_id[row] : &first;
        const int count = batch->seq_id != NULL ? batch->n_seq_id[row] : 1;
        for (int i = 0; i < count; i++) {
            llama_seq_id sequence = sequences[i];
            if (sequence >= TAP_MAX_SEQUENCES || tap->requests[sequence] == 0) continue;
            uint64_t request_row = (uint64_t)(position + tap->shift[sequence]);
            routecap_span *span = last[sequence];
            if (span != NULL && span->sink_row + span->rows == sink_row &&
                span->position + span->rows == request_row) {
                span->rows++;
            } else {
                span = last[sequence] = &tap->spans[(*span_count)++];
                *span = (routecap_span){.request = tap->requests[sequence],
                                        .position = request_row,
                                        .sink_row = sink_row,
                                        .rows = 1};
            }
            if (count > 1) span->flags |= ROUTECAP_SPAN_SHARED; /* one token in several sequences */
        }
    }
    return true;
}

bool tap_issue(struct tap *tap) {
    static const routecap_issue_options options = {.struct_size = sizeof options,
                                                   .snapshot = ROUTECAP_SNAPSHOT_MAKE};
    size_t spans;
    routecap_step step = 0;
    if (tap->state == IDLE) return fail(tap, "there is no forward pass to issue");
    if (tap->state == FAILED || !find_spans(tap, &spans)) {
        tap_discard(tap);
        return false;
    }
    tap->state = IDLE;
    int32_t status = tap->api->step_issue(tap->capturer, tap->spans, sizeof *tap->spans, spans,
                                          &options, NULL, &step, NULL);
    if (status >= 0) tap->step = step;
    return check(tap, status, "step_issue");
}

void tap_discard(struct tap *tap) {
    tap->state = IDLE;
    check(tap, tap->api->step_discard(tap->capturer, NULL), "step_discard");
}

/* ---- Sequences ----------------------------------------------------------------------------- */

/* The sequence's request, if it has one, or if it must have none. */
static routecap_request *find(struct tap *tap, llama_seq_id sequence, bool captured) {
    if (sequence < 0 || sequence >= TAP_MAX_SEQUENCES) {
        fail(tap, "sequence %d does not exist", sequence);
        return NULL;
    }
    if ((tap->requests[sequence] != 0) == captured) return &tap->requests[sequence];
    fail(tap,
         captured ? "sequence %d is not being captured" : "sequence %d is being captured already",
         sequence);
    return NULL;
}

bool tap_open(struct tap *tap, llama_seq_id sequence) {
    routecap_request *request = find(tap, sequence, false);
    if (request == NULL) return false;
    tap->shift[sequence] = 0;
    return check(tap, tap->api->request_open(tap->capturer, NULL, request, 1), "request_open");
}

bool tap_end(struct tap *tap, llama_seq_id sequence, routecap_routing **routing) {
    routecap_request *request = find(tap, sequence, true);
    if (request == NULL) return false;
    if (routing == NULL
            ? !check(tap, tap->api->request_close(tap->capturer, *request), "request_close")
            : !check(tap,
                     tap->api->request_finish(tap->capturer, *request, ROUTECAP_ROWS_ALL, routing),
                     "request_finish"))
        return false;
    *request = 0;
    return true;
}

bool tap_rollback(struct tap *tap, llama_seq_id sequence, llama_pos position) {
    routecap_request *request = find(tap, sequence, true);
    if (request == NULL) return false;
    return check(tap,
                 tap->api->request_truncate(tap->capturer, *request,
                                            (uint64_t)(position + tap->shift[sequence])),
                 "request_truncate");
}

bool tap_copy(struct tap *tap, llama_seq_id from, llama_seq_id to, llama_pos end) {
    routecap_request *parent = find(tap, from, true),
                     *child = parent != NULL ? find(tap, to, false) : NULL;
    if (child == NULL) return false;
    uint64_t rows = end < 0 ? ROUTECAP_ROWS_ALL : (uint64_t)(end + tap->shift[from]);
    tap->shift[to] = tap->shift[from];
    return check(tap, tap->api->request_fork(tap->capturer, *parent, rows, child), "request_fork");
}

bool tap_shift(struct tap *tap, llama_seq_id sequence, llama_pos removed) {
    if (find(tap, sequence, true) == NULL) return false;
    tap->shift[sequence] += removed;
    return true;
}
